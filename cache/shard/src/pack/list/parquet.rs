//! Lists in Parquet, as data frames are kept.
//!
//! A cell is text, a number, a truth value or nothing; what would need a decision how to
//! write it down (times, decimals, lists) is refused, and so is binary data: a list names files,
//! and is held in memory.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::Rows;

/// Takes in every row. The crate means to answer damage with errors, but asserts here and there;
/// such a list is no more than damaged, either.
pub(super) fn read(list: &Path, rows: &mut Rows) -> Result<()> {
    let panicked = |_| Err(Error::new(ErrorKind::Invalid, "the list is damaged"));
    // Rows read until then are dropped with the error.
    catch_unwind(AssertUnwindSafe(|| read_rows(list, rows))).unwrap_or_else(panicked)
}

fn read_rows(list: &Path, rows: &mut Rows) -> Result<()> {
    let file = File::open(list).doing("read the list")?;
    let reader = SerializedFileReader::new(file).map_err(|error| wrong(&error))?;
    let schema = reader.metadata().file_metadata().schema_descr().root_schema();
    rows.header(schema.get_fields().iter().map(|field| field.name()))?;
    for row in reader.get_row_iter(None).map_err(|error| wrong(&error))? {
        let row = row.map_err(|error| wrong(&error))?;
        let cells: Vec<String> = row
            .get_column_iter()
            .enumerate()
            .map(|(column, (name, field))| {
                text(field, rows.holds_values(column)).ok_or_else(|| unfit(name, rows.next()))
            })
            .collect::<Result<_>>()?;
        rows.row(cells.iter().map(String::as_str))?;
    }
    Ok(())
}

/// A cell as text; a number is none where a path or a key is wanted.
fn text(field: &Field, value: bool) -> Option<String> {
    Some(match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        Field::Bytes(bytes) => std::str::from_utf8(bytes.data()).ok()?.to_owned(),
        _ if !value => return None,
        Field::Bool(value) => value.to_string(),
        Field::Byte(value) => value.to_string(),
        Field::Short(value) => value.to_string(),
        Field::Int(value) => value.to_string(),
        Field::Long(value) => value.to_string(),
        Field::UByte(value) => value.to_string(),
        Field::UShort(value) => value.to_string(),
        Field::UInt(value) => value.to_string(),
        Field::ULong(value) => value.to_string(),
        Field::Float(value) => value.to_string(),
        Field::Double(value) => value.to_string(),
        _ => return None,
    })
}

fn unfit(column: &str, row: usize) -> Error {
    Error::new(ErrorKind::Invalid, "a cell has a type that lists do not support")
        .at("column", column)
        .at("row", row)
        .advise(
            "keys and paths are text; a column of values is named with = behind it, as in cls=, and holds \
             text or numbers; drop other columns. A file whose columns hold the samples themselves \
             is packed with --field, as in --field image=jpg",
        )
}

fn wrong(error: &ParquetError) -> Error {
    Error::new(ErrorKind::Invalid, format!("the list cannot be read: {error}"))
}
