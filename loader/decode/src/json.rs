//! JSON documents in samples. The one rule: what Python's `json.loads` reads is accepted.

use std::borrow::Cow;

use forebay_error::{Error, Result};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::record::bad;

/// The document in `bytes` as text, proven to be JSON; or the part of it at `path`.
pub(crate) fn document(bytes: &[u8], path: Option<&str>) -> Result<String> {
    if let Some(path) = path {
        return Ok(part(bytes, path)?.to_string());
    }
    let text = text(bytes)?;
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let Cow::Owned(strict) = strict(text) else { return Err(unreadable(&error)) };
        serde_json::from_str::<IgnoredAny>(&strict).map_err(|error| unreadable(&error))?;
    }
    Ok(text.to_owned())
}

/// The value at `path` ("a.b.0": keys of objects, indices of arrays).
pub(crate) fn part(bytes: &[u8], path: &str) -> Result<Value> {
    let text = strict(text(bytes)?);
    let mut value: Value = serde_json::from_str(&text).map_err(|error| unreadable(&error))?;
    for step in path.split('.') {
        let next = match &mut value {
            Value::Object(map) => map.get_mut(step),
            Value::Array(list) => step.parse().ok().and_then(|index: usize| list.get_mut(index)),
            _ => None,
        };
        let Some(next) = next else {
            return Err(bad("the JSON document has no such part").at("path", path).at("at", step));
        };
        value = next.take();
    }
    Ok(value)
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| bad(format!("the JSON is not UTF-8: {error}")))
}

fn unreadable(error: &serde_json::Error) -> Error {
    bad(format!("the JSON cannot be read: {error}"))
}

/// `text` with the words that Python writes but JSON lacks (NaN, Infinity, -Infinity) as null.
fn strict(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["NaN", "-Infinity", "Infinity"];
    if !WORDS.iter().any(|word| text.contains(word)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut quoted = false;
    while let Some(next) = rest.chars().next() {
        let word = WORDS.iter().find(|word| !quoted && rest.starts_with(**word));
        let taken = match word {
            Some(word) => {
                out.push_str("null");
                word.len()
            }
            None => {
                // A backslash hides the character after it, which may be a quote.
                let escaped = (quoted && next == '\\').then(|| rest[1..].chars().next()).flatten();
                quoted ^= next == '"';
                let taken = next.len_utf8() + escaped.map_or(0, char::len_utf8);
                out.push_str(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back_as_it_was_and_a_part_alone() {
        let json = br#"{"a": [1, {"b": "x"}], "score": NaN}"#;
        assert_eq!(document(json, None).unwrap().as_bytes(), json);
        assert_eq!(document(json, Some("a.1")).unwrap(), r#"{"b":"x"}"#);
        assert_eq!(document(json, Some("score")).unwrap(), "null");
    }

    #[test]
    fn python_words_are_replaced_outside_strings_only() {
        let text = r#"{"NaN \" NaN": [NaN, -Infinity, Infinity, "Infinity", "é\\"], "k": NaN}"#;
        let want = r#"{"NaN \" NaN": [null, null, null, "Infinity", "é\\"], "k": null}"#;
        assert_eq!(strict(text), want);
    }

    #[test]
    fn broken_documents_and_missing_parts_are_bad_samples() {
        let deep = "[".repeat(100_000);
        let broken: [&[u8]; 6] = [b"", b"{", b"{} x", b"\xff", b"[NaNx]", deep.as_bytes()];
        for bytes in broken {
            assert_eq!(document(bytes, None).unwrap_err().kind().name(), "BadSample");
        }
        for path in ["b", "a.2", "a.-1", "a.0.c", "a.x"] {
            let error = part(br#"{"a": [1, 2]}"#, path).unwrap_err();
            assert_eq!(error.place("path"), Some(path));
        }
    }
}
