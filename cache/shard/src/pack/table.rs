//! Rows of Parquet files as samples, as Hugging Face's `datasets` writes them.
//!
//! A column of images or sounds, `{bytes, path}`, becomes files; numbers and text become text;
//! nested values become JSON. Payload is not kept in memory: a row is read once for its lengths and
//! again when it is written.

mod cell;
mod cursor;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type;
use serde_json::Value;

use self::cell::{Cell, class_of};
use super::columns::{Class, Columns, Name, numbered_key};
use super::origin::{Origin, numbered};
use super::parallel::each;
use super::photos::added_bytes;
use super::sample::{Content, Sample};

pub(super) use self::cursor::Cursor;

/// Key of the document that `datasets` leaves in a Parquet file's metadata.
const FEATURES: &str = "huggingface";

/// Columns and classes of the samples of tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Columns that are read, in their order.
    pub(super) columns: Vec<String>,
    /// Names of classes by field.
    pub(super) classes: BTreeMap<String, Vec<String>>,
}

/// Returns true if a Parquet file holds samples, and is no list of files: it is of `datasets`, or
/// has nested columns.
///
/// # Errors
/// `Invalid` for a file that is not Parquet.
pub fn is_table(path: &Path) -> Result<bool> {
    let meta = metadata(path).map_err(|error| error.at("path", path.display()))?;
    let nested = || fields(&meta).iter().any(|field| field.is_group());
    Ok(features(&meta).is_some() || nested())
}

/// Every row of `paths`, in their order; with `jpeg_index`, an index is planned for photos.
///
/// # Errors
/// `Invalid` for files that differ in their columns, and for cells that cannot become fields;
/// what the file system says. They name file, row (from 1) and column.
pub(super) fn samples(
    paths: &[PathBuf],
    columns: &Columns,
    jpeg_index: bool,
    threads: NonZero<usize>,
) -> Result<(Vec<Origin>, Vec<Sample>, Tables)> {
    let mut origins = Vec::new();
    let mut starts = vec![0];
    let mut layout: Option<Layout> = None;
    for path in paths {
        let at = |error: Error| error.at("path", path.display());
        origins.push(Origin::look(path).map_err(at)?);
        let meta = metadata(path).map_err(at)?;
        let rows = u64::try_from(meta.file_metadata().num_rows()).unwrap_or(0);
        starts.push(starts.last().copied().unwrap_or(0) + rows);
        let own = Layout::of(&meta, columns, jpeg_index).map_err(at)?;
        if *layout.get_or_insert_with(|| own.clone()) != own {
            let what = "a file has other columns than the first";
            return Err(at(Error::new(ErrorKind::Invalid, what)));
        }
    }
    let layout = layout.unwrap_or_default();
    let read = |number: usize, stop: &_| {
        let rows = starts[number + 1] - starts[number];
        let found = layout.samples(&origins[number], numbered(number)?, starts[number], rows, stop);
        found.map_err(|error| error.at("path", origins[number].path.display()))
    };
    let samples = each(paths.len(), threads, read)?.into_iter().flatten().collect();
    let tables = Tables { classes: layout.classes(), columns: layout.columns };
    Ok((origins, samples, tables))
}

/// Columns of a table that are read, and what each becomes.
#[derive(Debug, Clone, Default, PartialEq)]
struct Layout {
    /// Columns that are read, in their order.
    columns: Vec<String>,
    /// Names of their fields; `None`: the column of keys.
    names: Vec<Option<Name>>,
    /// Names of classes by column.
    labels: HashMap<String, Vec<String>>,
    /// True if photos get an index.
    jpeg_index: bool,
}

impl Layout {
    fn of(meta: &ParquetMetaData, options: &Columns, jpeg_index: bool) -> Result<Self> {
        let known: Vec<String> = fields(meta).iter().map(|field| field.name().to_owned()).collect();
        options.check(&known)?;
        let is_key = |name: &str| options.key.as_deref() == Some(name);
        let mut classes = Vec::new();
        let mut columns = Vec::new();
        for field in fields(meta) {
            let name = field.name().to_owned();
            if !options.leaves_out(&name) {
                classes.push((name.clone(), class_of(field)?));
                columns.push(name);
            } else if is_key(&name) {
                columns.push(name);
            }
        }
        let mut chosen = Name::of(&classes, options).into_iter();
        let names =
            columns.iter().map(|name| if is_key(name) { None } else { chosen.next() }).collect();
        Ok(Self { columns, names, labels: labels(meta), jpeg_index })
    }

    /// The samples of one file.
    fn samples(
        &self,
        origin: &Origin,
        file: u32,
        start: u64,
        rows: u64,
        stop: &super::parallel::Stop,
    ) -> Result<Vec<Sample>> {
        let mut cursor = Cursor::new(origin, file, 0, &self.columns)?;
        let mut samples = Vec::new();
        for row in 0..rows {
            if stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(super::parallel::given_up());
            }
            let made = self.sample(&mut cursor, file, row, start + row);
            samples.push(made.map_err(|error| error.at("row", row + 1))?);
        }
        Ok(samples)
    }

    fn sample(&self, cursor: &mut Cursor, file: u32, row: u64, number: u64) -> Result<Sample> {
        cursor.turn_to(row)?;
        let mut key = None;
        let mut names = Vec::with_capacity(self.columns.len());
        let mut contents = Vec::with_capacity(self.columns.len());
        let mut indexes = Vec::with_capacity(self.columns.len());
        for (at, (column, name)) in self.columns.iter().zip(&self.names).enumerate() {
            let cell = cursor.cell(at).map_err(|error| error.at("column", column))?;
            match (name, cell) {
                (None, cell) => {
                    key = Some(text_of(cell).map_err(|error| error.at("column", column))?);
                }
                (Some(_), None) => {}
                (Some(name), Some(cell)) => {
                    let name = name.field(cell.ending).into_owned();
                    indexes.push(if self.jpeg_index { added_bytes(&name, &cell.bytes) } else { 0 });
                    names.push(name);
                    let content = Content::Cell { file, row, column: at as u32 };
                    contents.push((cell.bytes.len() as u64, content));
                }
            }
        }
        let key = key.unwrap_or_else(|| numbered_key(number));
        let parts = names.iter().zip(contents);
        let parts = parts.map(|(name, (len, content))| (name.as_str(), len, content));
        let mut sample = Sample::new(&key, parts)?;
        let fields = sample.fields_mut().iter_mut().zip(indexes);
        fields.for_each(|(field, bytes)| field.add_index(bytes));
        Ok(sample)
    }

    /// Names of classes by field.
    fn classes(&self) -> BTreeMap<String, Vec<String>> {
        let field = |(column, name): (&String, &Option<Name>)| {
            let names = self.labels.get(column)?;
            Some((name.as_ref()?.field(Class::Integer.ending()).into_owned(), names.clone()))
        };
        self.columns.iter().zip(&self.names).filter_map(field).collect()
    }
}

fn text_of(cell: Option<Cell>) -> Result<String> {
    let wrong = |what: &str| Error::new(ErrorKind::Invalid, what);
    let cell = cell.ok_or_else(|| wrong("a row has no key"))?;
    String::from_utf8(cell.bytes.into_owned()).map_err(|_| wrong("a key is not text"))
}

fn fields(meta: &ParquetMetaData) -> &[parquet::schema::types::TypePtr] {
    meta.file_metadata().schema_descr().root_schema().get_fields()
}

/// The document of `datasets` in a file's metadata.
fn features(meta: &ParquetMetaData) -> Option<Value> {
    let pairs = meta.file_metadata().key_value_metadata()?;
    let text = pairs.iter().find(|pair| pair.key == FEATURES)?.value.as_deref()?;
    serde_json::from_str(text).ok()
}

/// Names of classes by column, as `datasets` keeps them.
fn labels(meta: &ParquetMetaData) -> HashMap<String, Vec<String>> {
    let document = features(meta).unwrap_or_default();
    let features = document.pointer("/info/features").and_then(Value::as_object);
    let names = |(column, feature): (&String, &Value)| {
        let names = feature.get("names")?.as_array()?;
        let names: Option<Vec<String>> =
            names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
        Some((column.clone(), names?))
    };
    features.into_iter().flatten().filter_map(names).collect()
}

fn metadata(path: &Path) -> Result<ParquetMetaData> {
    let file = File::open(path).doing("open a Parquet file")?;
    guarded(|| {
        let reader = SerializedFileReader::new(file).map_err(|error| wrong(&error))?;
        Ok(reader.metadata().clone())
    })
}

/// Runs code of the crate: it means to answer damage with errors, but asserts here and there.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::new(ErrorKind::Invalid, "the Parquet file is damaged"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

fn wrong(error: &ParquetError) -> Error {
    Error::new(ErrorKind::Invalid, format!("the Parquet file cannot be read: {error}"))
}

/// The part of a schema with these columns.
fn projection(schema: &Type, columns: &[String]) -> Result<Type> {
    let kept =
        schema.get_fields().iter().filter(|field| columns.iter().any(|one| one == field.name()));
    let built =
        Type::group_type_builder(schema.name()).with_fields(kept.cloned().collect()).build();
    built.map_err(|error| wrong(&error))
}
