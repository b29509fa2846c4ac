//! Numbers in text, alone or inside JSON. The one rule: what is not exactly one number is refused.

use forebay_error::Result;
use serde_json::Value;

use crate::json;
use crate::record::bad;

/// How much of an unreadable value an error message shows, in bytes.
const SHOWN_MAX: usize = 40;

/// The integer in `bytes`, or at `path` of the JSON document in them.
pub(crate) fn integer(bytes: &[u8], path: Option<&str>) -> Result<i64> {
    let Some(path) = path else {
        let text = trimmed(bytes)?;
        return text
            .parse()
            .map_err(|error| bad(format!("no integer: {error}")).at("value", cut(text)));
    };
    let value = json::part(bytes, path)?;
    value.as_i64().ok_or_else(|| not_a("64-bit integer", &value, path))
}

/// The number in `bytes`, or at `path` of the JSON document in them.
pub(crate) fn real(bytes: &[u8], path: Option<&str>) -> Result<f64> {
    let Some(path) = path else {
        let text = trimmed(bytes)?;
        return text
            .parse()
            .map_err(|error| bad(format!("no number: {error}")).at("value", cut(text)));
    };
    let value = json::part(bytes, path)?;
    value.as_f64().ok_or_else(|| not_a("number", &value, path))
}

fn trimmed(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|_| bad("a number must be text"))?;
    Ok(text.trim())
}

fn not_a(wanted: &str, value: &Value, path: &str) -> forebay_error::Error {
    let text = value.to_string();
    bad(format!("the JSON value is no {wanted}")).at("path", path).at("value", cut(&text))
}

fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_MAX);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        assert_eq!(integer(b" 42\n", None).unwrap(), 42);
        assert_eq!(integer(b"-9223372036854775808", None).unwrap(), i64::MIN);
        assert_eq!(integer(b"+5", None).unwrap(), 5);
        assert_eq!(real(b"1e-3\n", None).unwrap(), 0.001);
        assert!(real(b"nan", None).unwrap().is_nan());
        assert_eq!(integer(br#"{"a": {"b": [1, -2]}}"#, Some("a.b.1")).unwrap(), -2);
        assert_eq!(real(br#"{"a": 3}"#, Some("a")).unwrap(), 3.0);
    }

    #[test]
    fn what_is_no_number_is_a_bad_sample_that_shows_the_value() {
        for bytes in [&b""[..], b"7.0", b"0x10", b"9223372036854775808", b"1 2", b"\xff"] {
            assert_eq!(integer(bytes, None).unwrap_err().kind().name(), "BadSample", "{bytes:?}");
        }
        let long = integer("é".repeat(100).as_bytes(), None).unwrap_err();
        assert!(long.place("value").unwrap().len() < 50, "{long}");
        for json in [r#"{"a": 1.5}"#, r#"{"a": "1"}"#, r#"{"a": true}"#, r#"{"a": null}"#] {
            assert!(integer(json.as_bytes(), Some("a")).is_err(), "{json}");
        }
        assert!(real(br#"{"a": "1"}"#, Some("a")).is_err());
    }
}
