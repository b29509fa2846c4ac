//! Values of columns, taken out of a sample's members.

use forebay_error::{Error, ErrorKind, Result};
use serde_json::Value as Json;

use super::COLUMNS_MAX;
use super::values::Value;

/// End of a column's name that asks for a length.
const LEN: &str = ".len";

/// Source of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSource {
    /// Name of the column, as filters use it.
    pub name: String,
    /// Number of the member in [`Wanted::fields`].
    field: usize,
    /// Path in a JSON document; None for the member's own text.
    path: Option<String>,
}

/// Columns that an index is to have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    fields: Vec<String>,
    columns: Vec<ColumnSource>,
}

/// Values of one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Extraction {
    /// A value for each column.
    pub values: Vec<Value>,
    /// True if a member is there and is no JSON.
    pub is_unreadable: bool,
}

impl Wanted {
    /// Reads descriptions such as `json:width,height,caption.len` (values in the JSON document that
    /// is field `json`), `cls` (a member that is itself a number or a short text) and `txt.len`.
    ///
    /// # Errors
    /// `Invalid` for a description without a name, two columns of one name, or too many.
    pub fn parse(descriptions: &[String]) -> Result<Self> {
        let mut wanted = Self::default();
        for description in descriptions {
            let invalid = |what: &str| {
                Error::new(ErrorKind::Invalid, what)
                    .at("columns", description)
                    .advise("write json:width,caption.len for values in a JSON member, or cls")
            };
            let is_name = |name: &str| {
                let parts = || name.split('.');
                let plain = |part: &str| {
                    part.chars().all(|c| c.is_alphanumeric() || c == '_') && !part.is_empty()
                };
                parts().all(plain) && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            };
            let (field, paths): (&str, Vec<Option<&str>>) = match description.split_once(':') {
                Some((field, paths)) => {
                    (field, paths.split(',').map(str::trim).map(Some).collect())
                }
                None => (description.strip_suffix(LEN).unwrap_or(description), vec![None]),
            };
            if field.is_empty() {
                return Err(invalid("a column names no member"));
            }
            let field = wanted.field(field);
            for path in paths {
                let name = path.unwrap_or(description).to_owned();
                if !is_name(&name) {
                    let what = "a column's name has letters, digits, `_` and dots";
                    return Err(invalid(what).at("column", name));
                }
                if wanted.columns.iter().any(|column| column.name == name) {
                    return Err(invalid("two columns have one name").at("column", name));
                }
                wanted.columns.push(ColumnSource { name, field, path: path.map(str::to_owned) });
            }
        }
        if wanted.columns.len() > COLUMNS_MAX {
            return Err(Error::new(ErrorKind::Invalid, "an index has too many columns")
                .at("columns", wanted.columns.len())
                .at("limit", COLUMNS_MAX));
        }
        Ok(wanted)
    }

    fn field(&mut self, name: &str) -> usize {
        // As the indexer keeps them.
        let name = name.to_lowercase();
        self.fields.iter().position(|field| *field == name).unwrap_or_else(|| {
            self.fields.push(name);
            self.fields.len() - 1
        })
    }

    /// Returns the members that columns are taken from.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Returns the names of the columns.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Takes the values out of a sample's members, one for each of [`Wanted::fields`].
    #[must_use]
    pub fn extract(&self, members: &[Option<&[u8]>]) -> Extraction {
        let mut is_unreadable = false;
        let documents: Vec<Option<Json>> = (0..self.fields.len())
            .map(|field| {
                let of_json =
                    |column: &ColumnSource| column.field == field && column.path.is_some();
                let bytes = members.get(field).copied().flatten();
                let bytes = bytes.filter(|_| self.columns.iter().any(of_json))?;
                let read = serde_json::from_slice(bytes);
                is_unreadable |= read.is_err();
                read.ok()
            })
            .collect();
        let value = |column: &ColumnSource| match &column.path {
            Some(path) => documents[column.field].as_ref().map(|json| of_path(json, path)),
            None => {
                members.get(column.field).copied().flatten().map(|bytes| of_text(bytes, column))
            }
        };
        let values = self.columns.iter().map(|column| value(column).unwrap_or_default());
        Extraction { values: values.collect(), is_unreadable }
    }
}

/// Returns the value of a member that is one itself.
fn of_text(bytes: &[u8], column: &ColumnSource) -> Value {
    let Ok(text) = std::str::from_utf8(bytes) else { return Value::Absent };
    if column.name.ends_with(LEN) {
        return length(text.chars().count());
    }
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Value::Int(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Value::Float(number),
        _ => Value::Text(text.to_owned()),
    }
}

/// Returns the value at a path of names, or the length of what is there.
fn of_path(document: &Json, path: &str) -> Value {
    let find = |path: &str| path.split('.').try_fold(document, |json, name| json.get(name));
    match (find(path), path.strip_suffix(LEN)) {
        (Some(found), _) => of_json(found),
        (None, Some(path)) => match find(path) {
            Some(Json::String(text)) => length(text.chars().count()),
            Some(Json::Array(items)) => length(items.len()),
            _ => Value::Absent,
        },
        (None, None) => Value::Absent,
    }
}

fn of_json(json: &Json) -> Value {
    match json {
        Json::Bool(value) => Value::Int(i64::from(*value)),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Float(number),
            (None, None) => Value::Absent,
        },
        Json::String(text) => Value::Text(text.clone()),
        Json::Null | Json::Array(_) | Json::Object(_) => Value::Absent,
    }
}

fn length(len: usize) -> Value {
    i64::try_from(len).map_or(Value::Absent, Value::Int)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(descriptions: &[&str]) -> Result<Wanted> {
        Wanted::parse(&descriptions.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn values_come_from_json_and_from_members() {
        let wanted =
            wanted(&["json:width,nsfw,ok,caption,caption.len,tags.len,a.b,no", "cls", "txt.len"]);
        let wanted = wanted.unwrap();
        assert_eq!(wanted.fields(), ["json", "cls", "txt"]);
        let json = br#"{"width": 5, "nsfw": 0.25, "ok": true, "caption": "h\u00e9!",
            "tags": [1, 2], "a": {"b": -1}, "no": null}"#;
        let members = [Some(&json[..]), Some(b" 7\n"), Some("é.".as_bytes())];
        let text = |text: &str| Value::Text(text.to_owned());
        let [one, int] = [Value::Float(0.25), Value::Int(5)];
        let expected = [int, one, Value::Int(1), text("hé!"), Value::Int(3), Value::Int(2)];
        let rest = [Value::Int(-1), Value::Absent, Value::Int(7), Value::Int(2)];
        let found = wanted.extract(&members);
        assert_eq!(found.values, [&expected[..], &rest].concat());
        assert!(!found.is_unreadable);
        let found = wanted.extract(&[Some(b"{"), None, None]);
        assert_eq!(found.values, vec![Value::Absent; 10]);
        assert!(found.is_unreadable);
    }

    #[test]
    fn invalid_columns_are_rejected() {
        for bad in [
            &["json:"][..],
            &[":width"],
            &["json:a b"],
            &["json:a", "txt:a"],
            &["json:a,a"],
            &[""],
            &["json:1a"],
        ] {
            assert_eq!(wanted(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("json:c{n}")).collect();
        assert_eq!(Wanted::parse(&many).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
