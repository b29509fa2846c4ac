//! Suggestions for mistyped words.
//!
//! A suggestion is close to the word; without a close one, all valid words are listed.

/// A word of `words` that `wrong` may have been meant to be.
pub(super) fn nearest<'a>(
    wrong: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |word: &str| word.to_lowercase().replace(['-', ' '], "_");
    let wrong = plain(wrong);
    // Long words may differ in more letters; one of three letters is a third already.
    let allowed = (wrong.chars().count() / 3).clamp(1, 3);
    let distance = |word: &str| strsim::osa_distance(&wrong, &plain(word));
    let near = words.into_iter().map(|word| (distance(word), word));
    near.filter(|(far, word)| *far <= allowed && *far < word.chars().count())
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

/// Advice for whoever wrote `wrong` where one of `words` was meant.
pub(super) fn advice(wrong: &str, words: &[&str]) -> Option<String> {
    match nearest(wrong, words.iter().copied()) {
        Some(word) => Some(format!("did you mean `{word}`?")),
        None if words.is_empty() => None,
        None => {
            let all: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            Some(format!("valid values: {}", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_get_a_suggestion_and_other_words_none() {
        let words = ["evict", "match", "max", "dont_evict_time", "lru", "lfu", "nvme"];
        for (wrong, meant) in [
            ("evct", Some("evict")),
            ("eivct", Some("evict")),
            ("Evict", Some("evict")),
            ("dont-evict-time", Some("dont_evict_time")),
            ("maxx", Some("max")),
            ("lruu", Some("lru")),
            ("NVMe", Some("nvme")),
            ("colour", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(wrong, words), meant, "{wrong}");
        }
        assert!(advice("colour", &words).unwrap().contains("`max`, `dont_evict_time`"));
        assert_eq!(advice("colour", &[]), None);
    }
}
