//! Durability of a checkpoint that a user can name and wait for.

use std::fmt;
use std::str::FromStr;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Durability of a checkpoint's file, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Level {
    /// On this node's disk: survives trainer, daemon and a power cut, not the node.
    Staged,
    /// On the disks of two nodes: survives one of them.
    Replicated,
    /// At the origin, not yet part of a visible checkpoint.
    Uploaded,
    /// Part of a checkpoint that is visible as a whole.
    Published,
}

impl Level {
    /// Levels, the weakest first.
    pub const ALL: [Self; 4] = [Self::Staged, Self::Replicated, Self::Uploaded, Self::Published];

    /// Returns the word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Replicated => "replicated",
            Self::Uploaded => "uploaded",
            Self::Published => "published",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(level) = Self::ALL.into_iter().find(|level| level.name() == text) {
            return Ok(level);
        }
        Err(Error::new(ErrorKind::Invalid, "there is no level with this name")
            .at("level", text)
            .advise("name `staged`, `replicated`, `uploaded` or `published`"))
    }
}

impl TryFrom<String> for Level {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Level> for String {
    fn from(level: Level) -> Self {
        level.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_have_words() {
        assert!(Level::ALL.is_sorted());
        for level in Level::ALL {
            assert_eq!(level.to_string().parse::<Level>().unwrap(), level);
            let json = serde_json::to_string(&level).unwrap();
            assert_eq!(serde_json::from_str::<Level>(&json).unwrap(), level);
        }
    }

    #[test]
    fn unknown_levels_are_rejected() {
        for text in ["durable", "Staged", ""] {
            let error = text.parse::<Level>().unwrap_err();
            assert_eq!((error.kind(), error.place("level")), (ErrorKind::Invalid, Some(text)));
        }
    }
}
