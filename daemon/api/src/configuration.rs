//! The configuration that a daemon runs, and how its file differs from that.

use std::fmt;
use std::path::PathBuf;

use forebay_config::{Change, Told};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Configuration {
    /// The daemon's own file.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Another file, whose configuration was applied since the daemon read its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_from: Option<String>,
    /// Since when it goes by that (RFC 3339).
    pub since: String,
    /// Difference between the file and the configuration in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

/// Difference between a daemon's file and its configuration in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drift {
    /// Since when, as far as the file tells (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Changes that a reload of the file would make.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Change>,
    /// Mistakes in the file.
    #[schema(value_type = Vec<Object>)]
    pub mistakes: Vec<Told>,
    /// Reason the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl Drift {
    /// The file cannot be read.
    #[must_use]
    pub fn unreadable(why: String) -> Self {
        Self { unreadable: Some(why), ..Self::default() }
    }
}

/// As people read it, on lines of `forebay status`.
impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.file.display();
        match &self.applied_from {
            None => write!(f, "{own}, as read {}", self.since)?,
            Some(from) => write!(f, "{from}, applied {}; after a restart {own}", self.since)?,
        }
        match &self.drift {
            Some(drift) => write!(f, "\n        {drift}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        if let Some(why) = &self.unreadable {
            return write!(f, "its file cannot be read: {why}");
        }
        let since = self.since.as_deref().map(|since| format!(" since {since}"));
        let since = since.unwrap_or_default();
        match self.mistakes.len() {
            0 => {
                let changes = count(self.changes.len(), "change");
                write!(
                    f,
                    "its file differs{since}, {changes}: `forebay config diff` shows them, "
                )?;
                f.write_str("`forebay config apply` applies them")
            }
            mistakes => {
                let mistakes = count(mistakes, "mistake");
                write!(
                    f,
                    "its file is invalid{since}, {mistakes}: `forebay config check` shows them"
                )
            }
        }
    }
}
