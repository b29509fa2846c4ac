//! Images of a batch decoded by a GPU: those it decodes, and the rows of the others.
//!
//! Every check of a file happens before anything is queued on the device, so that rows are
//! placed without gaps.

use std::sync::Mutex;

use forebay_error::{Error, Result};
use rayon::prelude::*;

use super::super::line::Line;
use super::{Batch, DecodeTask, Field};
use crate::cuda::{self, Device, Picture, Staging, Tables};
use crate::draw::Draw;
use crate::image::ImagePlan;
use crate::record::Record;
use crate::routes::{CPU, PLAIN, Reason, Routes};

/// Way of one record's image.
enum Way<'a> {
    /// The device decodes it; its row is unknown yet.
    Device(Picture<'a>),
    /// The CPU decoded it to this staged row, by the decoder of this name.
    Staged { at: usize, reason: Reason, decoder: &'static str },
    /// A missing optional field, or a bad sample.
    None,
}

/// One field's images, before anything is queued.
pub(in crate::decoder) struct Pictures<'a> {
    plan: &'a ImagePlan,
    ways: Vec<Way<'a>>,
    /// Present if some rows are staged.
    staging: Option<Staging>,
    optional: bool,
}

impl Field {
    /// Examines every image, and decodes those here that `device` does not; all of them if
    /// `all_here` has a reason.
    ///
    /// # Errors
    /// Lack of memory.
    pub(in crate::decoder) fn pictures<'a>(
        &'a self,
        plan: &'a ImagePlan,
        device: &Device,
        all_here: Option<Reason>,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
    ) -> Result<Pictures<'a>> {
        let all_here = plan.only_here().or(all_here);
        let slots = batch.records.iter().map(|_| ());
        let files = self.each(false, batch, errors, slots, |record, ()| record.bytes(&self.spec));
        let looked = batch.records.par_iter().zip(&files).map(|(record, file)| {
            file.map(|file| match all_here {
                Some(reason) => Err(reason),
                None => self.picture(plan, device, batch, record, file),
            })
        });
        let looked: Vec<Option<std::result::Result<Picture<'a>, Reason>>> =
            batch.threads.install(|| looked.collect());
        let mut staged = 0;
        let mut ways: Vec<Way<'a>> = looked
            .into_iter()
            .map(|looked| match looked {
                None => Way::None,
                Some(Ok(picture)) => Way::Device(picture),
                Some(Err(reason)) => {
                    staged += 1;
                    Way::Staged { at: staged - 1, reason, decoder: CPU }
                }
            })
            .collect();
        let row = plan.row_shape().expect("checked with the field").iter().product::<usize>()
            * plan.dtype().size();
        let mut staging = (staged > 0).then(|| device.staging(staged * row)).transpose()?;
        // Each row is taken by its one task.
        let bytes = staging.as_mut().map(Staging::bytes_mut).unwrap_or_default();
        let rows: Vec<Mutex<&mut [u8]>> = bytes.chunks_exact_mut(row).map(Mutex::new).collect();
        let slots = ways.iter();
        let decoders = self.each(true, batch, errors, slots, |record, way: &Way<'a>| {
            let Way::Staged { at, .. } = way else { return Ok(None) };
            let Some(bytes) = record.bytes(&self.spec)? else { return Ok(None) };
            let mut out = rows[*at].try_lock().expect("one task writes a row");
            self.image(plan, batch, record, bytes, |ready| {
                let decoder = ready.decoder;
                ready.finish(&mut out);
                Ok(Some(decoder))
            })
        });
        drop(rows);
        for (way, by) in ways.iter_mut().zip(decoders) {
            if let (Way::Staged { decoder, .. }, Some(by)) = (way, by) {
                *decoder = by;
            }
        }
        Ok(Pictures { plan, ways, staging, optional: self.spec.optional })
    }

    /// Returns the device's task for `file`, if it decodes it.
    fn picture<'a>(
        &self,
        plan: &ImagePlan,
        device: &Device,
        batch: &Batch<'_>,
        record: &Record<'_>,
        file: &'a [u8],
    ) -> std::result::Result<Picture<'a>, Reason> {
        let stored = cuda::screen(file)?;
        if !device.takes(file) {
            return Err(Reason::Refused);
        }
        let orientation = plan.orientation(file);
        let draw: Draw = self.draw(batch, record);
        let mut tables = Tables::default();
        for cut in plan.cuts(orientation.size(stored.size), &draw) {
            tables.push(&stored, orientation, &cut, plan.layout());
        }
        Ok(Picture { file, stored, tables, row: 0 })
    }

    /// Returns the plan of a field of images.
    pub(in crate::decoder) fn plan(&self) -> Option<&ImagePlan> {
        match &self.job {
            DecodeTask::Image(plan) => Some(plan),
            _ => None,
        }
    }
}

impl<'a> Pictures<'a> {
    /// Returns the rows of `kept`, their presence, and their decoders.
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
                Way::Staged { at, reason, decoder } => {
                    staged.push((at, row));
                    (decoder, reason.name())
                }
                Way::None => {
                    debug_assert!(
                        self.optional,
                        "a record without an image is bad unless the field is optional"
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
