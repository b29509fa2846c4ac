//! Pins: shards that admins keep at run time, by URL.
//!
//! A pin names URLs, not copies. It holds for later copies, on every tier and over restarts,
//! until it is removed.
//!
//! # Layout
//! A file `PINS` in the directory of each disk tier: JSON, replaced whole. If they differ because
//! one disk was away, the latest counts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use forebay_error::{Doing, Error, ErrorKind, Result};
use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::dataset::MATCHING;

/// File name in a tier's directory.
pub(crate) const FILE: &str = "PINS";

/// Layout that this build reads and writes.
const FORMAT: u32 = 1;

/// Maximum number of pinned URLs; the file is rewritten with each change.
const URLS: usize = 100_000;

/// Maximum number of pinned patterns: every arriving shard is compared with each.
const PATTERNS: usize = 100;

/// Maximum bytes of a pin: no store has keys above a kilobyte.
const PIN_BYTES: usize = 4096;

/// Characters that make a pin a pattern. `?` is not one: it begins the query of many URLs.
pub(crate) const WILD: [char; 2] = ['*', '['];

/// The current pins.
#[derive(Debug, Default)]
pub(crate) struct Pins(RwLock<Pinned>);

/// All pins at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pinned {
    /// Number of changes so far.
    changes: u64,
    urls: BTreeSet<String>,
    patterns: Vec<Pattern>,
}

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    changes: u64,
    pins: Vec<String>,
}

impl Pins {
    /// Takes over the pins found in a tier's directory, if they are the latest.
    pub(crate) fn adopt(&self, found: Option<Pinned>) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = found.filter(|found| found.changes > current.changes) {
            *current = found;
        }
    }

    /// Returns true if a URL is pinned.
    pub(crate) fn has(&self, url: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).has(url)
    }

    /// The current pins.
    pub(crate) fn current(&self) -> Pinned {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the pins.
    pub(crate) fn set(&self, pinned: Pinned) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pinned;
    }
}

/// Pins in a directory; none if nothing was ever pinned.
///
/// # Errors
/// `Corrupt` if they cannot be read: pinned shards could be evicted.
pub(crate) fn read_pins(directory: &Path) -> Result<Option<Pinned>> {
    read(&directory.join(FILE))
}

fn read(path: &Path) -> Result<Option<Pinned>> {
    let damaged = |why: String| {
        Error::new(ErrorKind::Corrupt, format!("the pin file is damaged: {why}"))
            .at("path", path.display())
            .advise("remove the file and pin the shards again")
    };
    let bytes = match std::fs::read(path) {
        // Errors of the directory are reported when it is opened.
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        read => {
            read.doing("read the pin file").map_err(|error| error.at("path", path.display()))?
        }
    };
    let written: Written =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if written.format != FORMAT {
        return Err(damaged(format!("its format is {}", written.format)));
    }
    let start = Pinned { changes: written.changes, ..Pinned::default() };
    let pinned = written.pins.iter().try_fold(start, |pinned, pin| pinned.add(pin))?;
    Ok(Some(pinned))
}

impl Pinned {
    /// Returns true if a URL is pinned.
    pub(crate) fn has(&self, url: &str) -> bool {
        self.urls.contains(url)
            || self.patterns.iter().any(|pattern| pattern.matches_with(url, MATCHING))
    }

    /// Every pin, sorted.
    pub(crate) fn list(&self) -> Vec<String> {
        let patterns = self.patterns.iter().map(|pattern| pattern.as_str().to_owned());
        self.urls.iter().cloned().chain(patterns).collect()
    }

    /// Content of the file.
    pub(crate) fn text(&self) -> Vec<u8> {
        let written = Written { format: FORMAT, changes: self.changes, pins: self.list() };
        serde_json::to_vec(&written).expect("numbers and strings always encode")
    }

    /// Adds a pin.
    ///
    /// # Errors
    /// `Invalid` for an invalid pattern or URL, `Full` if there are too many pins.
    pub(crate) fn with(mut self, pin: &str) -> Result<Self> {
        self.changes += 1;
        self.add(pin)
    }

    fn add(mut self, pin: &str) -> Result<Self> {
        if pin.is_empty() || pin.len() > PIN_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the text is neither a URL nor a URL pattern",
            )
            .at("pin", pin.get(..PIN_BYTES).unwrap_or(pin))
            .at("limit", PIN_BYTES));
        }
        let limit = if pin.contains(WILD) {
            let pattern = Pattern::new(pin).map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("invalid pattern: {error}")).at("pin", pin)
            })?;
            if !self.patterns.contains(&pattern) {
                self.patterns.push(pattern);
            }
            (self.patterns.len() > PATTERNS).then_some(PATTERNS)
        } else {
            self.urls.insert(pin.to_owned());
            (self.urls.len() > URLS).then_some(URLS)
        };
        match limit {
            None => Ok(self),
            Some(limit) => {
                Err(Error::new(ErrorKind::Full, "the maximum number of pins is reached")
                    .at("limit", limit)
                    .advise("remove some pins, or pin a whole data set by name"))
            }
        }
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// `NotFound` if there is no such pin.
    pub(crate) fn without(mut self, pin: &str) -> Result<Self> {
        self.changes += 1;
        let before = self.patterns.len();
        self.patterns.retain(|pattern| pattern.as_str() != pin);
        if self.urls.remove(pin) || self.patterns.len() < before {
            return Ok(self);
        }
        Err(Error::new(ErrorKind::NotFound, "the pin does not exist")
            .at("pin", pin)
            .advise("see `forebay dataset pin --list`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(pins: &[&str]) -> Pinned {
        pins.iter().fold(Pinned::default(), |pinned, pin| pinned.with(pin).unwrap())
    }

    #[test]
    fn pins_match_urls_and_patterns() {
        let all = pinned(&["s3://b/a.tar", "s3://b/x/*.tar", "s3://c/**", "https://h/a.tar?v=[1]"]);
        for url in ["s3://b/a.tar", "s3://b/x/1.tar", "s3://c/d/e.tar"] {
            assert!(all.has(url), "{url}");
        }
        for url in ["s3://b/b.tar", "s3://b/x/y/1.tar", "s3://b/a.tar.gz"] {
            assert!(!all.has(url), "{url}");
        }
        let fewer = all.clone().without("s3://c/**").unwrap().without("s3://b/a.tar").unwrap();
        assert!(!fewer.has("s3://b/a.tar") && !fewer.has("s3://c/d/e.tar"));
        assert_eq!(fewer.without("s3://c/**").unwrap_err().kind(), ErrorKind::NotFound);
        for wrong in ["", "s3://b/***", &"x".repeat(PIN_BYTES + 1)] {
            assert_eq!(all.clone().with(wrong).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let many =
            (0..PATTERNS).fold(Pinned::default(), |all, n| all.with(&format!("{n}*")).unwrap());
        assert_eq!(many.clone().with("0*").unwrap().list().len(), PATTERNS);
        assert_eq!(many.with("one-more*").unwrap_err().kind(), ErrorKind::Full);
    }

    #[test]
    fn latest_pins_file_wins_and_damaged_one_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(FILE), text).unwrap();
            path
        };
        let older = place("a", &pinned(&["one"]).text());
        let newer = place("b", &pinned(&["one", "two"]).text());
        let damaged = place("c", b"{\"format\": 1, \"changes\"");
        let future = place("d", b"{\"format\": 9, \"changes\": 99, \"pins\": []}");
        let none = folder.path().join("none");
        let load = |paths: &[&Path]| {
            let pins = Pins::default();
            paths
                .iter()
                .filter_map(|path| read_pins(path).ok())
                .for_each(|found| pins.adopt(found));
            pins
        };
        assert_eq!(load(&[&older, &newer, &none]).current().list(), ["one", "two"]);
        assert_eq!(load(&[&newer, &damaged, &older]).current().list(), ["one", "two"]);
        assert!(load(&[&none]).current().list().is_empty());
        for wrong in [&damaged, &future] {
            assert_eq!(read_pins(wrong).unwrap_err().kind(), ErrorKind::Corrupt);
            assert!(load(&[wrong]).current().list().is_empty());
        }
    }
}
