//! From a batch's records to columns, on the decoder's own threads.
//!
//! Rows are decoded in their final place in the batch's memory, one task per sample and
//! field, while the caller's thread waits. A failed sample leaves a gap, and gaps are closed once
//! at the end by moving rows, never by decoding again.

mod arrays;
mod cores;
mod field;
mod line;
mod ragged;
mod rows;
mod slowest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
use slowest::Slowest;

/// Largest number of threads: more than any node has cores is a mistake in a unit.
const THREADS_MAX: usize = 1024;

/// Batches in a row that the GPU's decoder may fail on before it is asked for few only. Each is
/// decoded twice, and warned of.
const FAILURES_MAX: u32 = 8;

/// Batches of which a decoder that fails is asked for one: the lack of memory that it failed for
/// may be over.
const RETRY_EVERY: u32 = 256;

/// Decoder of batches by a fixed list of fields. Shared by reference; batches are independent.
#[derive(Debug)]
pub struct Decoder {
    fields: Vec<Field>,
    threads: ThreadPool,
    buffers: BufferPool,
    device: Option<Arc<Device>>,
    /// Batches in a row that the device's decoder failed on, or was not asked for.
    failures: AtomicU32,
}

/// Inputs of one batch.
struct Batch<'a> {
    records: &'a [Record<'a>],
    seed: u64,
    epoch: u64,
    buffers: &'a BufferPool,
    threads: &'a ThreadPool,
    slowest: &'a Slowest,
}

/// A field's rows before it is known which of them are good.
enum Made<'a> {
    Rows(Rows),
    /// Images decoded by the CPU, and the name of each row's decoder.
    Images(Rows, Vec<Option<&'static str>>),
    /// Images for a device.
    Pictures(Pictures<'a>),
    Arrays(Arrays<'a>),
}

impl Decoder {
    /// Makes a decoder of `fields` on `threads` threads of its own; tensors take their memory from
    /// `buffers`. With a `device` all of them end up there, and it decodes the images. Threads may
    /// run where the caller may; if there are as many as CPUs, each has one of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with advice for an invalid field, or `threads` outside 1…1024;
    /// [`ErrorKind::Unavailable`] if the system denies the threads, or does not report their CPUs.
    pub fn new(
        fields: Vec<FieldSpec>,
        threads: usize,
        buffers: &BufferPool,
        device: Option<Arc<Device>>,
    ) -> Result<Self> {
        FieldSpec::check_all(&fields)?;
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(Error::new(ErrorKind::Invalid, "a decoder needs 1 to 1024 threads")
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
            return Err(Error::new(ErrorKind::Invalid, "a GPU decodes images of one size")
                .at("field", field.name())
                .advise("set size=, or use device=\"cpu\""));
        }
        if device.as_ref().is_some_and(|device| !device.decodes())
            && let Some(field) = fields.iter().find(|field| field.plan().is_some())
        {
            let what = "the GPU was opened for arrays only";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("field", field.name())
                .advise("open it with nvJPEG"));
        }
        let failures = AtomicU32::new(0);
        Ok(Self { fields, threads, buffers: buffers.clone(), device, failures })
    }

    /// Decodes `records` with the augmentation of (`seed`, `epoch`). A sample that cannot be
    /// decoded has no row and is listed as bad, with its first failed field. Without memory for the
    /// batch no record has a row, and each good one is listed with that error.
    ///
    /// With a device the result is queued there, and the device reads the records' memory until it
    /// is done. `around` is memory that holds all of it, so that neighbours are copied at once, or
    /// empty.
    ///
    /// # Errors
    /// The error of a device that can no longer be used.
    pub fn decode<'a>(
        &'a self,
        records: &'a [Record<'a>],
        around: &'a [u8],
        seed: u64,
        epoch: u64,
    ) -> Result<Decoded> {
        let slowest = Slowest::default();
        let (buffers, threads) = (&self.buffers, &self.threads);
        let batch = Batch { records, seed, epoch, buffers, threads, slowest: &slowest };
        let mut errors: Vec<Option<Error>> = vec![None; records.len()];
        let failures = self.failures.load(Ordering::Relaxed);
        let is_asked = failures < FAILURES_MAX || failures.is_multiple_of(RETRY_EVERY);
        let all_here = (!is_asked).then_some(Reason::Failed);
        let mut outcome = self.outputs(&batch, around, all_here, &mut errors);
        if let Err(Failure::Decoder(error)) = outcome {
            let batches = if failures + 1 < FAILURES_MAX { "it" } else { "it and the next ones" };
            tracing::warn!(%error, "the GPU's decoder failed on a batch: the CPU decodes {batches}");
            outcome = self.outputs(&batch, around, Some(Reason::Failed), &mut errors);
            self.failures.fetch_add(1, Ordering::Relaxed);
        } else if !is_asked {
            self.failures.fetch_add(1, Ordering::Relaxed);
        } else if outcome.as_ref().is_ok_and(|decoded| self.is_by_device(decoded)) {
            self.failures.store(0, Ordering::Relaxed);
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
        decoded.slowest = slowest.into_list();
        Ok(decoded)
    }

    /// True if the device decoded images of a batch.
    fn is_by_device(&self, decoded: &Decoded) -> bool {
        let device = self.device.as_ref().filter(|device| device.decodes());
        let name = device.map(|device| device.decoder_name());
        name.is_some_and(|name| decoded.routes.keys().any(|(decoder, _)| *decoder == name))
    }

    /// Returns the columns of `batch` and the records that have a row.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] without memory for all of it; the device's error.
    fn outputs<'a>(
        &'a self,
        batch: &Batch<'a>,
        around: &'a [u8],
        all_here: Option<Reason>,
        errors: &mut [Option<Error>],
    ) -> std::result::Result<Decoded, Failure> {
        // On the caller's thread: one of the pool's would begin another batch while it waits.
        let fields = self.fields.iter();
        let made = fields.map(|field| self.made(field, batch, all_here, errors));
        let made: Vec<Made<'a>> = made.collect::<Result<_>>()?;
        // A sample is not at fault if memory ran out while it was decoded.
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
        let from_host = self.device.as_ref().is_some_and(|device| device.decodes_from_host());
        let files = settled.iter().flat_map(|(line, _)| line.files(from_host));
        let files: Vec<&[u8]> = files.collect();
        let start_ns = now_ns();
        let files = submission.as_mut().map(|submission| submission.bring(&files)).transpose()?;
        let brought = if files.is_some() { start_ns..now_ns() } else { 0..0 };
        let mut files = files.into_iter().flatten();
        let mut outputs = Vec::with_capacity(self.fields.len());
        for (field, (line, present)) in self.fields.iter().zip(settled) {
            let column = match (line, &mut submission) {
                (line, Some(submission)) => line.put(&mut files, from_host, submission)?,
                (Line::Made(column), None) => column,
                (_, None) => unreachable!("settled for a device"),
            };
            outputs.push(field.output(column, present));
        }
        let done = submission.map(Submission::finish).transpose()?;
        let (bad, slowest) = Default::default();
        Ok(Decoded { outputs, kept, bad, routes, done, brought, slowest })
    }

    /// Returns the rows in `kept` of a field, their presence, and their decoders.
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
            (Made::Images(rows, decoders), _) => {
                for decoder in kept.iter().filter_map(|row| decoders[*row]) {
                    *routes.entry((decoder, Reason::Device.name())).or_default() += 1;
                }
                let (column, present) = rows.keep(kept, &self.buffers)?;
                (Line::Made(column), present, None)
            }
            (Made::Rows(rows), device) => {
                let (column, present) = rows.keep(kept, &self.buffers)?;
                let reason = if device.is_some() { Reason::Ragged } else { Reason::Device };
                let route = field.has_arrays().then_some((CPU, reason.name()));
                (Line::Made(column), present, route)
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
