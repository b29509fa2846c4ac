//! One field of a batch to rows: finds the bytes, decodes them, keeps the reason when it cannot.
//!
//! Its rule: one task per sample, and a sample that has failed is not touched again, so the error
//! a caller sees is that of the first field, in the order asked for, that failed.

mod pictures;

pub use pictures::Routes;
pub(super) use pictures::{CPU, Pictures};

use std::cell::RefCell;
use std::collections::BTreeMap;

use forebay_error::{Error, Result};
use rayon::prelude::*;

use super::Batch;
use super::rows::Rows;
use crate::column::{Column, Output, Tensor};
use crate::draw::{Draw, field_id};
use crate::dtype::DType;
use crate::image::{ImagePlan, Ready, Scratch};
use crate::record::{Record, bad};
use crate::spec::{FieldKind, FieldSpec, Ragged};
use crate::{json, label, npy, number};

/// Reading a number costs less than handing it to another thread: such fields go in spans of this
/// many samples.
const LIGHT_SPAN: usize = 4096;

thread_local! {
    /// Lives as long as the pool's thread. No task yields to another while it holds this.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A field with its specification worked out.
#[derive(Debug)]
pub(super) struct Field {
    spec: FieldSpec,
    id: u64,
    job: Job,
}

/// What is done with a field's bytes.
#[derive(Debug)]
enum Job {
    Image(ImagePlan),
    Int { path: Option<String> },
    Float { path: Option<String>, dtype: DType },
    Label { classes: BTreeMap<String, i64>, path: Option<String> },
    Text,
    Json { path: Option<String> },
    Npy,
    Bytes,
}

impl Field {
    pub(super) fn new(spec: FieldSpec) -> Self {
        let job = match spec.kind.clone() {
            FieldKind::Image(image) => Job::Image(ImagePlan::new(image)),
            FieldKind::Int { path } => Job::Int { path },
            FieldKind::Float { path, dtype } => Job::Float { path, dtype },
            FieldKind::Label { classes, path } => Job::Label { classes, path },
            FieldKind::Text => Job::Text,
            FieldKind::Json { path } => Job::Json { path },
            FieldKind::Npy { ragged: Ragged::List } => Job::Npy,
            FieldKind::Bytes => Job::Bytes,
        };
        Self { id: field_id(&spec.name), job, spec }
    }

    /// The output's key.
    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    /// The rows under the field's name.
    pub(super) fn output(&self, column: Column, present: Vec<bool>) -> Output {
        let present = self.spec.optional.then_some(present);
        Output { name: self.spec.name.clone(), column, present }
    }

    /// One row per record; why a record has none goes to `errors`, which has one entry for each.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for the rows.
    pub(super) fn decode(&self, batch: &Batch<'_>, errors: &mut [Option<Error>]) -> Result<Rows> {
        Ok(match &self.job {
            Job::Image(plan) => self.images(plan, batch, errors)?,
            Job::Int { path } => {
                self.numbers(DType::Int64, path.as_deref(), batch, errors, |text, out| {
                    out.copy_from_slice(&number::integer(text)?.to_ne_bytes());
                    Ok(())
                })?
            }
            Job::Float { path, dtype } => {
                self.numbers(*dtype, path.as_deref(), batch, errors, |text, out| {
                    let value = number::real(text)?;
                    match dtype {
                        DType::Float32 => out.copy_from_slice(&(value as f32).to_ne_bytes()),
                        _ => out.copy_from_slice(&value.to_ne_bytes()),
                    }
                    Ok(())
                })?
            }
            Job::Label { classes, path } => {
                let path = path.as_deref();
                self.numbers(DType::Int64, path, batch, errors, |text, out| {
                    let class = label::class(text, path.is_some(), classes)?;
                    out.copy_from_slice(&class.to_ne_bytes());
                    Ok(())
                })?
            }
            Job::Text => {
                Rows::Text(self.values(false, batch, errors, |_, bytes| text(bytes).map(Some)))
            }
            Job::Json { path } => Rows::Json(self.values(true, batch, errors, |_, bytes| {
                let found = json::document(bytes, path.as_deref())?;
                self.part(found, path.as_deref())
            })),
            Job::Npy => {
                let rows = self.values(true, batch, errors, |_, bytes| {
                    npy::array(bytes, batch.buffers).map(Some)
                });
                Rows::Tensors { rows, none: None }
            }
            Job::Bytes => {
                let slots = batch.records.par_iter().map(|_| ());
                let find = |record: &Record<'_>, ()| record.find(&self.spec);
                Rows::Bytes(self.each(false, batch, errors, slots, find))
            }
        })
    }

    /// Numbers that stand alone, or at `path` of a JSON document.
    fn numbers(
        &self,
        dtype: DType,
        path: Option<&str>,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&str, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Rows> {
        self.fixed(dtype, &[], path.is_some(), batch, errors, |_, bytes, out| {
            let Some(path) = path else { return write(number::text(bytes)?, out).map(Some) };
            let found = self.part(json::part(bytes, path)?, Some(path))?;
            let written = found.map(|text| write(text, out)).transpose();
            written.map_err(|error| error.at("path", path))
        })
    }

    /// What was found at `path` of a JSON document, which an optional field may lack.
    fn part<T>(&self, found: Option<T>, path: Option<&str>) -> Result<Option<T>> {
        if found.is_some() || self.spec.optional {
            return Ok(found);
        }
        Err(bad("the JSON document has no such part")
            .at("path", path.unwrap_or_default())
            .advise("name a part that it has, or set optional=True"))
    }

    fn images(
        &self,
        plan: &ImagePlan,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
    ) -> Result<Rows> {
        if let Some(shape) = plan.row_shape() {
            return self.fixed(plan.dtype(), &shape, true, batch, errors, |record, bytes, out| {
                self.image(plan, batch, record, bytes, |ready| ready.finish(out)).map(Some)
            });
        }
        let rows = self.values(true, batch, errors, |record, bytes| {
            let tensor = self.image(plan, batch, record, bytes, |ready| {
                let shape = ready.shape();
                let dtype = plan.dtype();
                let size = shape.iter().product::<usize>() * dtype.size();
                let mut buffer = batch.buffers.take(size)?;
                ready.finish(buffer.as_bytes_mut())?;
                Ok(Tensor { dtype, shape, buffer })
            });
            tensor.map(Some)
        });
        Ok(Rows::Tensors { rows, none: Some((plan.dtype(), plan.no_shape())) })
    }

    /// Prepares one image in the thread's scratch and lets `finish` take it from there.
    fn image<T>(
        &self,
        plan: &ImagePlan,
        batch: &Batch<'_>,
        record: &Record<'_>,
        bytes: &[u8],
        finish: impl FnOnce(Ready<'_>) -> Result<T>,
    ) -> Result<T> {
        let draw = self.draw(batch, record);
        SCRATCH.with_borrow_mut(|scratch| {
            let finished = plan.prepare(bytes, &draw, scratch).and_then(finish);
            scratch.trim();
            finished
        })
    }

    /// What the first of a record's crops is drawn by.
    fn draw(&self, batch: &Batch<'_>, record: &Record<'_>) -> Draw {
        Draw {
            seed: batch.seed,
            epoch: batch.epoch,
            stream: record.stream,
            position: record.position,
            field: self.id,
            view: 0,
        }
    }

    /// Rows of one shape, written by `write` where they will stay, unless it says `None`.
    fn fixed(
        &self,
        dtype: DType,
        shape: &[usize],
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&Record<'_>, &[u8], &mut [u8]) -> Result<Option<()>> + Sync,
    ) -> Result<Rows> {
        let row = shape.iter().product::<usize>() * dtype.size();
        let mut buffer = batch.buffers.take(row.saturating_mul(batch.records.len()))?;
        let slots = buffer.as_bytes_mut().par_chunks_exact_mut(row);
        let present = self.each(heavy, batch, errors, slots, |record, out| {
            let bytes = record.bytes(&self.spec)?;
            let written = bytes.map(|bytes| write(record, bytes, out)).transpose()?.flatten();
            if written.is_none() {
                out.fill(0);
            }
            Ok(written)
        });
        let present = present.iter().map(Option::is_some).collect();
        Ok(Rows::Fixed { dtype, shape: shape.to_vec(), buffer, present })
    }

    /// Rows that own their value.
    fn values<T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        read: impl Fn(&Record<'_>, &[u8]) -> Result<Option<T>> + Sync,
    ) -> Vec<Option<T>> {
        let slots = batch.records.par_iter().map(|_| ());
        self.each(heavy, batch, errors, slots, |record, ()| {
            let bytes = record.bytes(&self.spec)?;
            Ok(bytes.map(|bytes| read(record, bytes)).transpose()?.flatten())
        })
    }

    /// Runs `one` for every record that is still good; `None` is an absent optional field.
    fn each<'a, S: Send, T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
        slots: impl IndexedParallelIterator<Item = S>,
        one: impl Fn(&Record<'a>, S) -> Result<Option<T>> + Sync,
    ) -> Vec<Option<T>> {
        let tasks = batch.records.par_iter().zip(errors.par_iter_mut()).zip(slots);
        let run = |((record, error), slot): ((&Record<'a>, &mut Option<Error>), S)| {
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
