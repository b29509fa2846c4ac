//! Name of a file: the key below its checkpoint's URL.
//!
//! A name leads to one place below that URL and to no document of Forebay's, on an object store
//! and on a file system alike.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::keys::FOLDER;

/// Name of the file whose presence makes a checkpoint visible: the one that
/// `torch.distributed.checkpoint` reads first.
pub const METADATA: &str = ".metadata";

/// Longest name in bytes: that of a key of S3.
const BYTES_MAX: usize = 1024;

/// Name of a checkpoint's file, checked: segments divided by `/`, none of them empty, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

impl FileName {
    /// Checks a name.
    ///
    /// # Errors
    /// `Invalid` with the place `name`.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match flaw(&name) {
            None => Ok(Self(name)),
            Some(flaw) => Err(Error::new(ErrorKind::Invalid, flaw).at("name", name)),
        }
    }

    /// Returns the name of the file that makes a checkpoint visible.
    #[must_use]
    pub fn metadata() -> Self {
        Self(METADATA.to_owned())
    }

    /// Returns true for the name of the file that makes a checkpoint visible.
    #[must_use]
    pub fn is_metadata(&self) -> bool {
        self.0 == METADATA
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the reason that a text is no name, if there is one.
fn flaw(name: &str) -> Option<&'static str> {
    if !(1..=BYTES_MAX).contains(&name.len()) {
        return Some("a file's name has 1 to 1024 bytes");
    }
    if name.chars().any(|c| c.is_control() || c == '\\') {
        return Some("a file's name may not hold control characters or backslashes");
    }
    if name.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Some("a file's name may not hold segments that are empty, `.` or `..`");
    }
    if name.split('/').next() == Some(FOLDER) {
        return Some("a file's name may not lie below `.forebay/`");
    }
    None
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for FileName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for FileName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for FileName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_names_are_accepted() {
        let longest = "x".repeat(BYTES_MAX);
        for text in [
            METADATA,
            "__0_0.distcp",
            "optimizer/rank 7.bin",
            ".forebay2/x",
            "a/.forebay/x",
            "a..b",
            "é",
            &longest,
        ] {
            assert_eq!(FileName::new(text).unwrap().as_str(), text);
        }
        assert!(FileName::metadata().is_metadata());
        assert!(!FileName::new("a/.metadata").unwrap().is_metadata());
    }

    #[test]
    fn names_that_lead_elsewhere_are_rejected() {
        let long = "x".repeat(BYTES_MAX + 1);
        for text in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/.",
            "a\\b",
            "a\nb",
            "\0",
            "a\u{7f}",
            "a\u{85}",
            ".forebay",
            ".forebay/x",
            &long,
        ] {
            let error = FileName::new(text).unwrap_err();
            assert_eq!((error.kind(), error.place("name")), (ErrorKind::Invalid, Some(text)));
            let json = serde_json::to_string(text).unwrap();
            assert!(serde_json::from_str::<FileName>(&json).is_err(), "{text:?}");
        }
    }

    proptest! {
        /// An accepted name stays below its folder, by whatever rule paths are joined.
        #[test]
        fn accepted_names_stay_below_the_folder(text in "[ab./\\\\\\PC]{0,12}") {
            let Ok(name) = FileName::new(text.clone()) else { return Ok(()) };
            let path = std::path::Path::new("/folder").join(name.as_str());
            let mut parts = path.components().skip(2);
            prop_assert!(parts.all(|part| matches!(part, std::path::Component::Normal(_))));
            prop_assert!(path.starts_with("/folder"));
            prop_assert_eq!(path.to_str(), Some(&*format!("/folder/{text}")));
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileName>(&json).unwrap(), name);
        }
    }
}
