//! Brace expansion: `{000..099}`, `{0..10..2}`, `{a..e}`, `{a,b}`, nested and side by side.
//!
//! The number of results is known, and checked against a limit, before the first is made.
//! A brace that is no group is an error (`\{` writes a literal one): the typing error
//! `{000-099}` must not become a file name that is looked for in vain.

use forebay_error::{Error, ErrorKind, Result};

/// The deepest nesting; beyond it a text is an attack on the stack, not a data set.
const MAX_DEPTH: usize = 16;

/// The most bytes that all texts together may take.
const MAX_BYTES: u64 = 4 << 30;

/// A text with holes: literal pieces and groups in turn.
type Sequence = Vec<Piece>;

enum Piece {
    Literal(String),
    /// One of these, in order.
    Either(Vec<Sequence>),
    Range {
        from: i64,
        to: i64,
        step: u64,
        width: usize,
    },
    Letters {
        from: u8,
        to: u8,
    },
}

/// Every text that `spec` stands for, in order, if they are at most `limit`.
pub(super) fn expand(spec: &str, limit: u64) -> Result<Vec<String>> {
    let mut rest = spec;
    let sequence = sequence(&mut rest, 0)?;
    let count = count(&sequence).filter(|&count| count <= limit);
    match count.and_then(|count| count.checked_mul(spec.len() as u64)) {
        Some(bytes) if bytes <= MAX_BYTES => Ok(texts(&sequence)),
        _ => Err(invalid("the braces expand to too many URLs").at("limit", limit)),
    }
}

/// Parses up to the end, or inside a group up to its `,` or `}`.
fn sequence(rest: &mut &str, depth: usize) -> Result<Sequence> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut chars = rest.chars();
    while let Some(next) = chars.clone().next() {
        match next {
            '\\' => {
                chars.next();
                literal.push(chars.next().ok_or_else(|| invalid("a backslash ends the URL"))?);
            }
            '{' => {
                chars.next();
                *rest = chars.as_str();
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                pieces.push(group(rest, depth + 1)?);
                chars = rest.chars();
            }
            ',' | '}' if depth > 0 => break,
            '}' => return Err(invalid("a closing brace has no opening one")),
            other => {
                chars.next();
                literal.push(other);
            }
        }
    }
    *rest = chars.as_str();
    pieces.push(Piece::Literal(literal));
    Ok(pieces)
}

/// Parses what follows a `{`, and its `}`.
fn group(rest: &mut &str, depth: usize) -> Result<Piece> {
    if depth > MAX_DEPTH {
        return Err(invalid("the braces are nested too deeply").at("limit", MAX_DEPTH));
    }
    let inside = rest.split_once('}').map(|(inside, _)| inside);
    let inside = inside.ok_or_else(|| invalid("a brace is not closed"))?;
    if let Some(range) = range(inside)? {
        *rest = &rest[inside.len() + 1..];
        return Ok(range);
    }
    let mut choices = Vec::new();
    loop {
        choices.push(sequence(rest, depth)?);
        let end = rest.chars().next().ok_or_else(|| invalid("a brace is not closed"))?;
        *rest = &rest[1..];
        match (end, choices.len()) {
            (',', _) => {}
            (_, 1) => {
                return Err(invalid("a brace group is neither a list nor a range")
                    .at("group", format!("{{{inside}}}"))
                    .advise("write {000..099} or {a,b}; \\{ is a literal brace"));
            }
            _ => return Ok(Piece::Either(choices)),
        }
    }
}

/// Reads `A..B` or `A..B..STEP`; `None` if `inside` is no range at all.
fn range(inside: &str) -> Result<Option<Piece>> {
    if !inside.contains("..") || inside.contains([',', '{']) {
        return Ok(None);
    }
    let wrong = || {
        invalid("a brace range is neither of numbers nor of letters")
            .at("group", format!("{{{inside}}}"))
    };
    let parts: Vec<&str> = inside.split("..").collect();
    let (from, to, step) = match parts[..] {
        [from, to] => (from, to, 1),
        [from, to, step] => (from, to, step.parse::<i64>().map_err(|_| wrong())?.unsigned_abs()),
        _ => return Err(wrong()),
    };
    if let ([from @ b'a'..=b'z', ..], [to @ b'a'..=b'z', ..])
    | ([from @ b'A'..=b'Z', ..], [to @ b'A'..=b'Z', ..]) = (from.as_bytes(), to.as_bytes())
        && inside.len() == 4
    {
        return Ok(Some(Piece::Letters { from: *from, to: *to }));
    }
    let padded = |text: &str| {
        let digits = text.trim_start_matches('-');
        digits.len() > 1 && digits.starts_with('0')
    };
    let width = if padded(from) || padded(to) { from.len().max(to.len()) } else { 0 };
    let number = |text: &str| match text.starts_with('+') {
        false => text.parse::<i64>().map_err(|_| wrong()),
        true => Err(wrong()),
    };
    let (from, to) = (number(from)?, number(to)?);
    // A step of zero means one, as in bash.
    Ok(Some(Piece::Range { from, to, step: step.max(1), width }))
}

fn count(sequence: &Sequence) -> Option<u64> {
    sequence.iter().try_fold(1u64, |product, piece| {
        let choices = match piece {
            Piece::Literal(_) => 1,
            Piece::Either(choices) => {
                choices.iter().try_fold(0u64, |sum, choice| sum.checked_add(count(choice)?))?
            }
            Piece::Range { from, to, step, .. } => (from.abs_diff(*to) / step).checked_add(1)?,
            Piece::Letters { from, to } => u64::from(from.abs_diff(*to)) + 1,
        };
        product.checked_mul(choices)
    })
}

/// All texts of a sequence: the rightmost group turns fastest.
fn texts(sequence: &Sequence) -> Vec<String> {
    let mut made = vec![String::new()];
    for piece in sequence {
        let choices: Vec<String> = match piece {
            Piece::Literal(text) => {
                made.iter_mut().for_each(|text_so_far| text_so_far.push_str(text));
                continue;
            }
            Piece::Either(choices) => choices.iter().flat_map(texts).collect(),
            Piece::Range { from, to, step, width } => numbers(*from, *to, *step, *width),
            Piece::Letters { from, to } if from <= to => {
                (*from..=*to).map(|letter| char::from(letter).to_string()).collect()
            }
            Piece::Letters { from, to } => {
                (*to..=*from).rev().map(|letter| char::from(letter).to_string()).collect()
            }
        };
        let mut longer = Vec::with_capacity(made.len() * choices.len());
        for head in &made {
            longer.extend(choices.iter().map(|tail| format!("{head}{tail}")));
        }
        made = longer;
    }
    made
}

fn numbers(from: i64, to: i64, step: u64, width: usize) -> Vec<String> {
    let count = from.abs_diff(to) / step;
    let at = |i: u64| {
        let moved = i128::from(i) * i128::from(step);
        if from <= to { i128::from(from) + moved } else { i128::from(from) - moved }
    };
    (0..=count).map(|i| format!("{:0width$}", at(i))).collect()
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(spec: &str) -> Vec<String> {
        expand(spec, 1000).unwrap()
    }

    #[test]
    fn ranges_lists_and_nesting_expand_as_in_bash() {
        assert_eq!(all("x{1..3}"), ["x1", "x2", "x3"]);
        assert_eq!(all("{008..010}"), ["008", "009", "010"]);
        assert_eq!(all("{3..1}{a,b}"), ["3a", "3b", "2a", "2b", "1a", "1b"]);
        assert_eq!(all("{0..10..5}"), ["0", "5", "10"]);
        assert_eq!(all("{01..10..4}"), ["01", "05", "09"]);
        assert_eq!(all("{-1..1}"), ["-1", "0", "1"]);
        assert_eq!(all("{a..c}{Z..Y}"), ["aZ", "aY", "bZ", "bY", "cZ", "cY"]);
        assert_eq!(all("{a,b{1..2},}z"), ["az", "b1z", "b2z", "z"]);
        assert_eq!(all("\\{a,b\\}"), ["{a,b}"]);
        assert_eq!(all("a,b"), ["a,b"]);
    }

    #[test]
    fn malformed_braces_are_rejected() {
        for spec in ["{000-099}", "{a", "a}", "{", "{}", "{1..x}", "{1..2..3..4}", "{a..bc}", "\\"]
        {
            assert_eq!(expand(spec, 1000).unwrap_err().kind(), ErrorKind::Invalid, "{spec}");
        }
        let deep = "{a,".repeat(200_000);
        assert!(expand(&deep, 1000).is_err());
    }

    #[test]
    fn limit_is_checked_before_expansion() {
        assert_eq!(expand("{1..1000}", 1000).unwrap().len(), 1000);
        assert!(expand("{1..1001}", 1000).is_err());
        let huge = "{0..9223372036854775807}".repeat(4);
        assert!(expand(&huge, u64::MAX).is_err());
        assert!(expand("{-9223372036854775808..9223372036854775807}", u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn any_text_expands_within_the_limit_without_panic(spec in "[{},.a-c0-9\\\\-]{0,16}") {
            if let Ok(made) = expand(&spec, 1000) {
                prop_assert!(made.len() <= 1000);
            }
        }
    }
}
