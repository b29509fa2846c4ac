//! Rows of tables, one after the other, from any row on.

use std::fmt;

use forebay_error::{Error, ErrorKind, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::serialized_reader::ReadOptionsBuilder;
use parquet::record::Row;
use parquet::record::reader::RowIter;

use super::cell::{Cell, cell};
use super::{guarded, projection, wrong};
use crate::pack::origin::{Origin, changed};

/// Values of a column that are decoded at once: each may be an image.
const ROWS_AT_ONCE: usize = 8;

/// Place in a table.
pub(in crate::pack) struct Cursor {
    pub(in crate::pack) file: u32,
    rows: RowIter<'static>,
    /// Number of the row that comes next.
    next: u64,
    row: Option<Row>,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Cursor({} of {})", self.next, self.file)
    }
}

impl Cursor {
    /// Opens a table to read it from the row group of `row` on.
    pub(in crate::pack) fn new(
        origin: &Origin,
        file: u32,
        row: u64,
        columns: &[String],
    ) -> Result<Self> {
        let opened = origin.open()?;
        guarded(|| {
            let plain = SerializedFileReader::new(
                opened
                    .try_clone()
                    .map_err(|error| Error::from_io("open a Parquet file", &error))?,
            )
            .map_err(|error| wrong(&error))?;
            let (mut first, mut next) = (0, 0);
            for group in plain.metadata().row_groups() {
                let rows = u64::try_from(group.num_rows()).unwrap_or(0);
                if next + rows > row {
                    break;
                }
                (first, next) = (first + 1, next + rows);
            }
            let from = move |_: &RowGroupMetaData, group: usize| group >= first;
            let options = ReadOptionsBuilder::new().with_predicate(Box::new(from)).build();
            let reader = SerializedFileReader::new_with_options(opened, options);
            let reader = reader.map_err(|error| wrong(&error))?;
            let schema = reader.metadata().file_metadata().schema_descr().root_schema();
            let kept = projection(schema, columns)?;
            let rows = RowIter::from_file_into(Box::new(reader)).with_batch_size(ROWS_AT_ONCE);
            let rows = rows.project(Some(kept)).map_err(|error| wrong(&error))?;
            Ok(Self { file, rows: rows.with_batch_size(ROWS_AT_ONCE), next, row: None })
        })
    }

    /// Returns true if a row can be reached by reading on.
    pub(in crate::pack) fn is_before(&self, file: u32, row: u64) -> bool {
        self.file == file && (self.next <= row || (self.next == row + 1 && self.row.is_some()))
    }

    /// Reads on until row `row`.
    pub(in crate::pack) fn turn_to(&mut self, row: u64) -> Result<()> {
        while self.next <= row {
            let rows = &mut self.rows;
            let read = guarded(|| match rows.next() {
                Some(row) => row.map(Some).map_err(|error| wrong(&error)),
                None => Ok(None),
            });
            self.row = read?;
            if self.row.is_none() {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the Parquet file has fewer rows than it says",
                ));
            }
            self.next += 1;
        }
        Ok(())
    }

    /// A cell of the row that was turned to.
    pub(super) fn cell(&self, column: usize) -> Result<Option<Cell<'_>>> {
        let row = self.row.as_ref().ok_or_else(changed)?;
        let (_, field) = row.get_column_iter().nth(column).ok_or_else(changed)?;
        cell(field)
    }

    /// The bytes of a cell of the row that was turned to.
    pub(in crate::pack) fn bytes(&self, column: usize) -> Result<std::borrow::Cow<'_, [u8]>> {
        Ok(self.cell(column)?.ok_or_else(changed)?.bytes)
    }
}
