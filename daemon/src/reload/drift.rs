//! Whether a daemon goes by what its file says.
//!
//! One rule: what is compared is what the file means. A file that was touched, or written in other words,
//! does not differ.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use forebay_client::NODE_SOCKET;
use forebay_error::{Doing, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Ruling, reading};
use crate::compose::Node;
use crate::config::{self, Change, Config, Told};
use crate::embedded;

/// What a daemon goes by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Configuration {
    /// Its own file.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Another file, whose configuration was applied since the daemon read its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_from: Option<String>,
    /// Since when it goes by that (RFC 3339).
    pub since: String,
    /// How its own file differs from what it goes by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

/// How a daemon's file differs from what it goes by.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drift {
    /// Since when, as far as the file tells (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// What would change if the daemon went by its file.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub(crate) changes: Vec<Change>,
    /// What is wrong with the file.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub(crate) mistakes: Vec<Told>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// What was found out last, for as long as neither side changes: whoever asks for a daemon's state again
/// and again does not have its file read each time.
#[derive(Default)]
pub(super) struct Known(Mutex<Option<Found>>);

struct Found {
    print: Print,
    config: Arc<Config>,
    drift: Option<Drift>,
}

/// What of a file changes whenever the file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Print {
    inode: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Print {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// When the file came to be what it is; a file that was put in its place is changed by that.
    fn changed(self) -> SystemTime {
        let (seconds, nanoseconds) = self.changed;
        let parts = (u64::try_from(seconds), u32::try_from(nanoseconds));
        let (Ok(seconds), Ok(nanoseconds)) = parts else { return SystemTime::UNIX_EPOCH };
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    }
}

impl Known {
    fn get(&self, print: Print, config: &Arc<Config>) -> Option<Option<Drift>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known
            .as_ref()
            .filter(|found| found.print == print && Arc::ptr_eq(&found.config, config));
        same.map(|found| found.drift.clone())
    }

    fn put(&self, print: Print, config: &Arc<Config>, drift: &Option<Drift>) {
        let (config, drift) = (config.clone(), drift.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Found { print, config, drift });
    }
}

impl Node {
    /// What the node goes by, and whether its file says so; none if it has no file.
    pub(crate) async fn configuration(&self) -> Option<Configuration> {
        let ruling = self.reload.ruling().clone()?;
        Some(Configuration {
            file: ruling.file.clone(),
            applied_from: ruling.from.clone(),
            since: told(ruling.since),
            drift: self.drift(&ruling).await,
        })
    }

    async fn drift(&self, ruling: &Ruling) -> Option<Drift> {
        let look = |file: &Path| std::fs::metadata(file).doing("look at the configuration");
        let file = ruling.file.clone();
        let print = match reading(move || look(&file)).await {
            Ok(metadata) => Print::of(&metadata),
            Err(error) => return Some(Drift::unreadable(error.to_string())),
        };
        if let Some(known) = self.reload.drift.get(print, &ruling.config) {
            return known;
        }
        let file = ruling.file.clone();
        let read: Result<_> = reading(move || Config::inspect(&file)).await;
        let since = Some(told(print.changed().max(ruling.since)));
        let drift = match read {
            Ok(Ok(config)) => {
                let memory = embedded::memory() as u64;
                let changes = config::diff(&ruling.config, &config, NODE_SOCKET, memory);
                (!changes.is_empty()).then(|| Drift { since, changes, ..Drift::default() })
            }
            Ok(Err(mistakes)) => {
                let mistakes = mistakes.iter().map(|mistake| Told::of(mistake, &ruling.file));
                Some(Drift { since, mistakes: mistakes.collect(), ..Drift::default() })
            }
            // It may be readable a moment later, without being another.
            Err(error) => return Some(Drift::unreadable(error.to_string())),
        };
        self.reload.drift.put(print, &ruling.config, &drift);
        drift
    }
}

impl Drift {
    fn unreadable(why: String) -> Self {
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
                    "its file says something else{since}, {changes}: `forebay policy diff` shows them, "
                )?;
                f.write_str("`forebay policy apply` puts them in force")
            }
            mistakes => {
                let mistakes = count(mistakes, "mistake");
                write!(
                    f,
                    "its file cannot be used{since}, {mistakes}: `forebay policy check` shows them"
                )
            }
        }
    }
}

fn told(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
