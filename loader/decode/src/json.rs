//! JSON documents in samples. Rule: everything that Python's `json.loads` reads is accepted, and
//! the result is the document's own text, never a rewritten value.
//!
//! One pass over the bytes validates the grammar and finds the requested part. It accepts Python's
//! extensions of the standard: NaN, Infinity and -Infinity, and lone surrogates as escapes.

use forebay_error::{Error, Result};

use crate::record::bad;

/// Largest nesting depth: the limit of most JSON readers, and far below Python's own recursion
/// limit.
const DEPTH_MAX: usize = 128;

/// Longest integer that Python reads from text (`sys.int_info.default_max_str_digits`), because the
/// time grows with the square of the length.
const DIGITS_MAX: usize = 4300;

/// Returns a document's text, or its part at `path`, for `json.loads`. `None` if there is no such
/// part.
pub(crate) fn document(bytes: &[u8], path: Option<&str>) -> Result<Option<String>> {
    let part = find(bytes, path)?;
    let digits = part.as_ref().map_or(0, |part| part.longest_integer);
    if digits > DIGITS_MAX {
        return Err(bad("an integer in the JSON is too long for Python")
            .at("digits", digits)
            .advise(format!("keep integers to {DIGITS_MAX} digits, or store them as strings")));
    }
    Ok(part.map(|part| part.text.to_owned()))
}

/// Returns the text of the value at `path` ("a.b.0": keys of objects, indices of arrays), if there
/// is one.
pub(crate) fn part<'a>(bytes: &'a [u8], path: &str) -> Result<Option<&'a str>> {
    Ok(find(bytes, Some(path))?.map(|part| part.text))
}

/// A value's text and the number of digits of the longest integer in it.
struct Part<'a> {
    text: &'a str,
    longest_integer: usize,
}

fn find<'a>(bytes: &'a [u8], path: Option<&str>) -> Result<Option<Part<'a>>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        bad(format!("the JSON is not UTF-8: {error}")).advise("store JSON as UTF-8")
    })?;
    // Python skips a byte order mark in bytes.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let steps: Vec<&str> = path.map(|path| path.split('.').collect()).unwrap_or_default();
    let mut scan = Scan { text, at: 0, longest_integer: 0 };
    scan.space();
    let found = scan.value(Some(&steps), DEPTH_MAX)?;
    scan.space();
    if scan.at < text.len() { Err(scan.expected("the end")) } else { Ok(found) }
}

/// A place in a document; everything before it is valid.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    longest_integer: usize,
}

impl<'a> Scan<'a> {
    /// Skips one value with at most `depth` nested containers. With `steps`, returns the value they
    /// lead to.
    fn value(&mut self, steps: Option<&[&str]>, depth: usize) -> Result<Option<Part<'a>>> {
        let (start, outside) = (self.at, self.longest_integer);
        let wanted = steps.is_some_and(<[_]>::is_empty);
        if wanted {
            self.longest_integer = 0;
        }
        let inside = match self.peek() {
            Some(b'{') => self.object(steps, depth)?,
            Some(b'[') => self.array(steps, depth)?,
            _ => {
                self.scalar()?;
                None
            }
        };
        if !wanted {
            return Ok(inside);
        }
        let longest_integer = self.longest_integer;
        self.longest_integer = outside;
        Ok(Some(Part { text: &self.text[start..self.at], longest_integer }))
    }

    fn object(&mut self, steps: Option<&[&str]>, depth: usize) -> Result<Option<Part<'a>>> {
        let depth = self.deeper(depth)?;
        let wanted = steps.and_then(<[_]>::split_first);
        let mut found = None;
        self.items(b'}', |scan, _| {
            let start = scan.at;
            scan.string()?;
            let key = &scan.text[start..scan.at];
            let rest = wanted.filter(|(step, _)| is_key(key, step)).map(|(_, rest)| rest);
            scan.space();
            if !scan.eat(b":") {
                return Err(scan.expected("a colon"));
            }
            scan.space();
            let value = scan.value(rest, depth)?;
            if rest.is_some() {
                // Python keeps the last of equal keys.
                found = value;
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn array(&mut self, steps: Option<&[&str]>, depth: usize) -> Result<Option<Part<'a>>> {
        let depth = self.deeper(depth)?;
        let wanted = steps.and_then(<[_]>::split_first);
        let wanted = wanted.and_then(|(step, rest)| Some((step.parse::<usize>().ok()?, rest)));
        let mut found = None;
        self.items(b']', |scan, number| {
            let rest = wanted.filter(|(index, _)| *index == number).map(|(_, rest)| rest);
            found = scan.value(rest, depth)?.or(found.take());
            Ok(())
        })?;
        Ok(found)
    }

    /// Reads the items between an opening bracket and `end`: numbered, separated by commas.
    fn items(
        &mut self,
        end: u8,
        mut item: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        self.at += 1;
        self.space();
        if self.eat(&[end]) {
            return Ok(());
        }
        for number in 0.. {
            item(self, number)?;
            self.space();
            if self.eat(&[end]) {
                break;
            }
            if !self.eat(b",") {
                return Err(self.expected("a comma or the closing bracket"));
            }
            self.space();
        }
        Ok(())
    }

    fn deeper(&self, depth: usize) -> Result<usize> {
        let too_deep = || {
            bad("the JSON is nested too deeply")
                .at("byte", self.at)
                .advise(format!("nest at most {DEPTH_MAX} objects and arrays"))
        };
        depth.checked_sub(1).ok_or_else(too_deep)
    }

    fn scalar(&mut self) -> Result<()> {
        const WORDS: [&[u8]; 6] = [b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity"];
        match self.peek() {
            Some(b'"') => self.string(),
            _ if WORDS.iter().any(|word| self.eat(word)) => Ok(()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.expected("a value")),
        }
    }

    fn number(&mut self) -> Result<()> {
        self.eat(b"-");
        let integer = if self.eat(b"0") { 1 } else { self.digits()? };
        let mut whole = true;
        if self.eat(b".") {
            self.digits()?;
            whole = false;
        }
        if self.eat(b"e") || self.eat(b"E") {
            let _ = self.eat(b"+") || self.eat(b"-");
            self.digits()?;
            whole = false;
        }
        if whole {
            self.longest_integer = self.longest_integer.max(integer);
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<usize> {
        let start = self.at;
        self.skip(|byte| byte.is_ascii_digit());
        if self.at == start { Err(self.expected("a digit")) } else { Ok(self.at - start) }
    }

    fn string(&mut self) -> Result<()> {
        if !self.eat(b"\"") {
            return Err(self.expected("a string"));
        }
        loop {
            self.skip(|byte| byte != b'"' && byte != b'\\' && byte >= b' ');
            if self.eat(b"\"") {
                return Ok(());
            }
            if !self.eat(b"\\") {
                return Err(self.expected("a closing quote"));
            }
            if self.eat(b"u") {
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.expected("four hexadecimal digits"));
                    }
                    self.at += 1;
                }
            } else if b"\"\\/bfnrt".iter().all(|escaped| !self.eat(&[*escaped])) {
                return Err(self.expected("an escape"));
            }
        }
    }

    fn space(&mut self) {
        self.skip(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    }

    fn skip(&mut self, also: impl Fn(u8) -> bool) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|byte| !also(*byte)).unwrap_or(rest.len());
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, word: &[u8]) -> bool {
        let there = self.text.as_bytes()[self.at..].starts_with(word);
        if there {
            self.at += word.len();
        }
        there
    }

    fn expected(&self, what: &str) -> Error {
        bad(format!("the JSON cannot be read: expected {what}")).at("byte", self.at)
    }
}

/// True if `quoted`, a valid JSON string, spells `step`.
fn is_key(quoted: &str, step: &str) -> bool {
    let inside = &quoted[1..quoted.len() - 1];
    if !inside.contains('\\') {
        return inside == step;
    }
    // A key with a lone surrogate is not text, so no path names it.
    serde_json::from_str::<String>(quoted).is_ok_and(|key| key == step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str, path: &str) -> Option<String> {
        part(text.as_bytes(), path).unwrap().map(str::to_owned)
    }

    #[test]
    fn document_and_parts_are_returned_verbatim() {
        let json = " {\"a\": [1, {\"b\" : \"\\u0078\"}], \"score\":NaN, \"big\": 1.50e+2 }\n";
        assert_eq!(document(json.as_bytes(), None).unwrap().unwrap(), json.trim());
        assert_eq!(found(json, "a.1").unwrap(), r#"{"b" : "\u0078"}"#);
        assert_eq!(found(json, "a.1.b").unwrap(), r#""\u0078""#);
        assert_eq!(found(json, "score").unwrap(), "NaN");
        assert_eq!(found(json, "big").unwrap(), "1.50e+2");
        assert_eq!(found("\u{feff}[7]", "0").unwrap(), "7");
    }

    #[test]
    fn text_beside_the_part_is_ignored_if_python_accepts_it() {
        let long = format!(r#"{{"n": {}, "a": 3}}"#, "9".repeat(DIGITS_MAX + 1));
        for json in [
            r#"{"s": "\ud800", "a": 3}"#,
            r#"{"\ud800": 1, "a": 3}"#,
            r#"{"n": [NaN, Infinity, -Infinity, true, false, null, -0, 0.5E-3], "a": 3}"#,
            r#"{"a": {"b": 1}, "\u0061": 3}"#,
            &long,
        ] {
            assert_eq!(found(json, "a").as_deref(), Some("3"), "{json}");
            assert_eq!(document(json.as_bytes(), Some("a")).unwrap().unwrap(), "3");
        }
    }

    #[test]
    fn missing_part_is_none() {
        for path in ["b", "a.2", "a.-1", "a.0.c", "a.x", "a.0.0"] {
            assert_eq!(found(r#"{"a": [1, 2]}"#, path), None, "{path}");
        }
        assert_eq!(found(r#"{"a": {"b": 1}, "a": 2}"#, "a.b"), None, "the last of equal keys");
    }

    #[test]
    fn broken_documents_are_bad_samples_for_any_path() {
        let deep = format!("{}1{}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1));
        let endless = "[".repeat(100_000);
        let broken: [&[u8]; 22] = [
            b"",
            b" ",
            b"{",
            b"[1",
            b"[1,]",
            b"[1 2]",
            b"{\"a\" 1}",
            b"{\"a\":1,}",
            b"{a:1}",
            b"{} x",
            b"\xff",
            b"[NaNx]",
            b"01",
            b"1.",
            b".5",
            b"+1",
            b"1e",
            b"-",
            b"\"\n\"",
            b"\"\\x\"",
            b"\"\\u12g4\"",
            b"nan",
        ];
        for bytes in broken.iter().copied().chain([deep.as_bytes(), endless.as_bytes()]) {
            for path in [None, Some("a"), Some("0")] {
                let error = document(bytes, path).unwrap_err();
                assert_eq!(error.kind().name(), "BadSample", "{bytes:?}");
            }
        }
        let fits = format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert!(document(fits.as_bytes(), None).is_ok());
    }

    #[test]
    fn integer_too_long_for_python_is_a_bad_sample() {
        let integer = |digits| format!(r#"{{"a": [-{}]}}"#, "7".repeat(digits));
        assert!(document(integer(DIGITS_MAX).as_bytes(), None).is_ok());
        for path in [None, Some("a")] {
            let error = document(integer(DIGITS_MAX + 1).as_bytes(), path).unwrap_err();
            assert_eq!(error.place("digits"), Some("4301"));
        }
        let float = format!("{}.0", "7".repeat(DIGITS_MAX + 1));
        assert!(document(float.as_bytes(), None).is_ok());
    }

    fn tree() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::hash_map("[a-c\"\\\\\n]{1,2}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn serde_json_output_is_read_part_by_part(value in tree(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            prop_assert_eq!(document(text.as_bytes(), None).unwrap().unwrap(), text.as_str());
            let children: Vec<(String, &serde_json::Value)> = match &value {
                serde_json::Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
                serde_json::Value::Array(list) => {
                    list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect()
                }
                _ => Vec::new(),
            };
            for (step, child) in children {
                let part: serde_json::Value = serde_json::from_str(&found(&text, &step).unwrap())?;
                prop_assert_eq!(&part, child);
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in "[\\[\\]{}\",:\\\\u0-9eE.+\\-nNaIlftrus \u{e9}]{0,40}") {
            let _ = document(text.as_bytes(), Some("a.0"));
            if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() {
                prop_assert!(document(text.as_bytes(), None).is_ok());
            }
        }
    }
}
