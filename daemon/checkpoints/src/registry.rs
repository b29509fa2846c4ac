//! Staged files of this node, with their records.
//!
//! A record is on the tier before the registry shows its content, so a restart finds what anyone
//! was told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_checkpoint::{Commit, FileId, Level, Progress, Record};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::Options;
use forebay_store::StagedFile;
use tokio::sync::{Notify, watch};

/// All staged files.
#[derive(Default)]
pub(crate) struct Registry {
    files: Mutex<HashMap<FileId, Arc<Tracked>>>,
    changed: watch::Sender<()>,
}

/// A staged file and its way to the store.
pub(crate) struct Tracked {
    pub(crate) file: StagedFile,
    /// Shared: the checksums of a large file take a megabyte.
    record: Mutex<Arc<Record>>,
    /// Endpoint and credentials of the destination; without the secrets after a restart.
    options: Mutex<Options>,
    /// Last failure of the upload or the publication, while it lasts.
    trouble: Mutex<Option<Error>>,
    /// Wakes a task that waits to try again.
    pub(crate) retry: Notify,
    /// True once its file is removed; held while its record is written.
    is_removed: tokio::sync::Mutex<bool>,
    /// True if somebody asked for its removal from the store as well.
    is_cancelled: AtomicBool,
}

impl Registry {
    pub(crate) fn add(&self, file: StagedFile, record: Record, options: Options) -> Arc<Tracked> {
        let id = record.id;
        let tracked = Arc::new(Tracked {
            file,
            record: Mutex::new(Arc::new(record)),
            options: Mutex::new(options),
            trouble: Mutex::default(),
            retry: Notify::new(),
            is_removed: tokio::sync::Mutex::new(false),
            is_cancelled: AtomicBool::new(false),
        });
        self.lock().insert(id, tracked.clone());
        self.changed.send_replace(());
        tracked
    }

    pub(crate) fn get(&self, id: FileId) -> Option<Arc<Tracked>> {
        self.lock().get(&id).cloned()
    }

    /// Returns the files for which `is_wanted` holds, the newest first.
    pub(crate) fn select(&self, is_wanted: impl Fn(&Record) -> bool) -> Vec<Arc<Tracked>> {
        let all: Vec<_> = self.lock().values().cloned().collect();
        let mut wanted: Vec<_> = all.into_iter().filter(|one| is_wanted(&one.lock())).collect();
        wanted.sort_by_key(|one| std::cmp::Reverse(one.lock().staged_at_ms));
        wanted
    }

    /// Removes a file from the tier and from here.
    ///
    /// # Errors
    /// Those of the device; then the file stays.
    pub(crate) async fn remove(&self, tracked: &Tracked) -> Result<()> {
        let mut is_removed = tracked.is_removed.lock().await;
        if *is_removed {
            return Ok(());
        }
        tracked.file.remove().await?;
        *is_removed = true;
        self.lock().remove(&tracked.lock().id);
        self.changed.send_replace(());
        // Its task ends.
        tracked.retry.notify_one();
        Ok(())
    }

    /// Removes a file as [`Registry::remove`] does. Its task undoes what it is doing.
    ///
    /// # Errors
    /// As [`Registry::remove`].
    pub(crate) async fn cancel(&self, tracked: &Tracked) -> Result<()> {
        tracked.is_cancelled.store(true, Ordering::Relaxed);
        self.remove(tracked).await
    }

    /// Notes progress of a file, on the tier first.
    ///
    /// # Errors
    /// Those of the device; `Closed` for a file that was removed meanwhile.
    pub(crate) async fn note(&self, tracked: &Tracked, progress: Progress) -> Result<()> {
        self.change(tracked, |record| Record { progress, ..record }).await
    }

    /// Notes the keys that a publication makes superfluous, on the tier first.
    ///
    /// # Errors
    /// As [`Registry::note`].
    pub(crate) async fn note_replaced(&self, tracked: &Tracked, keys: Vec<String>) -> Result<()> {
        let change = |record: Record| {
            let commit = record.commit.map(|commit| Commit { replaced: keys, ..commit });
            Record { commit, ..record }
        };
        self.change(tracked, change).await
    }

    async fn change(&self, tracked: &Tracked, change: impl FnOnce(Record) -> Record) -> Result<()> {
        // A removal waits for the end, or came first.
        let is_removed = tracked.is_removed.lock().await;
        let record = change((*tracked.record()).clone());
        if *is_removed {
            return Err(removed(&record));
        }
        tracked.file.save_record(record.encode()?).await?;
        *tracked.lock() = Arc::new(record);
        tracked.set_trouble(None);
        self.changed.send_replace(());
        Ok(())
    }

    /// Notes a failure that lasts. Returns false without a note if the file has other credentials
    /// by now: the failure says nothing of those.
    pub(crate) fn note_trouble(&self, tracked: &Tracked, by: &Options, error: Error) -> bool {
        let options = tracked.lock_options();
        let is_by_these = *options == *by;
        if is_by_these {
            tracked.set_trouble(Some(error));
        }
        drop(options);
        self.changed.send_replace(());
        is_by_these
    }

    /// Replaces the credentials of a file, forgets a failure by others, and wakes its task.
    pub(crate) fn supply(&self, tracked: &Tracked, fresh: Options) {
        let mut options = tracked.lock_options();
        *options = fresh;
        tracked.set_trouble(None);
        drop(options);
        tracked.retry.notify_one();
        self.changed.send_replace(());
    }

    /// Watches all changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Tracked>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracked {
    fn lock(&self) -> MutexGuard<'_, Arc<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self) -> Arc<Record> {
        self.lock().clone()
    }

    pub(crate) fn level(&self) -> Level {
        self.lock().progress.level()
    }

    pub(crate) fn options(&self) -> Options {
        self.lock_options().clone()
    }

    fn lock_options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true once its file is removed.
    pub(crate) async fn is_removed(&self) -> bool {
        *self.is_removed.lock().await
    }

    /// Returns true if somebody asked for its removal from the store as well.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, error: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// Returns the error of what goes on with a file that was removed.
fn removed(record: &Record) -> Error {
    Error::new(ErrorKind::Closed, "the file was removed")
        .at("url", shown(&record.url))
        .at("name", &record.name)
}
