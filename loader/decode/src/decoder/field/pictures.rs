//! The images of a batch whose decoder is a GPU: which of them it decodes, and the rows of those that it does not.
//!
//! Its rule: everything that can go wrong with a file goes wrong before anything is put in line on the device, so that
//! rows are placed without gaps.

use std::sync::Mutex;

use forebay_error::{Error, Result};
use rayon::prelude::*;

use super::super::line::Line;
use super::{Batch, Field, Job};
use crate::cuda::{self, Device, Picture, Staging};
use crate::draw::Draw;
use crate::image::ImagePlan;
use crate::record::Record;
use crate::routes::{CPU, PLAIN, Reason, Routes};

/// What becomes of one record's image.
enum Way<'a> {
    /// The device decodes it; its row is not known yet.
    Device(Picture<'a>),
    /// The CPU decoded it: which of the staged rows it is.
    Staged(usize, Reason),
    /// An optional field that the sample lacks, or a sample that is bad.
    None,
}

/// One field's images, before anything of them is put in line.
pub(in crate::decoder) struct Pictures<'a> {
    plan: &'a ImagePlan,
    ways: Vec<Way<'a>>,
    staging: Staging,
    optional: bool,
}

impl Field {
    /// Looks at every image, and decodes here what `device` does not; everything, where `all_here` says why.
    ///
    /// # Errors
    /// What there is no memory for.
    pub(in crate::decoder) fn pictures<'a>(
        &'a self,
        plan: &'a ImagePlan,
        device: &Device,
        all_here: Option<Reason>,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
    ) -> Result<Pictures<'a>> {
        let slots = batch.records.par_iter().map(|_| ());
        let files = self.each(false, batch, errors, slots, |record, ()| record.bytes(&self.spec));
        let looked = batch.records.par_iter().zip(&files).map(|(record, file)| {
            file.map(|file| match all_here {
                Some(reason) => Err(reason),
                None => self.picture(plan, batch, record, file),
            })
        });
        let looked: Vec<Option<std::result::Result<Picture<'a>, Reason>>> = looked.collect();
        let pictures = looked.iter().flatten().flatten().map(|picture| picture.file);
        let mut taken = device.takes(pictures)?.into_iter();
        let mut staged = 0;
        let ways: Vec<Way<'a>> = looked
            .into_iter()
            .map(|looked| match looked {
                None => Way::None,
                Some(Ok(picture)) if taken.next() == Some(true) => Way::Device(picture),
                Some(other) => {
                    let reason = other.err().unwrap_or(Reason::Refused);
                    staged += 1;
                    Way::Staged(staged - 1, reason)
                }
            })
            .collect();
        let row = plan.row_shape().expect("checked when the field was").iter().product::<usize>()
            * plan.dtype().size();
        let mut staging = device.staging(staged * row)?;
        // Each row is taken by the one task whose it is.
        let rows: Vec<Mutex<&mut [u8]>> =
            staging.bytes_mut().chunks_exact_mut(row).map(Mutex::new).collect();
        let slots = ways.par_iter();
        self.each(true, batch, errors, slots, |record, way: &Way<'a>| {
            let Way::Staged(at, _) = way else { return Ok(None) };
            let Some(bytes) = record.bytes(&self.spec)? else { return Ok(None) };
            let mut out = rows[*at].try_lock().expect("one task writes a row");
            self.image(plan, batch, record, bytes, |ready| {
                ready.finish(&mut out);
                Ok(Some(()))
            })
        });
        drop(rows);
        Ok(Pictures { plan, ways, staging, optional: self.spec.optional })
    }

    /// How the device is to decode `file`, if it is.
    fn picture<'a>(
        &self,
        plan: &ImagePlan,
        batch: &Batch<'_>,
        record: &Record<'_>,
        file: &'a [u8],
    ) -> std::result::Result<Picture<'a>, Reason> {
        let stored = cuda::screen(file)?;
        let orientation = plan.orientation(file);
        let draw: Draw = self.draw(batch, record);
        let cuts = plan.cuts(orientation.size(stored.size), &draw).collect();
        Ok(Picture { file, stored, orientation, cuts, row: 0 })
    }

    /// The plan of a field of images.
    pub(in crate::decoder) fn plan(&self) -> Option<&ImagePlan> {
        match &self.job {
            Job::Image(plan) => Some(plan),
            _ => None,
        }
    }
}

impl<'a> Pictures<'a> {
    /// The rows of `kept`, which of them are there, and who makes them.
    pub(in crate::decoder) fn settle(
        self,
        kept: &[usize],
        device: &Device,
        routes: &mut Routes,
    ) -> (Line<'a>, Vec<bool>) {
        let mut ways: Vec<Option<Way<'a>>> = self.ways.into_iter().map(Some).collect();
        let mut pictures = Vec::new();
        let (mut staged, mut absent) = (Vec::new(), Vec::new());
        let mut present = Vec::with_capacity(kept.len());
        for (row, &at) in kept.iter().enumerate() {
            let way = ways[at].take().unwrap_or(Way::None);
            present.push(!matches!(way, Way::None));
            let route = match way {
                Way::Device(picture) => {
                    pictures.push(Picture { row, ..picture });
                    (device.decoder_name(), PLAIN)
                }
                Way::Staged(index, reason) => {
                    staged.push((index, row));
                    (CPU, reason.name())
                }
                Way::None => {
                    debug_assert!(
                        self.optional,
                        "of other fields a record without an image is bad"
                    );
                    absent.push(row);
                    continue;
                }
            };
            *routes.entry(route).or_default() += 1;
        }
        let (plan, staging, rows) = (self.plan, self.staging, kept.len());
        (Line::Pictures { plan, pictures, staging, staged, absent, rows }, present)
    }
}
