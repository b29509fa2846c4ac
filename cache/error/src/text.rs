//! Texts of others, made safe to print: names of jobs, keys, URLs, answers of stores.
//!
//! Rule: nothing that moves a terminal's cursor or reorders a line reaches a person.

/// Returns `text` with a replacement character (U+FFFD) for each [hidden](is_hidden) one.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(printable_char).collect()
}

/// Returns `c`, or a replacement character for a [hidden](is_hidden) one.
#[must_use]
pub fn printable_char(c: char) -> char {
    if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// True for a character that changes a line without being seen: control characters, line and
/// paragraph separators, zero-width characters, and the bidirectional controls of Unicode's UAX #9,
/// which let one name look like another.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_replaced_and_scripts_stay() {
        for hidden in [
            '\0',
            '\x1b',
            '\x7f',
            '\u{9b}',
            '\n',
            '\u{202e}',
            '\u{2066}',
            '\u{2069}',
            '\u{200f}',
            '\u{61c}',
            '\u{2028}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            assert_eq!(printable(&format!("a{hidden}b")), "a\u{fffd}b", "{hidden:?}");
        }
        // Right-to-left scripts, accents, emoji and wide characters are names like others.
        for plain in ["שלום", "سلام", "é", "データ", "🦀", "a b=c", "\u{fffd}", "…"]
        {
            assert_eq!(printable(plain), plain);
        }
    }
}
