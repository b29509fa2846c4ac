//! Lists with commas between the cells, as RFC 4180 and spreadsheets have them: quotes, line breaks
//! within quotes, a byte order mark.
//!
//! Every row has as many cells as the header.

use std::path::Path;

use csv::{ErrorKind as Wrong, ReaderBuilder, StringRecord};
use forebay_error::{Error, ErrorKind, Result};

use super::Rows;

pub(super) fn read(list: &Path, rows: &mut Rows) -> Result<()> {
    let mut reader = ReaderBuilder::new().from_path(list).map_err(|error| wrong(&error))?;
    rows.header(reader.headers().map_err(|error| wrong(&error))?)?;
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| wrong(&error))? {
        rows.row(&record)?;
    }
    Ok(())
}

fn wrong(error: &csv::Error) -> Error {
    let line = error.position().map(csv::Position::line);
    let what = match error.kind() {
        Wrong::Io(error) => return Error::from_io("read the list", error),
        Wrong::Utf8 { .. } => "a cell is not UTF-8".to_owned(),
        Wrong::UnequalLengths { expected_len, len, .. } => {
            format!("a row has {len} cells where the header has {expected_len}")
        }
        _ => format!("the list cannot be read: {error}"),
    };
    let wrong = Error::new(ErrorKind::Invalid, what);
    match line {
        Some(line) => wrong.at("line", line),
        None => wrong,
    }
}
