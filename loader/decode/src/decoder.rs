//! A batch's records to columns, on the decoder's own threads.
//!
//! Its rule: rows are decoded where they will stay, in the batch's memory, one task per sample and
//! field; the caller's thread waits. A sample that fails leaves a gap, and gaps are closed once at
//! the end by moving rows, never by decoding again.

mod cores;
mod field;
mod rows;

use forebay_error::{Error, ErrorKind, Result};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::buffer::BufferPool;
use crate::column::{BadSample, Decoded, Output};
use crate::record::Record;
use crate::spec::FieldSpec;

use field::Field;
use rows::Rows;

/// More threads than any node has cores are a mistake in a unit.
const THREADS_MAX: usize = 1024;

/// Decodes batches by a fixed list of fields. Shared by reference; each batch is independent.
#[derive(Debug)]
pub struct Decoder {
    fields: Vec<Field>,
    threads: ThreadPool,
    buffers: BufferPool,
}

/// What one batch is decoded with.
struct Batch<'a> {
    records: &'a [Record<'a>],
    seed: u64,
    epoch: u64,
    buffers: &'a BufferPool,
}

impl Decoder {
    /// A decoder of `fields` on `threads` threads of its own; tensors take their memory from
    /// `buffers`. Threads run where the caller's may; if they are as many as the CPUs there, each has one of
    /// its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with advice when a field makes no sense or `threads` is not in
    /// 1…1024; [`ErrorKind::Unavailable`] when the system refuses the threads, or to tell their CPUs.
    pub fn new(fields: Vec<FieldSpec>, threads: usize, buffers: &BufferPool) -> Result<Self> {
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
        let fields = fields.into_iter().map(Field::new).collect();
        Ok(Self { fields, threads, buffers: buffers.clone() })
    }

    /// Decodes `records` with the augmentation of (`seed`, `epoch`). A sample that cannot be decoded
    /// is listed as bad, with the first of its fields that failed, and has no row. When there is no
    /// memory for the batch, no record has a row, and each that was good is listed with that error.
    #[must_use]
    pub fn decode(&self, records: &[Record<'_>], seed: u64, epoch: u64) -> Decoded {
        let batch = Batch { records, seed, epoch, buffers: &self.buffers };
        let mut errors: Vec<Option<Error>> = vec![None; records.len()];
        let (outputs, kept) = match self.outputs(&batch, &mut errors) {
            Ok(whole) => whole,
            Err(full) => {
                for error in &mut errors {
                    error.get_or_insert_with(|| full.clone());
                }
                let none = Batch { records: &[], ..batch };
                self.outputs(&none, &mut []).expect("no rows need no memory")
            }
        };
        let bad = errors.into_iter().enumerate();
        let bad = bad.filter_map(|(index, error)| error.map(|error| BadSample { index, error }));
        Decoded { outputs, kept, bad: bad.collect() }
    }

    /// The columns of `batch` and the records that have a row.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when there is no memory for all of it.
    fn outputs(
        &self,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
    ) -> Result<(Vec<Output>, Vec<usize>)> {
        let columns: Vec<Rows> = self.threads.install(|| {
            self.fields.iter().map(|field| field.decode(batch, errors)).collect::<Result<_>>()
        })?;
        // That memory ran out at one sample is not that sample's fault.
        let full = |error: &&Error| error.kind() == ErrorKind::Full;
        if let Some(error) = errors.iter().flatten().find(full) {
            return Err(error.clone());
        }
        let kept: Vec<usize> = (0..errors.len()).filter(|&i| errors[i].is_none()).collect();
        let outputs = self.fields.iter().zip(columns).map(|(field, rows)| {
            let (column, present) = rows.keep(&kept, &self.buffers)?;
            Ok(field.output(column, present))
        });
        Ok((outputs.collect::<Result<_>>()?, kept))
    }
}
