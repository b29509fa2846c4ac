//! Numbers in text, alone or taken from JSON. Rule: text that is not exactly one number is
//! rejected; a number becomes the nearest value.

use std::fmt::Display;
use std::str::FromStr;

use forebay_error::Result;

use crate::record::bad;

/// Bytes of an unreadable value shown in an error.
const SHOWN_MAX: usize = 40;

/// Returns the text of a number that stands alone in `bytes`.
pub(crate) fn text(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|_| bad("the value must be text, as UTF-8"))?;
    Ok(text.trim())
}

/// Parses `text` as an integer.
pub(crate) fn integer(text: &str) -> Result<i64> {
    parse(text, "64-bit integer")
}

/// Parses `text` as a real number.
pub(crate) fn real(text: &str) -> Result<f64> {
    parse(text, "number")
}

fn parse<T: FromStr<Err: Display>>(text: &str, wanted: &str) -> Result<T> {
    text.parse()
        .map_err(|error| bad(format!("not a valid {wanted}: {error}")).at("value", cut(text)))
}

/// Cuts a value to the length that a message shows.
pub(crate) fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_MAX);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn doubles_survive_json_bit_by_bit(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            for written in [format!("{value:?}"), format!("{value:e}"), format!("{value}")] {
                let document = format!("{{\"a\": {written}}}");
                let text = json::part(document.as_bytes(), "a").unwrap().unwrap();
                prop_assert_eq!(real(text).unwrap().to_bits(), bits, "{}", written);
            }
        }
    }

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        assert_eq!(integer(text(b" 42\n").unwrap()).unwrap(), 42);
        assert_eq!(integer("-9223372036854775808").unwrap(), i64::MIN);
        assert_eq!(integer("+5").unwrap(), 5);
        assert_eq!(real("1e-3").unwrap(), 0.001);
        assert_eq!(real("-Infinity").unwrap(), f64::NEG_INFINITY);
        assert!(real("nan").unwrap().is_nan() && real("NaN").unwrap().is_nan());
    }

    #[test]
    fn invalid_number_is_a_bad_sample_with_its_value() {
        for wrong in ["", "7.0", "0x10", "9223372036854775808", "1 2", "true", "null", "\"1\""] {
            assert_eq!(integer(wrong).unwrap_err().kind().name(), "BadSample", "{wrong:?}");
        }
        for wrong in ["", "\"1\"", "true", "null", "[1]"] {
            assert_eq!(real(wrong).unwrap_err().place("value"), Some(wrong));
        }
        assert_eq!(text(b"\xff").unwrap_err().kind().name(), "BadSample");
        let long = integer(&"é".repeat(100)).unwrap_err();
        assert!(long.place("value").unwrap().len() < 50, "{long}");
    }
}
