//! JSON.
//!
//! JSON's own parser says whether it is JSON; where its values stand, YAML's says, of
//! which JSON is a part.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;

use super::yaml;
use crate::mistake::Mistake;
use crate::tree::{FilePosition, Node};

/// The tree of a file.
pub(super) fn tree(text: &str) -> Result<Node, Vec<Mistake>> {
    serde_json::from_str::<Value>(text).map_err(|error| {
        let place = FilePosition { line: error.line().max(1), column: error.column().max(1) };
        let what = error.to_string();
        // It says where by itself, at the end.
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        vec![Mistake::of_syntax(Some(place), format!("invalid JSON: {what}"))]
    })?;
    yaml::tree(&whole_escapes(text))
}

/// The same, where one escape says each character: JSON says those beyond the basic plane by two,
/// which YAML does not know. What stands behind one on its line is told two columns early by that.
fn whole_escapes(text: &str) -> Cow<'_, str> {
    if !text.contains("\\u") {
        return text.into();
    }
    let (mut whole, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let pair = |from: usize| {
            let digits = escape.get(from..from + UNIT)?.strip_prefix("\\u")?;
            u16::from_str_radix(digits, 16).ok()
        };
        let units = [pair(0), pair(UNIT)].into_iter().map_while(|unit| unit);
        match char::decode_utf16(units).next() {
            Some(Ok(character)) if character.len_utf16() == 2 => {
                // A string takes everything.
                let _ = write!(whole, "\\U{:08X}", u32::from(character));
                rest = &escape[2 * UNIT..];
            }
            // It may be an escaped backslash: both of its characters are done with.
            _ => {
                let (done, left) = escape.split_at(escape.len().min(2));
                whole.push_str(done);
                rest = left;
            }
        }
    }
    whole.push_str(rest);
    whole.into()
}

/// Characters of an escape with four digits.
const UNIT: usize = "\\uffff".len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surrogate_pairs_become_one_character() {
        let name = |escaped: &str| {
            let node = tree(&format!("{{\"name\": \"{escaped}\", \"b\": 1}}")).ok()?;
            Some(node.get("name")?.text()?.to_owned())
        };
        for (escaped, wanted) in [
            (r"\ud83d\ude00", Some("😀")),
            (r"a\uD83D\uDE00\u00e9\\z", Some("a😀é\\z")),
            (r"\\ud83d\\ude00", Some(r"\ud83d\ude00")),
            (r"\\\ud83d\ude00", Some("\\😀")),
            ("😀", Some("😀")),
            // Half of a character is none.
            (r"\ud83d", None),
            (r"\ude00\ud83d", None),
            (r"\ud83d\u0041", None),
        ] {
            assert_eq!(name(escaped).as_deref(), wanted, "{escaped}");
        }
    }
}
