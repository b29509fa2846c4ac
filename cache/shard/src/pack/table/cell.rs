//! One cell of a table as a field's bytes.

use std::borrow::Cow;

use forebay_error::{Error, ErrorKind, Result};
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Number, Value};

use crate::pack::columns::{Class, sniff};

/// Columns of a file in a table, as `datasets` keeps images and sounds.
const BYTES: &str = "bytes";
const PATH: &str = "path";

/// Longest ending of a path that is taken for a file's format.
const ENDING_MAX: usize = 5;

/// A cell's bytes, and the ending of their format.
pub(super) struct Cell<'a> {
    pub(super) ending: &'a str,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// Returns the class of a column.
///
/// # Errors
/// `Invalid` for types that cannot become a field, which name the column.
pub(super) fn class_of(column: &Type) -> Result<Class> {
    if column.is_group() {
        return Ok(if is_file(column) { Class::File } else { Class::Json });
    }
    let info = column.get_basic_info();
    let is_text = matches!(
        info.logical_type_ref(),
        Some(LogicalType::String | LogicalType::Json | LogicalType::Enum)
    ) || matches!(
        info.converted_type(),
        ConvertedType::UTF8 | ConvertedType::JSON | ConvertedType::ENUM
    );
    let is_number = match info.logical_type_ref() {
        None => matches!(
            info.converted_type(),
            ConvertedType::NONE
                | ConvertedType::INT_8
                | ConvertedType::INT_16
                | ConvertedType::INT_32
                | ConvertedType::INT_64
                | ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64
        ),
        Some(kind) => matches!(kind, LogicalType::Integer { .. } | LogicalType::Float16),
    };
    match column.get_physical_type() {
        Physical::BYTE_ARRAY if is_text => Ok(Class::Text),
        Physical::BYTE_ARRAY if info.logical_type_ref().is_none() => Ok(Class::File),
        Physical::BOOLEAN | Physical::INT32 | Physical::INT64 if is_number => Ok(Class::Integer),
        Physical::FLOAT | Physical::DOUBLE => Ok(Class::Real),
        Physical::FIXED_LEN_BYTE_ARRAY if is_number && info.logical_type_ref().is_some() => {
            Ok(Class::Real)
        }
        _ => Err(unfit().at("column", column.name())),
    }
}

/// Returns true for a column `{bytes, path}`.
fn is_file(column: &Type) -> bool {
    let mut names: Vec<&str> = column.get_fields().iter().map(|field| field.name()).collect();
    names.sort_unstable();
    names == [BYTES, PATH]
}

/// A cell as bytes; nothing for a cell that is null.
pub(super) fn cell(field: &Field) -> Result<Option<Cell<'_>>> {
    let text = |class: Class, text: String| {
        Ok(Some(Cell { ending: class.ending(), bytes: Cow::Owned(text.into_bytes()) }))
    };
    match field {
        Field::Null => Ok(None),
        Field::Bytes(bytes) => {
            let bytes = bytes.data();
            Ok(Some(Cell { ending: sniff(bytes), bytes: Cow::Borrowed(bytes) }))
        }
        Field::Str(text) => {
            Ok(Some(Cell { ending: Class::Text.ending(), bytes: Cow::Borrowed(text.as_bytes()) }))
        }
        Field::Bool(value) => text(Class::Integer, u8::from(*value).to_string()),
        Field::Byte(_)
        | Field::Short(_)
        | Field::Int(_)
        | Field::Long(_)
        | Field::UByte(_)
        | Field::UShort(_)
        | Field::UInt(_)
        | Field::ULong(_) => text(Class::Integer, json(field)?.to_string()),
        Field::Float16(value) => text(Class::Real, value.to_string()),
        Field::Float(value) => text(Class::Real, value.to_string()),
        Field::Double(value) => text(Class::Real, value.to_string()),
        Field::Group(row) => match file(row)? {
            Some(file) => Ok(file),
            None => text(Class::Json, json(field)?.to_string()),
        },
        Field::ListInternal(_) | Field::MapInternal(_) => {
            text(Class::Json, json(field)?.to_string())
        }
        _ => Err(unfit()),
    }
}

/// The file in a cell `{bytes, path}`; `None` if the cell is something else.
fn file(row: &Row) -> Result<Option<Option<Cell<'_>>>> {
    let (mut bytes, mut path) = (None, None);
    for (name, field) in row.get_column_iter() {
        match (name.as_str(), field) {
            (BYTES, field) => bytes = Some(field),
            (PATH, field) => path = Some(field),
            _ => return Ok(None),
        }
    }
    let (Some(bytes), Some(path)) = (bytes, path) else { return Ok(None) };
    match (bytes, path) {
        (Field::Bytes(bytes), path) => {
            let bytes = bytes.data();
            let ending = match (sniff(bytes), path) {
                (found, Field::Str(path)) if found == Class::File.ending() => {
                    ending_of(path).unwrap_or(found)
                }
                (found, _) => found,
            };
            Ok(Some(Some(Cell { ending, bytes: Cow::Borrowed(bytes) })))
        }
        (Field::Null, Field::Null) => Ok(Some(None)),
        (Field::Null, Field::Str(path)) => {
            let what = "a file is named, and its bytes are not in the table";
            Err(Error::new(ErrorKind::Invalid, what)
                .at("file", path)
                .advise("embed the files first: datasets' push_to_hub and embed_table_storage do"))
        }
        _ => Ok(None),
    }
}

/// The ending of a path, if it is one of a format.
fn ending_of(path: &str) -> Option<&str> {
    let (_, ending) = path.rsplit_once('.')?;
    let plain = ending.chars().all(|one| one.is_ascii_alphanumeric());
    (plain && !ending.is_empty() && ending.len() <= ENDING_MAX).then_some(ending)
}

/// A nested value as JSON.
fn json(field: &Field) -> Result<Value> {
    let real = |value: f64| Number::from_f64(value).map(Value::Number).ok_or_else(not_finite);
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float16(value) => real(value.to_f64())?,
        Field::Float(value) => real(f64::from(*value))?,
        Field::Double(value) => real(*value)?,
        Field::Str(text) => text.as_str().into(),
        Field::Group(row) => {
            let mut members = Map::new();
            for (name, field) in row.get_column_iter() {
                members.insert(name.clone(), json(field)?);
            }
            Value::Object(members)
        }
        Field::ListInternal(list) => {
            Value::Array(list.elements().iter().map(json).collect::<Result<_>>()?)
        }
        _ => return Err(unfit()),
    })
}

fn not_finite() -> Error {
    Error::new(ErrorKind::Invalid, "a list holds a number that JSON has none for (NaN, infinity)")
        .advise("leave the column out by --field COLUMN=")
}

fn unfit() -> Error {
    Error::new(ErrorKind::Invalid, "a column has a type that cannot become a field")
        .advise("times, decimals and maps are not read: leave the column out by --field COLUMN=")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::basic::TimeUnit;

    use super::*;

    fn column(kind: Physical, logical: Option<LogicalType>) -> Type {
        Type::primitive_type_builder("c", kind).with_logical_type(logical).build().unwrap()
    }

    fn group(names: &[&str]) -> Type {
        let member = |name: &&str| {
            Arc::new(Type::primitive_type_builder(name, Physical::BYTE_ARRAY).build().unwrap())
        };
        let members = names.iter().map(member).collect();
        Type::group_type_builder("c").with_fields(members).build().unwrap()
    }

    #[test]
    fn class_of_a_column_follows_from_its_type() {
        for (column, class) in [
            (column(Physical::BYTE_ARRAY, None), Class::File),
            (column(Physical::BYTE_ARRAY, Some(LogicalType::String)), Class::Text),
            (column(Physical::INT64, None), Class::Integer),
            (column(Physical::BOOLEAN, None), Class::Integer),
            (column(Physical::FLOAT, None), Class::Real),
            (group(&["path", "bytes"]), Class::File),
            (group(&["bytes", "path", "more"]), Class::Json),
        ] {
            assert_eq!(class_of(&column).unwrap(), class, "{column:?}");
        }
        let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
        for column in
            [column(Physical::INT64, Some(time)), column(Physical::INT32, Some(LogicalType::Date))]
        {
            let error = class_of(&column).unwrap_err();
            assert_eq!((error.kind(), error.place("column")), (ErrorKind::Invalid, Some("c")));
        }
    }

    #[test]
    fn ending_of_a_path_is_short_and_plain() {
        for (path, ending) in [
            ("a/b.flac", Some("flac")),
            ("noext", None),
            ("a.b/c", None),
            ("trailing.", None),
            ("x.a b", None),
            ("x.abcdefgh", None),
        ] {
            assert_eq!(ending_of(path), ending, "{path}");
        }
    }
}
