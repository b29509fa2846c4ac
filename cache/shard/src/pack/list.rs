//! The rows of a list as samples.
//!
//! The header says what a column is. `key` holds keys, `cls=` holds the bytes of field
//! `cls` themselves, and any other name, such as `jpg`, is a field whose bytes are in the file that
//! the cell names. An empty cell is no field.

mod csv;
mod jsonl;
mod parquet;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::sample::{Content, Sample, Stamp};

/// The column of keys.
const KEY: &str = "key";

/// Last character of a value column's header.
const VALUE: char = '=';

/// Digits of the keys of a list that has none. They sort as the rows do up to a billion.
const KEY_DIGITS: usize = 9;

/// Returns true if `path` is a list, by its name.
pub(super) fn is_list(path: &Path) -> bool {
    Kind::of(path).is_some()
}

/// Returns true if `path` is a Parquet file, by its name.
pub(super) fn is_parquet(path: &Path) -> bool {
    matches!(Kind::of(path), Some(Kind::Parquet))
}

enum Kind {
    Csv,
    Tsv,
    Jsonl,
    Parquet,
}

impl Kind {
    fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// A sample for each row, in their order. Files lie below `root`, or beside the list; absolute
/// paths and `..` are taken as they are.
///
/// # Errors
/// `Invalid` for a header or a row that cannot be meant; `NotFound` for a file that is not there;
/// what the file system says. All name the list and the row, counted from 1.
pub(super) fn samples(list: &Path, root: Option<&Path>) -> Result<Vec<Sample>> {
    let beside = || list.parent().map(Path::to_owned).unwrap_or_default();
    let root = root.map_or_else(beside, Path::to_owned);
    let mut rows = Rows { root, columns: Vec::new(), samples: Vec::new() };
    let read = match Kind::of(list) {
        Some(Kind::Parquet) => parquet::read(list, &mut rows),
        Some(Kind::Jsonl) => jsonl::read(list, &mut rows),
        Some(Kind::Tsv) => csv::read(list, Some(b'\t'), &mut rows),
        Some(Kind::Csv) | None => csv::read(list, None, &mut rows),
    };
    read.map_err(|error| error.at("list", list.display()))?;
    Ok(rows.samples)
}

/// Content of a column.
enum Column {
    Key,
    Path(String),
    Value(String),
}

/// Takes in a list: its header, and then one row after the other.
struct Rows {
    root: PathBuf,
    columns: Vec<Column>,
    samples: Vec<Sample>,
}

impl Rows {
    fn header<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        for name in names {
            let column = match name.strip_suffix(VALUE) {
                _ if name == KEY => Column::Key,
                Some(field) => Column::Value(field.to_owned()),
                None => Column::Path(name.to_owned()),
            };
            let is_key = |column: &Column| matches!(column, Column::Key);
            if is_key(&column) && self.columns.iter().any(is_key) {
                return Err(Error::new(ErrorKind::Invalid, "a list has two columns of keys"));
            }
            if name.trim() != name || name.is_empty() {
                let error =
                    Error::new(ErrorKind::Invalid, "a column has no name, or blanks around it");
                return Err(error.at("column", name).advise(
                    "the first row names the columns: key, jpg (files), cls= (values); pandas writes \
                     none for its index by to_csv(…, index=False)",
                ));
            }
            self.columns.push(column);
        }
        if self.columns.iter().all(|column| matches!(column, Column::Key)) {
            return Err(Error::new(ErrorKind::Invalid, "a list has no column of fields"));
        }
        Ok(())
    }

    /// Returns true if a column holds the fields' own bytes.
    fn holds_values(&self, column: usize) -> bool {
        matches!(self.columns.get(column), Some(Column::Value(_)))
    }

    /// The row that comes next, counted from 1.
    fn next(&self) -> usize {
        self.samples.len() + 1
    }

    /// Takes a row; a cell that is empty is `""`.
    fn row<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let row = self.next();
        let mut key = None;
        let mut parts = Vec::with_capacity(self.columns.len());
        for (column, cell) in self.columns.iter().zip(cells) {
            match column {
                Column::Key => key = Some(cell),
                _ if cell.is_empty() => {}
                Column::Value(field) => {
                    parts.push((field.as_str(), cell.len() as u64, Content::Text(cell.into())));
                }
                Column::Path(field) => {
                    let (len, content) = file(&self.root.join(cell))
                        .map_err(|error| error.at("column", field).at("row", row))?;
                    parts.push((field.as_str(), len, content));
                }
            }
        }
        let made = match key {
            Some("") => Err(Error::new(ErrorKind::Invalid, "a row has no key")),
            Some(key) => Sample::new(key, parts),
            None => Sample::new(&format!("{:0KEY_DIGITS$}", row - 1), parts),
        };
        self.samples.push(made.map_err(|error| error.at("row", row))?);
        Ok(())
    }
}

fn file(path: &Path) -> Result<(u64, Content)> {
    let at = |error: Error| error.at("path", path.display());
    let file = fs::metadata(path).doing("measure a file").map_err(|error| match error.kind() {
        ErrorKind::NotFound => at(error).advise(
            "paths count from the list's folder, or from --root; a column of values is named with = \
             behind it, as in cls=",
        ),
        _ => at(error),
    })?;
    match file.is_file() {
        true => Ok((file.len(), Content::File(path.into(), Stamp::of(&file)))),
        false => Err(at(Error::new(ErrorKind::Invalid, "it is not a regular file"))),
    }
}
