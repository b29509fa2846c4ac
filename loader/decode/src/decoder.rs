//! A batch's records to columns, on the decoder's own threads.
//!
//! Its rule: rows are decoded where they will stay, in the batch's memory, one task per sample and
//! field; the caller's thread waits. A sample that fails leaves a gap, and gaps are closed once at
//! the end by moving rows, never by decoding again.

mod arrays;
mod cores;
mod field;
mod line;
mod ragged;
mod rows;

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::buffer::BufferPool;
use crate::column::{BadSample, Decoded};
use crate::cuda::{Device, Failure, Submission};
use crate::record::Record;
use crate::routes::{CPU, GATHER, PLAIN, Reason, Routes};
use crate::spec::FieldSpec;

use arrays::Arrays;
use field::{Field, Pictures};
use line::Line;
use rows::Rows;

/// More threads than any node has cores are a mistake in a unit.
const THREADS_MAX: usize = 1024;

/// Decodes batches by a fixed list of fields. Shared by reference; each batch is independent.
#[derive(Debug)]
pub struct Decoder {
    fields: Vec<Field>,
    threads: ThreadPool,
    buffers: BufferPool,
    device: Option<Arc<Device>>,
}

/// What one batch is decoded with.
struct Batch<'a> {
    records: &'a [Record<'a>],
    seed: u64,
    epoch: u64,
    buffers: &'a BufferPool,
}

/// A field's rows while it is not known yet which of them are good.
enum Made<'a> {
    Rows(Rows),
    /// Images for a device.
    Pictures(Pictures<'a>),
    Arrays(Arrays<'a>),
}

impl Decoder {
    /// A decoder of `fields` on `threads` threads of its own; tensors take their memory from
    /// `buffers`. With a `device` all of them end up there, and it decodes the images. Threads run where the
    /// caller's may; if they are as many as the CPUs there, each has one of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with advice when a field makes no sense, there or anywhere, or `threads` is not
    /// in 1…1024; [`ErrorKind::Unavailable`] when the system refuses the threads, or to tell
    /// their CPUs.
    pub fn new(
        fields: Vec<FieldSpec>,
        threads: usize,
        buffers: &BufferPool,
        device: Option<Arc<Device>>,
    ) -> Result<Self> {
        FieldSpec::check_all(&fields)?;
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(Error::new(ErrorKind::Invalid, "a decoder needs threads")
                .at("threads", threads)
                .advise(format!("use 1 to {THREADS_MAX}; one per core is enough")));
        }
        let cores = cores::allowed()?;
        let own = cores.len() == threads;
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads)
            .start_handler(move |index| {
                if own {
                    cores::stay_on(cores[index]);
                }
            })
            .thread_name(|index| format!("fb-decode-{index}"))
            .build()
            .map_err(|error| {
                let message = format!("failed to start the decode threads: {error}");
                Error::new(ErrorKind::Unavailable, message)
                    .advise("raise the limit on processes, or use fewer threads")
            })?;
        let fields: Vec<Field> = fields.into_iter().map(Field::new).collect();
        let unsized_image =
            |field: &&Field| field.plan().is_some_and(|plan| plan.row_shape().is_none());
        if device.is_some()
            && let Some(field) = fields.iter().find(unsized_image)
        {
            return Err(Error::new(ErrorKind::Invalid, "a GPU makes images of one size")
                .at("field", field.name())
                .advise("set size=, or use device=\"cpu\""));
        }
        if device.as_ref().is_some_and(|device| !device.decodes())
            && let Some(field) = fields.iter().find(|field| field.plan().is_some())
        {
            let what = "the GPU was opened for arrays alone";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("field", field.name())
                .advise("open it with nvJPEG"));
        }
        Ok(Self { fields, threads, buffers: buffers.clone(), device })
    }

    /// Decodes `records` with the augmentation of (`seed`, `epoch`). A sample that cannot be decoded
    /// is listed as bad, with the first of its fields that failed, and has no row. When there is no
    /// memory for the batch, no record has a row, and each that was good is listed with that error.
    ///
    /// With a device what is returned is in line there, which reads the records' memory until it is done. That it
    /// may copy what lies side by side in one go, `around` is memory in which all of it lies, or nothing.
    ///
    /// # Errors
    /// What a device said that cannot be used any more.
    pub fn decode<'a>(
        &'a self,
        records: &'a [Record<'a>],
        around: &'a [u8],
        seed: u64,
        epoch: u64,
    ) -> Result<Decoded> {
        let batch = Batch { records, seed, epoch, buffers: &self.buffers };
        let mut errors: Vec<Option<Error>> = vec![None; records.len()];
        let mut outcome = self.outputs(&batch, around, None, &mut errors);
        if let Err(Failure::Decoder(error)) = outcome {
            tracing::warn!(%error, "the GPU's decoder failed at a batch: the CPU decodes it");
            outcome = self.outputs(&batch, around, Some(Reason::Failed), &mut errors);
        }
        let mut decoded = match outcome {
            Ok(decoded) => decoded,
            Err(Failure::Device(full)) if full.kind() == ErrorKind::Full => {
                for error in &mut errors {
                    error.get_or_insert_with(|| full.clone());
                }
                let none = Batch { records: &[], ..batch };
                match self.outputs(&none, &[], None, &mut []) {
                    Ok(decoded) => decoded,
                    Err(Failure::Device(error) | Failure::Decoder(error)) => return Err(error),
                }
            }
            Err(Failure::Device(error) | Failure::Decoder(error)) => return Err(error),
        };
        let bad = errors.into_iter().enumerate();
        let bad = bad.filter_map(|(index, error)| error.map(|error| BadSample { index, error }));
        decoded.bad = bad.collect();
        Ok(decoded)
    }

    /// The columns of `batch` and the records that have a row.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when there is no memory for all of it; what a device said.
    fn outputs<'a>(
        &'a self,
        batch: &Batch<'a>,
        around: &'a [u8],
        all_here: Option<Reason>,
        errors: &mut [Option<Error>],
    ) -> std::result::Result<Decoded, Failure> {
        let made: Vec<Made<'a>> = self.threads.install(|| {
            let fields = self.fields.iter();
            fields.map(|field| self.made(field, batch, all_here, errors)).collect::<Result<_>>()
        })?;
        // That memory ran out at one sample is not that sample's fault.
        let full = |error: &&Error| error.kind() == ErrorKind::Full;
        if let Some(error) = errors.iter().flatten().find(full) {
            return Err(Failure::Device(error.clone()));
        }
        let kept: Vec<usize> = (0..errors.len()).filter(|&i| errors[i].is_none()).collect();
        let mut routes = Routes::new();
        let settled = self.fields.iter().zip(made);
        let settled: Vec<(Line<'a>, Vec<bool>)> = settled
            .map(|(field, made)| self.settled(field, made, &kept, &mut routes))
            .collect::<Result<_>>()?;
        let mut submission =
            self.device.as_deref().map(|device| device.begin(around)).transpose()?;
        let files: Vec<&[u8]> = settled.iter().flat_map(|(line, _)| line.files()).collect();
        let start_ns = now_ns();
        let files = submission.as_mut().map(|submission| submission.bring(&files)).transpose()?;
        let brought = if files.is_some() { start_ns..now_ns() } else { 0..0 };
        let mut files = files.into_iter().flatten();
        let mut outputs = Vec::with_capacity(self.fields.len());
        for (field, (line, present)) in self.fields.iter().zip(settled) {
            let column = match (line, &mut submission) {
                (line, Some(submission)) => line.put(&mut files, submission)?,
                (Line::Made(column), None) => column,
                (_, None) => unreachable!("settled for a device"),
            };
            outputs.push(field.output(column, present));
        }
        let done = submission.map(Submission::finish).transpose()?;
        Ok(Decoded { outputs, kept, bad: Vec::new(), routes, done, brought })
    }

    /// The rows in `kept` of a field, which of them are there, and who makes them.
    fn settled<'a>(
        &self,
        field: &Field,
        made: Made<'a>,
        kept: &[usize],
        routes: &mut Routes,
    ) -> Result<(Line<'a>, Vec<bool>)> {
        let (line, present, route) = match (made, &self.device) {
            (Made::Pictures(pictures), Some(device)) => {
                return Ok(pictures.settle(kept, device, routes));
            }
            (Made::Pictures(_), None) => unreachable!("made for a device"),
            (Made::Arrays(arrays), device) => {
                let present = arrays.present(kept);
                let plain = device.as_ref().map_or(Err(Reason::Device), |_| arrays.plain(kept));
                match plain {
                    Ok((form, rows)) => {
                        (Line::Arrays { form, rows }, present, Some((GATHER, PLAIN)))
                    }
                    Err(reason) => {
                        let column = self.threads.install(|| arrays.keep(kept, &self.buffers))?;
                        (Line::Made(column), present, Some((CPU, reason.name())))
                    }
                }
            }
            (Made::Rows(rows), device) => {
                let (column, present) = rows.keep(kept, &self.buffers)?;
                let reason = if device.is_some() { Reason::Ragged } else { Reason::Device };
                let is_counted = field.has_images_or_arrays();
                (Line::Made(column), present, is_counted.then_some((CPU, reason.name())))
            }
        };
        let there = present.iter().filter(|present| **present).count() as u64;
        if let (Some(route), 1..) = (route, there) {
            *routes.entry(route).or_default() += there;
        }
        Ok((line, present))
    }

    fn made<'a>(
        &'a self,
        field: &'a Field,
        batch: &Batch<'a>,
        all_here: Option<Reason>,
        errors: &mut [Option<Error>],
    ) -> Result<Made<'a>> {
        match (&self.device, field.plan()) {
            (Some(device), Some(plan)) => {
                field.pictures(plan, device, all_here, batch, errors).map(Made::Pictures)
            }
            _ => field.decode(batch, errors),
        }
    }
}
