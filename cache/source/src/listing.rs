//! Objects of a bucket matched by a pattern.
//!
//! `*`, `?` and `[…]` stay within a folder and `**` crosses them, as for local files; a folder
//! (`…/`) means every shard below it. The store is asked for the longest prefix without a pattern.

use std::collections::BTreeSet;

use forebay_error::{Error, ErrorKind, Result};
use glob::{MatchOptions, Pattern};

/// The characters of patterns.
const GLOB: [char; 3] = ['*', '?', '['];

/// Suffixes of shards, for a folder that means all of them.
const SHARDS: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];

/// The most that one pattern may match: a job's shards travel in one message, which a million names
/// of 200 bytes fill.
const MATCHES_MAX: usize = 1_000_000;

/// The most pages that are read for one pattern: of a thousand names each, a hundred million
/// objects.
const PAGES_MAX: u64 = 100_000;

/// Keys kept of those that are left out: a page of a store's listing.
const LEFT_OUT_KEPT: usize = 1000;

/// Keys that are named where some were left out.
const NAMED_MOST: usize = 8;

/// Objects that a pattern matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// URLs, by name.
    pub urls: Vec<String>,
    /// Matching keys that no URL can name.
    pub left_out: LeftOut,
}

/// Matching keys that no URL can name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Their number.
    pub count: u64,
    /// The first of them, as many as a message shows.
    pub keys: Vec<String>,
}

impl LeftOut {
    /// Keeps the keys that `is_shown` accepts, as far as they are known, and counts no others.
    pub(crate) fn retain(&mut self, is_shown: impl FnMut(&String) -> bool) {
        self.keys.retain(is_shown);
        self.count = self.keys.len() as u64;
    }

    /// Cuts the keys to those that a message shows.
    pub(crate) fn cut(mut self) -> Self {
        self.keys.truncate(NAMED_MOST);
        self
    }
}

const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A pattern of keys.
#[derive(Debug)]
pub(crate) struct Wanted {
    prefix: String,
    pattern: Option<Pattern>,
    /// Names of shards only.
    folder: bool,
    /// Nothing below the prefix's own folder is meant.
    flat: bool,
}

impl Wanted {
    /// Parses `key`, the part of a URL behind its bucket and `/`.
    pub(crate) fn new(key: &str) -> Result<Self> {
        let folder = key.is_empty() || key.ends_with('/');
        let first = key.find(GLOB);
        let prefix = key[..first.unwrap_or(key.len())].to_owned();
        let pattern = match (first, folder) {
            (None, _) => None,
            (Some(_), true) => Some(format!("{key}**/*")),
            (Some(_), false) => Some(key.to_owned()),
        };
        let pattern = pattern
            .map(|text| Pattern::new(&text))
            .transpose()
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("a glob is wrong: {error}")))?;
        let flat = !folder
            && first
                .is_some_and(|first| !key[first..].contains('/') && !key[first..].contains("**"));
        Ok(Self { prefix, pattern, folder, flat })
    }

    /// Returns the longest common prefix of matching keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns true if folders below the prefix's need not be listed.
    pub(crate) fn is_flat(&self) -> bool {
        self.flat
    }

    fn has(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
            && self.pattern.as_ref().is_none_or(|pattern| pattern.matches_with(key, MATCHING))
            && (!self.folder || SHARDS.iter().any(|end| key.ends_with(end)))
    }
}

/// Matches so far, each name once and in order, independent of the store's pages.
#[derive(Debug, Default)]
pub(crate) struct Found {
    keys: BTreeSet<String>,
    pages: u64,
    token: Option<String>,
    /// Matching keys that no URL can name, each once, …
    left_out: BTreeSet<String>,
    /// … and the number of those beyond.
    beyond: u64,
}

impl Found {
    /// Takes a page, and whether another is to be asked for, by the token returned.
    pub(crate) fn page(
        &mut self,
        wanted: &Wanted,
        keys: impl IntoIterator<Item = String>,
        next: Option<String>,
    ) -> Result<Option<String>> {
        self.keys.extend(keys.into_iter().filter(|key| wanted.has(key)));
        self.pages += 1;
        if self.keys.len() > MATCHES_MAX {
            return Err(too_many("a glob matches too many objects").at("limit", MATCHES_MAX));
        }
        let next = next.filter(|token| !token.is_empty());
        if next.is_some() && self.pages == PAGES_MAX {
            return Err(too_many("a glob leads through too many objects").at("pages", PAGES_MAX));
        }
        if next.is_some() && next == self.token {
            let what = "the store's listing loops";
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        self.token.clone_from(&next);
        Ok(next)
    }

    /// Notes keys that match and that no URL can name.
    pub(crate) fn leave_out(&mut self, wanted: &Wanted, keys: Vec<String>) {
        for key in keys.into_iter().filter(|key| wanted.has(key)) {
            match self.left_out.len() < LEFT_OUT_KEPT {
                true => drop(self.left_out.insert(key)),
                false => self.beyond += u64::from(!self.left_out.contains(&key)),
            }
        }
    }

    /// Returns everything, by name, with the URLs that `root` and a key make.
    pub(crate) fn listing(self, root: &str) -> Listing {
        let urls = self.keys.into_iter().map(|key| format!("{root}{key}")).collect();
        let count = self.left_out.len() as u64 + self.beyond;
        let left_out = LeftOut { count, keys: self.left_out.into_iter().collect() };
        Listing { urls, left_out }
    }
}

/// Returns the error for a pattern without matches that a URL can name.
pub(crate) fn none(pattern: &str, left_out: LeftOut) -> Error {
    let error = Error::new(ErrorKind::NotFound, "no object matches the glob").at("urls", pattern);
    match left_out.count {
        0 => error,
        count => error
            .at("left_out", count)
            .at("keys", left_out.cut().keys.join(", "))
            .advise("rename these keys: no URL can name them"),
    }
}

fn too_many(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what).advise("write a longer prefix, or braces: {000..099}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_keys_like_file_globs() {
        for (pattern, prefix, flat, has, has_not) in [
            (
                "a/train-*.tar",
                "a/train-",
                true,
                &["a/train-0.tar"][..],
                &["a/train-0/1.tar", "a/val.tar"][..],
            ),
            ("a/**/x.tar", "a/", false, &["a/x.tar", "a/b/c/x.tar"], &["b/a/x.tar"]),
            ("a/[0-1]?.tar", "a/", true, &["a/01.tar"], &["a/21.tar", "a/0/.tar"]),
            ("a/", "a/", false, &["a/0.tar", "a/b/0.tar.zst", "a/.tgz"], &["a/0.zip", "b/0.tar"]),
            ("", "", false, &["0.tar", "a/0.tar.gz"], &["0.json"]),
            ("a/*/", "a/", false, &["a/b/0.tar", "a/b/c/0.tar"], &["a/0.tar", "a/b/0.json"]),
            ("*.tar", "", true, &["0.tar"], &["a/0.tar"]),
        ] {
            let wanted = Wanted::new(pattern).unwrap();
            assert_eq!((wanted.prefix(), wanted.is_flat()), (prefix, flat), "{pattern}");
            for key in has {
                assert!(wanted.has(key), "{pattern} has {key}");
            }
            for key in has_not {
                assert!(!wanted.has(key), "{pattern} has not {key}");
            }
        }
        assert_eq!(Wanted::new("a/[").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn repeated_page_token_is_an_error() {
        let wanted = Wanted::new("").unwrap();
        let mut found = Found::default();
        let page = || ["b.tar", "a.tar"].map(str::to_owned);
        assert_eq!(found.page(&wanted, page(), Some("t".into())).unwrap().as_deref(), Some("t"));
        let error = found.page(&wanted, page(), Some("t".into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(found.page(&wanted, page(), Some(String::new())).unwrap(), None);
        assert_eq!(found.listing("").urls, ["a.tar", "b.tar"]);
    }
}
