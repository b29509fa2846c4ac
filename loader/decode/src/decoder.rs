//! A batch's records to columns, on the decoder's own threads.
//!
//! Its rule: rows are decoded where they will stay, in the batch's memory, one task per sample and
//! field; the caller's thread waits. A sample that fails leaves a gap, and gaps are closed once at
//! the end by moving rows, never by decoding again.

mod rows;

use std::cell::RefCell;

use forebay_error::{Error, ErrorKind, Result};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::buffer::BufferPool;
use crate::column::{BadSample, Decoded, Output, Tensor};
use crate::draw::{Draw, field_id};
use crate::dtype::DType;
use crate::image::{ImagePlan, Ready, Scratch};
use crate::record::{Record, bad};
use crate::spec::{FieldKind, FieldSpec};
use crate::{json, npy, number};

use rows::Rows;

/// More threads than any node has cores are a mistake in a unit.
const THREADS_MAX: usize = 1024;

/// Reading a number costs less than handing it to another thread: such fields go in spans of this
/// many samples.
const LIGHT_SPAN: usize = 4096;

thread_local! {
    /// Lives as long as the pool's thread. No task yields to another while it holds this.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Decodes batches by a fixed list of fields. Shared by reference; each batch is independent.
#[derive(Debug)]
pub struct Decoder {
    fields: Vec<Field>,
    threads: ThreadPool,
    buffers: BufferPool,
}

#[derive(Debug)]
struct Field {
    spec: FieldSpec,
    id: u64,
    /// For an image field.
    image: Option<ImagePlan>,
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
    /// `buffers`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with advice when a field makes no sense or `threads` is not in
    /// 1…1024; [`ErrorKind::Unavailable`] when the system refuses the threads.
    pub fn new(fields: Vec<FieldSpec>, threads: usize, buffers: &BufferPool) -> Result<Self> {
        FieldSpec::check_all(&fields)?;
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(Error::new(ErrorKind::Invalid, "a decoder needs threads")
                .at("threads", threads)
                .advise(format!("use 1 to {THREADS_MAX}; one per core is enough")));
        }
        let threads = ThreadPoolBuilder::new()
            .num_threads(threads)
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
    /// is listed as bad, with the first of its fields that failed, and has no row.
    #[must_use]
    pub fn decode(&self, records: &[Record<'_>], seed: u64, epoch: u64) -> Decoded {
        let batch = Batch { records, seed, epoch, buffers: &self.buffers };
        let mut errors: Vec<Option<Error>> = vec![None; records.len()];
        let columns: Vec<Rows> = self.threads.install(|| {
            self.fields.iter().map(|field| field.decode(&batch, &mut errors)).collect()
        });
        let kept: Vec<usize> = (0..records.len()).filter(|&i| errors[i].is_none()).collect();
        let outputs = self.fields.iter().zip(columns).map(|(field, rows)| {
            let (column, present) = rows.keep(&kept, &self.buffers);
            let present = field.spec.optional.then_some(present);
            Output { name: field.spec.name.clone(), column, present }
        });
        let outputs = outputs.collect();
        let bad = errors.into_iter().enumerate();
        let bad = bad.filter_map(|(index, error)| error.map(|error| BadSample { index, error }));
        Decoded { outputs, kept, bad: bad.collect() }
    }
}

impl Field {
    fn new(spec: FieldSpec) -> Self {
        let image = match &spec.kind {
            FieldKind::Image(image) => Some(ImagePlan::new(image.clone())),
            _ => None,
        };
        Self { id: field_id(&spec.name), image, spec }
    }

    fn decode(&self, batch: &Batch<'_>, errors: &mut [Option<Error>]) -> Rows {
        if let Some(plan) = &self.image {
            return self.images(plan, batch, errors);
        }
        match &self.spec.kind {
            FieldKind::Int { path } => {
                let path = path.as_deref();
                self.scalars(DType::Int64, path.is_some(), batch, errors, |bytes, out| {
                    out.copy_from_slice(&number::integer(bytes, path)?.to_ne_bytes());
                    Ok(())
                })
            }
            FieldKind::Float { path, dtype } => {
                let (path, single) = (path.as_deref(), *dtype == DType::Float32);
                self.scalars(*dtype, path.is_some(), batch, errors, |bytes, out| {
                    let value = number::real(bytes, path)?;
                    if single {
                        out.copy_from_slice(&(value as f32).to_ne_bytes());
                    } else {
                        out.copy_from_slice(&value.to_ne_bytes());
                    }
                    Ok(())
                })
            }
            FieldKind::Text => {
                Rows::Text(self.values(false, batch, errors, |_, bytes| text(bytes)))
            }
            FieldKind::Json { path } => {
                let document =
                    |_: &Record<'_>, bytes: &[u8]| json::document(bytes, path.as_deref());
                Rows::Json(self.values(true, batch, errors, document))
            }
            FieldKind::Npy { .. } => {
                let array = |_: &Record<'_>, bytes: &[u8]| npy::array(bytes, batch.buffers);
                Rows::Tensors(self.values(true, batch, errors, array))
            }
            FieldKind::Bytes | FieldKind::Image(_) => {
                let slots = batch.records.par_iter().map(|_| ());
                Rows::Bytes(
                    self.each(false, batch, errors, slots, |record, ()| record.find(&self.spec)),
                )
            }
        }
    }

    fn images(&self, plan: &ImagePlan, batch: &Batch<'_>, errors: &mut [Option<Error>]) -> Rows {
        if let Some(shape) = plan.row_shape() {
            return self.fixed(plan.dtype(), &shape, true, batch, errors, |record, bytes, out| {
                self.image(plan, batch, record, bytes, |ready| ready.finish(out))
            });
        }
        Rows::Tensors(self.values(true, batch, errors, |record, bytes| {
            self.image(plan, batch, record, bytes, |ready| {
                let shape = ready.shape().to_vec();
                let dtype = plan.dtype();
                let mut buffer = batch.buffers.take(shape.iter().product::<usize>() * dtype.size());
                ready.finish(buffer.as_bytes_mut());
                Tensor { dtype, shape, buffer }
            })
        }))
    }

    /// Prepares one image in the thread's scratch and lets `finish` take it from there.
    fn image<T>(
        &self,
        plan: &ImagePlan,
        batch: &Batch<'_>,
        record: &Record<'_>,
        bytes: &[u8],
        finish: impl FnOnce(&Ready<'_>) -> T,
    ) -> Result<T> {
        let draw = Draw {
            seed: batch.seed,
            epoch: batch.epoch,
            stream: record.stream,
            position: record.position,
            field: self.id,
            view: 0,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let finished = plan.prepare(bytes, &draw, scratch).map(|ready| finish(&ready));
            scratch.trim();
            finished
        })
    }

    fn scalars(
        &self,
        dtype: DType,
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&[u8], &mut [u8]) -> Result<()> + Sync,
    ) -> Rows {
        self.fixed(dtype, &[], heavy, batch, errors, |_, bytes, out| write(bytes, out))
    }

    /// Rows of one shape, written by `write` where they will stay.
    fn fixed(
        &self,
        dtype: DType,
        shape: &[usize],
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&Record<'_>, &[u8], &mut [u8]) -> Result<()> + Sync,
    ) -> Rows {
        let row = shape.iter().product::<usize>() * dtype.size();
        let mut buffer = batch.buffers.take(row * batch.records.len());
        let slots = buffer.as_bytes_mut().par_chunks_exact_mut(row);
        let present = self.each(heavy, batch, errors, slots, |record, out| {
            match record.bytes(&self.spec)? {
                Some(bytes) => write(record, bytes, out).map(Some),
                None => {
                    out.fill(0);
                    Ok(None)
                }
            }
        });
        let present = present.iter().map(Option::is_some).collect();
        Rows::Fixed { dtype, shape: shape.to_vec(), buffer, present }
    }

    /// Rows that own their value.
    fn values<T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        read: impl Fn(&Record<'_>, &[u8]) -> Result<T> + Sync,
    ) -> Vec<Option<T>> {
        let slots = batch.records.par_iter().map(|_| ());
        self.each(heavy, batch, errors, slots, |record, ()| {
            record.bytes(&self.spec)?.map(|bytes| read(record, bytes)).transpose()
        })
    }

    /// Runs `one` for every record that is still good; `None` is an absent optional field.
    fn each<S: Send, T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        slots: impl IndexedParallelIterator<Item = S>,
        one: impl Fn(&Record<'_>, S) -> Result<Option<T>> + Sync,
    ) -> Vec<Option<T>> {
        let tasks = batch.records.par_iter().zip(errors.par_iter_mut()).zip(slots);
        let run = |((record, error), slot): ((&Record<'_>, &mut Option<Error>), S)| {
            if error.is_some() {
                return None;
            }
            one(record, slot).unwrap_or_else(|why| {
                *error = Some(record.locate(why, &self.spec));
                None
            })
        };
        if heavy {
            tasks.with_max_len(1).map(run).collect()
        } else {
            tasks.with_min_len(LIGHT_SPAN).map(run).collect()
        }
    }
}

fn text(bytes: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|error| bad(format!("the text is not UTF-8: {error}")))
}
