//! Lists of JSON objects, one a line.
//!
//! The names of an object's members are those of columns. A member that is missing or null is an
//! empty cell. Objects and lists are values as JSON text.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::Rows;

pub(super) fn read(list: &Path, rows: &mut Rows) -> Result<()> {
    let mut objects = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for (number, line) in
        BufReader::new(File::open(list).doing("read the list")?).lines().enumerate()
    {
        let line = line.doing("read the list")?;
        if line.trim().is_empty() {
            continue;
        }
        let object: Map<String, Value> = serde_json::from_str(&line).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("a line is no JSON object: {error}"))
                .at("line", number + 1)
        })?;
        for name in object.keys() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        objects.push(object);
    }
    rows.header(names.iter().map(String::as_str))?;
    for object in objects {
        let cells: Vec<String> = names
            .iter()
            .enumerate()
            .map(|(column, name)| {
                let text = text(object.get(name), rows.holds_values(column));
                text.ok_or_else(|| unfit(name, rows.next()))
            })
            .collect::<Result<_>>()?;
        rows.row(cells.iter().map(String::as_str))?;
    }
    Ok(())
}

/// A member as text; only a value may be something else than text.
fn text(member: Option<&Value>, value: bool) -> Option<String> {
    match member {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => value.then(|| other.to_string()),
    }
}

fn unfit(column: &str, row: usize) -> Error {
    Error::new(ErrorKind::Invalid, "a file or a key is not named by text")
        .at("column", column)
        .at("row", row)
        .advise("name a column of values with = behind it, as in \"cls=\"")
}
