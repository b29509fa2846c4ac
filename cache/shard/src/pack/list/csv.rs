//! Lists with commas, semicolons or tabs between the cells, as RFC 4180 and spreadsheets have them:
//! quotes, line breaks within quotes, a byte order mark.
//!
//! Every row has as many cells as the header, which shows the separator: the one of its first
//! column's end.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use csv::{ErrorKind as Wrong, ReaderBuilder, StringRecord};
use forebay_error::{Doing, Error, ErrorKind, Result};

use super::Rows;

/// Longest header that is searched for a separator, in bytes: hundreds of columns.
const HEADER_MAX: u64 = 64 << 10;

/// Separators of a list that is not named after one.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

pub(super) fn read(list: &Path, separator: Option<u8>, rows: &mut Rows) -> Result<()> {
    let separator = separator.map_or_else(|| separator_of(list), Ok)?;
    let mut builder = ReaderBuilder::new();
    let mut reader = builder.delimiter(separator).from_path(list).map_err(|error| wrong(&error))?;
    rows.header(reader.headers().map_err(|error| wrong(&error))?)?;
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| wrong(&error))? {
        rows.row(&record)?;
    }
    Ok(())
}

/// Returns the first separator in the header, outside quotes; a comma if there is none.
fn separator_of(list: &Path) -> Result<u8> {
    let file = File::open(list).doing("read the list")?;
    let mut header = Vec::new();
    let mut lines = BufReader::new(file).take(HEADER_MAX);
    lines.read_until(b'\n', &mut header).doing("read the list")?;
    let mut quoted = false;
    let found = header.iter().find(|&&byte| {
        quoted ^= byte == b'"';
        !quoted && SEPARATORS.contains(&byte)
    });
    Ok(found.copied().unwrap_or(b','))
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
