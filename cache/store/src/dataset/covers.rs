//! Comparison of URL patterns: does one cover the other?
//!
//! Rule: "yes" is certain. In doubt the answer is "no", and a data set that never matches is
//! tolerated.

/// One element of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    /// This character.
    Literal(char),
    /// One of these characters except `/`, as the pattern writes them; none: any.
    One(Option<&'a str>),
    /// `*`: any characters except `/`.
    Within,
    /// `**/`: nothing, or any text that ends with `/`.
    Folders,
    /// `**` at the end: any text.
    Rest,
}

fn tokens(pattern: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '*' if rest == "**" => (Token::Rest, 2),
            '*' if rest.starts_with("**/") => (Token::Folders, 3),
            '*' => (Token::Within, 1),
            '?' => (Token::One(None), 1),
            '[' => {
                // A `]` in the first place, also after `!`, belongs to the set of characters.
                let start = if rest.starts_with("[!") { 3 } else { 2 };
                let end = rest.char_indices().skip(start).find(|(_, c)| *c == ']');
                let length = end.map_or(rest.len(), |(at, _)| at + 1);
                (Token::One(Some(&rest[..length])), length)
            }
            literal => (Token::Literal(literal), literal.len_utf8()),
        };
        tokens.push(token);
        rest = &rest[length..];
    }
    tokens
}

impl Token<'_> {
    /// Returns true if this token matches every character that `other` matches. Both match one
    /// character, or `other` is [`Token::Within`].
    fn takes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(_) | Self::One(Some(_)), other) => self == other,
            (Self::One(None), Self::Literal(c)) => *c != '/',
            (Self::One(None), other) => matches!(other, Self::One(_)),
            (Self::Within, Self::Literal(c)) => *c != '/',
            (Self::Within, other) => matches!(other, Self::One(_) | Self::Within),
            (Self::Folders | Self::Rest, _) => false,
        }
    }
}

/// Returns true if `wide` matches every URL that `narrow` matches.
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    if wide == narrow {
        return true;
    }
    // Shortcut: most compared patterns begin differently.
    let literal = wide.split(['*', '?', '[']).next().unwrap_or_default();
    if !narrow.starts_with(literal) {
        return false;
    }
    let (wide, narrow) = (tokens(wide), tokens(narrow));
    // Tokens of `wide` that can be reached after the tokens of `narrow` so far, and the folder
    // tokens that are open.
    let mut here = vec![false; wide.len() + 1];
    let mut within = vec![false; wide.len()];
    here[0] = true;
    for step in 0..=narrow.len() {
        for (at, token) in wide.iter().enumerate() {
            if !here[at] {
                continue;
            }
            match token {
                Token::Rest => return true,
                Token::Folders => (here[at + 1], within[at]) = (true, true),
                Token::Within => here[at + 1] = true,
                Token::Literal(_) | Token::One(_) => {}
            }
        }
        let Some(next) = narrow.get(step) else { break };
        let ends_folder = matches!(next, Token::Literal('/') | Token::Folders);
        let mut then = vec![false; wide.len() + 1];
        for (at, token) in wide.iter().enumerate() {
            if here[at] && token.takes(next) {
                then[if *token == Token::Within { at } else { at + 1 }] = true;
            }
            then[at + 1] |= within[at] && ends_folder;
        }
        if !then.contains(&true) && !within.contains(&true) {
            return false;
        }
        here = then;
    }
    here[wide.len()]
}

#[cfg(test)]
mod tests {
    use glob::Pattern;
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::MATCHING;

    #[test]
    fn wider_patterns_cover_narrower_ones() {
        for (wide, narrow) in [
            ("**", "s3://a/b.tar"),
            ("s3://a/**", "s3://a/b/**"),
            ("s3://a/**", "s3://a/b/*.tar"),
            ("s3://a/**", "s3://a/*"),
            ("s3://*/**", "s3://a/**"),
            ("**/*.tar", "s3://a/0.tar"),
            ("**/*.tar", "s3://a/**/train-*.tar"),
            ("s3://a/**/*.tar", "s3://a/**/b/*.tar"),
            ("s3://a/**/*.tar", "s3://a/*.tar"),
            ("s3://a/*", "s3://a/?"),
            ("s3://a/*-*.tar", "s3://a/x-[0-9].tar"),
            ("s3://a/[!a]*", "s3://a/[!a]b"),
            ("/d/[]]*", "/d/[]]*x"),
        ] {
            assert!(covers(wide, narrow), "{wide} covers {narrow}");
        }
    }

    #[test]
    fn other_patterns_are_not_covered() {
        for (wide, narrow) in [
            ("s3://a/*", "s3://a/**"),
            ("s3://a/**", "s3://ab/**"),
            ("s3://a/**", "**"),
            ("s3://a/?", "s3://a/*"),
            ("s3://a/*.tar", "s3://a/b/*.tar"),
            ("s3://a/*.tar", "s3://a/*"),
            ("s3://a/**/b", "s3://a/**"),
            ("s3://a/**/b", "s3://a/xb"),
            ("s3://a/[a-c]", "s3://a/?"),
            ("s3://a/[a-c]", "s3://a/[a-d]"),
        ] {
            assert!(!covers(wide, narrow), "{wide} does not cover {narrow}");
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let part =
            prop_oneof![Just("**".to_owned()), "[ab*?]{1,3}", "(a|b|\\[ab\\]|\\[!a\\]|\\*|é){1,3}"];
        prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// A covering pattern matches every URL of the covered one.
        #[test]
        fn covering_pattern_matches_all(
            wide in pattern(),
            narrow in pattern(),
            urls in prop::collection::vec("[ab/]{0,6}", 24),
        ) {
            let read = |text: &str| Pattern::new(text);
            let (Ok(one), Ok(other)) = (read(&wide), read(&narrow)) else { return Ok(()) };
            if covers(&wide, &narrow) {
                for url in urls.iter().filter(|url| other.matches_with(url, MATCHING)) {
                    prop_assert!(one.matches_with(url, MATCHING), "{wide} {narrow} {url}");
                }
            }
        }
    }
}
