//! State of a reloadable configuration: the one in force, and the last comparison with its file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use forebay_api::configuration::Drift;
use forebay_config::Config;

/// The configuration in force, and the time it was applied.
#[derive(Clone)]
pub(super) struct Ruling {
    /// The daemon's own file.
    pub(super) file: PathBuf,
    pub(super) config: Arc<Config>,
    /// Another file, by the name that it was applied under.
    pub(super) from: Option<String>,
    pub(super) since: SystemTime,
}

/// The configuration of a node, if it has one.
#[derive(Default)]
pub struct Reload {
    ruling: Mutex<Option<Ruling>>,
    /// The right to change it.
    pub(super) applying: tokio::sync::Mutex<()>,
    pub(super) drift: Known,
}

impl Reload {
    pub(super) fn ruling(&self) -> MutexGuard<'_, Option<Ruling>> {
        self.ruling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last comparison, kept while neither side changes: frequent status requests do not read the
/// file each time.
#[derive(Default)]
pub(super) struct Known(Mutex<Option<Found>>);

struct Found {
    print: Print,
    config: Arc<Config>,
    drift: Option<Drift>,
}

/// Metadata of a file that changes with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print {
    inode: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Print {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the time of the last change, replacement of the file included.
    pub(super) fn changed(self) -> SystemTime {
        let (seconds, nanoseconds) = self.changed;
        let parts = (u64::try_from(seconds), u32::try_from(nanoseconds));
        let (Ok(seconds), Ok(nanoseconds)) = parts else { return SystemTime::UNIX_EPOCH };
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    }
}

impl Known {
    pub(super) fn get(&self, print: Print, config: &Arc<Config>) -> Option<Option<Drift>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known
            .as_ref()
            .filter(|found| found.print == print && Arc::ptr_eq(&found.config, config));
        same.map(|found| found.drift.clone())
    }

    pub(super) fn put(&self, print: Print, config: &Arc<Config>, drift: &Option<Drift>) {
        let (config, drift) = (config.clone(), drift.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Found { print, config, drift });
    }
}
