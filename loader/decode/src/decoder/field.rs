//! One field of a batch to rows: finds the bytes, decodes them, and keeps the error of a failure.
//!
//! One task per sample, and a failed sample is not touched again, so the caller sees the
//! error of the first failed field in the requested order.

mod pictures;

pub(super) use pictures::Pictures;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use forebay_error::{Error, Result};
use rayon::ThreadPool;

use super::arrays::Arrays;
use super::ragged::{Form, Packing};
use super::rows::Rows;
use super::{Batch, Made};
use crate::array::Stored;
use crate::column::{Column, Output, Tensor};
use crate::draw::{Draw, field_id};
use crate::dtype::DType;
use crate::image::{ImagePlan, Ready, Scratch};
use crate::record::{Record, bad};
use crate::spec::{FieldKind, FieldSpec, RawSpec};
use crate::{json, label, npy, number};

/// Samples per task of cheap fields: reading a number costs less than handing it to another thread.
const LIGHT_SPAN: usize = 4096;

thread_local! {
    /// Lives as long as the pool's thread. No task yields to another while it holds this.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A field with its prepared specification.
#[derive(Debug)]
pub(super) struct Field {
    spec: FieldSpec,
    id: u64,
    job: DecodeTask,
}

/// Treatment of a field's bytes.
#[derive(Debug)]
enum DecodeTask {
    Image(ImagePlan),
    Int { path: Option<String> },
    Float { path: Option<String>, dtype: DType },
    Label { classes: BTreeMap<String, i64>, path: Option<String> },
    Text { ragged: Option<Packing> },
    Json { path: Option<String> },
    Npy { ragged: Option<Packing>, raw: Option<RawSpec> },
    Bytes,
}

impl Field {
    pub(super) fn new(spec: FieldSpec) -> Self {
        let job = match spec.kind.clone() {
            FieldKind::Image(image) => DecodeTask::Image(ImagePlan::new(image)),
            FieldKind::Int { path } => DecodeTask::Int { path },
            FieldKind::Float { path, dtype } => DecodeTask::Float { path, dtype },
            FieldKind::Label { classes, path } => DecodeTask::Label { classes, path },
            FieldKind::Text { ragged } => DecodeTask::Text { ragged: Packing::of(ragged) },
            FieldKind::Json { path } => DecodeTask::Json { path },
            FieldKind::Npy { ragged, raw } => DecodeTask::Npy { ragged: Packing::of(ragged), raw },
            FieldKind::Bytes => DecodeTask::Bytes,
        };
        let drawn = match &spec.kind {
            FieldKind::Image(image) => image.crop_with.as_deref().unwrap_or(&spec.name),
            _ => &spec.name,
        };
        Self { id: field_id(drawn), job, spec }
    }

    /// Returns the output's key.
    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the rows under the field's name.
    pub(super) fn output(&self, column: Column, present: Vec<bool>) -> Output {
        let present = self.spec.optional.then_some(present);
        Output { name: self.spec.name.clone(), column, present }
    }

    /// Decodes one row per record; errors go to `errors`, which has one entry for each.
    ///
    /// # Errors
    /// [`forebay_error::ErrorKind::Full`] when there is no memory for the rows.
    pub(super) fn decode<'a>(
        &self,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
    ) -> Result<Made<'a>> {
        Ok(Made::Rows(match &self.job {
            DecodeTask::Image(plan) => return self.images(plan, batch, errors),
            DecodeTask::Int { path } => {
                self.numbers(DType::Int64, path.as_deref(), batch, errors, |text, out| {
                    out.copy_from_slice(&number::integer(text)?.to_ne_bytes());
                    Ok(())
                })?
            }
            DecodeTask::Float { path, dtype } => {
                self.numbers(*dtype, path.as_deref(), batch, errors, |text, out| {
                    let value = number::real(text)?;
                    match dtype {
                        DType::Float32 => out.copy_from_slice(&(value as f32).to_ne_bytes()),
                        _ => out.copy_from_slice(&value.to_ne_bytes()),
                    }
                    Ok(())
                })?
            }
            DecodeTask::Label { classes, path } => {
                let path = path.as_deref();
                self.numbers(DType::Int64, path, batch, errors, |text, out| {
                    let class = label::class(text, path.is_some(), classes)?;
                    out.copy_from_slice(&class.to_ne_bytes());
                    Ok(())
                })?
            }
            DecodeTask::Text { ragged: None } => {
                Rows::Text(
                    self.values(false, batch, errors, |_, bytes| Ok(Some(text(bytes)?.to_owned()))),
                )
            }
            DecodeTask::Text { ragged: Some(packing) } => {
                let form = Form { dtype: DType::Uint8, rest: Vec::new() };
                self.ragged(*packing, Some(form), batch, errors, |bytes| {
                    let text = text(bytes)?;
                    Ok(bytes_of(&text[..text.floor_char_boundary(packing.len_max())]))
                })?
            }
            DecodeTask::Json { path } => {
                Rows::Json(self.values(true, batch, errors, |_, bytes| {
                    let found = json::document(bytes, path.as_deref())?;
                    self.part(found, path.as_deref())
                }))
            }
            DecodeTask::Npy { ragged: None, raw } => {
                return Ok(Made::Arrays(self.arrays(raw.as_ref(), batch, errors)));
            }
            DecodeTask::Npy { ragged: Some(packing), raw: None } => {
                self.ragged(*packing, None, batch, errors, npy::array)?
            }
            DecodeTask::Npy { ragged: Some(packing), raw: Some(raw) } => {
                let rest = raw.no_shape().split_off(1);
                let form = Form { dtype: raw.dtype, rest };
                self.ragged(*packing, Some(form), batch, errors, |bytes| raw.read(bytes))?
            }
            DecodeTask::Bytes => {
                let slots = batch.records.iter().map(|_| ());
                let find = |record: &Record<'_>, ()| record.find(&self.spec);
                Rows::Bytes(self.each(false, batch, errors, slots, find))
            }
        }))
    }

    /// True if its rows are arrays, which are counted by decoder.
    pub(super) fn has_arrays(&self) -> bool {
        matches!(self.job, DecodeTask::Npy { .. })
    }

    /// Reads numbers that stand alone, or at `path` of a JSON document.
    fn numbers(
        &self,
        dtype: DType,
        path: Option<&str>,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&str, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Rows> {
        let made = self.fixed(dtype, &[], path.is_some(), batch, errors, |_, bytes, out| {
            let Some(path) = path else { return write(number::text(bytes)?, out).map(Some) };
            let found = self.part(json::part(bytes, path)?, Some(path))?;
            let written = found.map(|text| write(text, out)).transpose();
            written.map_err(|error| error.at("path", path))
        });
        made.map(|(rows, _)| rows)
    }

    /// Checks a value found at `path` of a JSON document, which an optional field may lack.
    fn part<T>(&self, found: Option<T>, path: Option<&str>) -> Result<Option<T>> {
        if found.is_some() || self.spec.optional {
            return Ok(found);
        }
        Err(bad("the JSON document has no value at this path")
            .at("path", path.unwrap_or_default())
            .advise("use a path that it has, or set optional=True"))
    }

    /// Finds the arrays of a field with unpacked rows, leaving their elements in place.
    fn arrays<'a>(
        &self,
        raw: Option<&RawSpec>,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
    ) -> Arrays<'a> {
        let slots = batch.records.iter().map(|_| ());
        let rows = self.each(false, batch, errors, slots, |record, ()| {
            let bytes = record.bytes(&self.spec)?;
            let read = |bytes| raw.map_or_else(|| npy::array(bytes), |raw| raw.read(bytes));
            bytes.map(read).transpose()
        });
        let all = raw.and_then(|raw| Some((raw.dtype, raw.row_shape()?)));
        Arrays { rows, all, none: raw.map(|raw| (raw.dtype, raw.no_shape())) }
    }

    /// Packs rows of different length, of `form` if that is known beforehand. `read` runs first for
    /// all rows: a row's place depends on the others.
    fn ragged(
        &self,
        packing: Packing,
        form: Option<Form>,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        read: impl for<'b> Fn(&'b [u8]) -> Result<Stored<'b>> + Sync,
    ) -> Result<Rows> {
        let slots = batch.records.iter().map(|_| ());
        let mut rows = self.each(false, batch, errors, slots, |record, ()| {
            let bytes = record.bytes(&self.spec)?;
            let stored = bytes.map(&read).transpose()?;
            stored.iter().try_for_each(|stored| packing.check(stored))?;
            Ok(stored)
        });
        let form = form.or_else(|| Form::of_most(rows.iter().flatten()));
        for ((row, record), error) in rows.iter_mut().zip(batch.records).zip(errors) {
            let fits = row.as_ref().zip(form.as_ref()).map(|(row, form)| form.check(row));
            if let Some(Err(why)) = fits {
                *error = Some(record.locate(why, &self.spec));
                *row = None;
            }
        }
        let packed = batch.threads.install(|| packing.rows(form, &rows, batch.buffers));
        packed.map(Rows::Ragged)
    }

    fn images<'a>(
        &self,
        plan: &ImagePlan,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
    ) -> Result<Made<'a>> {
        let dtype = plan.dtype();
        if let Some(shape) = plan.row_shape() {
            let made = self.fixed(dtype, &shape, true, batch, errors, |record, bytes, out| {
                self.image(plan, batch, record, bytes, |ready| {
                    let decoder = ready.decoder;
                    ready.finish(out);
                    Ok(Some(decoder))
                })
            });
            return made.map(|(rows, decoders)| Made::Images(rows, decoders));
        }
        let made = self.values(true, batch, errors, |record, bytes| {
            let made = self.image(plan, batch, record, bytes, |ready| {
                let (shape, decoder) = (ready.shape(), ready.decoder);
                let size = shape.iter().product::<usize>() * dtype.size();
                let mut buffer = batch.buffers.take(size)?;
                ready.finish(buffer.as_bytes_mut());
                Ok((Tensor { dtype, shape, buffer }, decoder))
            });
            made.map(Some)
        });
        let (rows, decoders) = made.into_iter().map(Option::unzip).unzip();
        let rows = Rows::Tensors { rows, none: Some((dtype, plan.no_shape())) };
        Ok(Made::Images(rows, decoders))
    }

    /// Prepares one image in the thread's scratch and passes it to `finish`.
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

    /// Returns the random draw of a record's first crop.
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

    /// Makes rows of one shape, which `write` fills in place, unless it returns `None`; returns
    /// what it returned for each as well.
    fn fixed<T: Send>(
        &self,
        dtype: DType,
        shape: &[usize],
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        write: impl Fn(&Record<'_>, &[u8], &mut [u8]) -> Result<Option<T>> + Sync,
    ) -> Result<(Rows, Vec<Option<T>>)> {
        let row = shape.iter().product::<usize>() * dtype.size();
        let mut buffer = batch.buffers.take(row.saturating_mul(batch.records.len()))?;
        let slots = buffer.as_bytes_mut().chunks_exact_mut(row);
        let made = self.each(heavy, batch, errors, slots, |record, out| {
            let bytes = record.bytes(&self.spec)?;
            let written = bytes.map(|bytes| write(record, bytes, out)).transpose()?.flatten();
            if written.is_none() {
                out.fill(0);
            }
            Ok(written)
        });
        let present = made.iter().map(Option::is_some).collect();
        Ok((Rows::Fixed { dtype, shape: shape.to_vec(), buffer, present }, made))
    }

    /// Makes rows that own their value.
    fn values<T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'_>,
        errors: &mut [Option<Error>],
        read: impl Fn(&Record<'_>, &[u8]) -> Result<Option<T>> + Sync,
    ) -> Vec<Option<T>> {
        let slots = batch.records.iter().map(|_| ());
        self.each(heavy, batch, errors, slots, |record, ()| {
            let bytes = record.bytes(&self.spec)?;
            Ok(bytes.map(|bytes| read(record, bytes)).transpose()?.flatten())
        })
    }

    /// Runs `one` for every record that is still good; `None` is a missing optional field.
    ///
    /// Each heavy record is a task of its own, and the caller's thread waits for them without
    /// taking others. Free threads take tasks in the order in which batches and records come, so
    /// none idles behind a slow record while a later batch has work.
    fn each<'a, S: Send, T: Send>(
        &self,
        heavy: bool,
        batch: &Batch<'a>,
        errors: &mut [Option<Error>],
        slots: impl Iterator<Item = S>,
        one: impl Fn(&Record<'a>, S) -> Result<Option<T>> + Sync,
    ) -> Vec<Option<T>> {
        let mut all: Vec<Option<T>> = batch.records.iter().map(|_| None).collect();
        let run = |Task { number, record, error, slot, made }: Task<'_, 'a, S, T>| {
            if error.is_some() {
                return;
            }
            let start = Instant::now();
            match one(record, slot) {
                Ok(found) => *made = found,
                Err(why) => *error = Some(record.locate(why, &self.spec)),
            }
            if heavy {
                batch.slowest.note(number, &self.spec.name, start.elapsed());
            }
        };
        let records = batch.records.iter().enumerate();
        let tasks = records.zip(errors).zip(slots).zip(&mut all).map(|parts| {
            let ((((number, record), error), slot), made) = parts;
            Task { number, record, error, slot, made }
        });
        if !heavy && batch.records.len() <= LIGHT_SPAN {
            tasks.for_each(run);
        } else {
            in_tasks(batch.threads, tasks, if heavy { 1 } else { LIGHT_SPAN }, run);
        }
        all
    }
}

/// Runs all of `tasks` on the pool, `span` together, in their order as threads come free.
fn in_tasks<T: Send>(
    threads: &ThreadPool,
    mut tasks: impl Iterator<Item = T>,
    span: usize,
    run: impl Fn(T) + Sync,
) {
    let run = &run;
    threads.in_place_scope_fifo(|scope| {
        loop {
            let some: Vec<T> = tasks.by_ref().take(span).collect();
            if some.is_empty() {
                break;
            }
            scope.spawn_fifo(move |_| some.into_iter().for_each(run));
        }
    });
}

/// One record of a field: its number in the batch, and the places of its row.
struct Task<'t, 'a, S, T> {
    number: usize,
    record: &'t Record<'a>,
    error: &'t mut Option<Error>,
    slot: S,
    made: &'t mut Option<T>,
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| bad(format!("the text is not UTF-8: {error}")))
}

/// Returns a text as an array of its bytes.
fn bytes_of(text: &str) -> Stored<'_> {
    Stored {
        dtype: DType::Uint8,
        swapped: false,
        fortran_order: false,
        shape: vec![text.len()],
        elements: text.as_bytes(),
    }
}
