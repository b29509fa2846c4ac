//! Names of numbered shards: `out-{:06d}.tar`.
//!
//! Exactly one number, so that no two shards share a name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

/// More digits than a 64-bit number has are a typing error.
const MAX_DIGITS: usize = 20;

/// Separators between a name and a number.
const SEPARATORS: [char; 4] = ['-', '_', '.', ' '];

/// A path with a hole for the shard's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    before: String,
    digits: usize,
    after: String,
}

impl Pattern {
    /// Reads `{}`, `{:d}` or `{:06d}` out of `text`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::new(ErrorKind::Invalid, "the shards' name needs one number in it")
                .at("pattern", text)
                .advise("write it like 'out-{:06d}.tar'")
        };
        let (before, rest) = text.split_once('{').ok_or_else(wrong)?;
        let (inside, after) = rest.split_once('}').ok_or_else(wrong)?;
        let digits = match inside {
            "" | ":d" => 0,
            _ => {
                let width = inside.strip_prefix(":0").and_then(|s| s.strip_suffix('d'));
                width.and_then(|width| width.parse().ok()).ok_or_else(wrong)?
            }
        };
        if digits > MAX_DIGITS || after.contains(['{', '}']) || before.contains('}') {
            return Err(wrong());
        }
        Ok(Self { before: before.to_owned(), digits, after: after.to_owned() })
    }

    /// Returns the default path of the shards' manifest: beside them, with their name without the
    /// number.
    pub(super) fn manifest(&self) -> PathBuf {
        let start = self.before.rfind('/').map_or(0, |slash| slash + 1);
        let (folder, name) = self.before.split_at(start);
        let name = match name.trim_end_matches(SEPARATORS) {
            "" => "manifest",
            name => name,
        };
        PathBuf::from(format!("{folder}{name}.json"))
    }

    /// Returns true if the path is a shard's.
    pub(super) fn names(&self, path: &Path) -> bool {
        let start = self.before.rfind('/').map_or(0, |slash| slash + 1);
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let number = name.strip_prefix(&self.before[start..]);
        let number = number.and_then(|rest| rest.strip_suffix(self.after.as_str()));
        let Some(number) = number.and_then(|number| number.parse().ok()) else { return false };
        let whole = |path: &Path| std::path::absolute(path).ok();
        whole(path).is_some() && whole(path) == whole(&self.path(number))
    }

    /// The path of shard `number`.
    pub(super) fn path(&self, number: u64) -> PathBuf {
        let Self { before, digits, after } = self;
        PathBuf::from(format!("{before}{number:0digits$}{after}"))
    }
}

/// Returns true if `text` is valid as a pattern of shards' names.
pub fn check_pattern(text: &str) -> Result<()> {
    Pattern::parse(text).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_needs_exactly_one_number() {
        let path = |text| Pattern::parse(text).unwrap().path(7);
        assert_eq!(path("d/out-{:06d}.tar"), PathBuf::from("d/out-000007.tar"));
        assert_eq!(path("{}.tar"), PathBuf::from("7.tar"));
        let manifest = |text| Pattern::parse(text).unwrap().manifest();
        assert_eq!(manifest("d.e/train-{:06d}.tar"), PathBuf::from("d.e/train.json"));
        assert_eq!(manifest("{}.tar"), PathBuf::from("manifest.json"));
        assert_eq!(manifest("/d/{:03d}/x.tar"), PathBuf::from("/d/manifest.json"));
        let pattern = Pattern::parse("d/o-{:03d}.tar").unwrap();
        for (path, named) in [
            ("d/o-000.tar", true),
            ("./d/o-017.tar", true),
            ("d/o-17.tar", false),
            ("d/o-0017.tar", false),
            ("e/o-017.tar", false),
            ("d/o-+17.tar", false),
            ("d/o-.tar", false),
        ] {
            assert_eq!(pattern.names(Path::new(path)), named, "{path}");
        }
        for bad in ["out.tar", "{:06d}-{}.tar", "{:6}.tar", "{:099d}", "{", "}{}", "{x}"] {
            assert_eq!(Pattern::parse(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
