//! Staged files of this node, with their records.
//!
//! A record is on the tier before the registry shows its content, so a restart finds what anyone
//! was told.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_checkpoint::{Commit, FileId, Level, Progress, Record};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::Options;
use forebay_store::StagedFile;
use lru::LruCache;
use tokio::sync::{Notify, watch};

/// Removed files remembered, for the nodes that keep their second copies: they ask every 10 s,
/// and a node stages fewer files in that time.
const REMOVED: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not zero");

/// All staged files.
pub(crate) struct Registry {
    files: Mutex<HashMap<FileId, Arc<Tracked>>>,
    removed: Mutex<LruCache<FileId, ()>>,
    changed: watch::Sender<()>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            files: Mutex::default(),
            removed: Mutex::new(LruCache::new(REMOVED)),
            changed: watch::Sender::default(),
        }
    }
}

/// A staged file and its way to the store.
pub(crate) struct Tracked {
    pub(crate) file: StagedFile,
    /// Shared: the checksums of a large file take a megabyte.
    record: Mutex<Arc<Record>>,
    destination: Mutex<Destination>,
    /// Last failure of the upload or the publication, while it lasts.
    trouble: Mutex<Option<Error>>,
    /// Wakes a task that waits to try again.
    pub(crate) retry: Notify,
    /// True once its file is removed; held while its record is written.
    is_removed: tokio::sync::Mutex<bool>,
    /// True if somebody asked for its removal from the store as well.
    is_cancelled: AtomicBool,
    /// True while its upload waits for a commit that allows it.
    awaits_commit: AtomicBool,
    /// Held while a node is asked to keep the second copy.
    pub(crate) copying: tokio::sync::Mutex<()>,
    /// Node that was asked last: it may read the file.
    reader: Mutex<Option<String>>,
}

/// Way to the place that a file goes to.
struct Destination {
    /// Endpoint and credentials; without the secrets after a restart.
    options: Options,
    /// Number of times that somebody asked for another try.
    asked: u64,
}

impl Registry {
    pub(crate) fn add(&self, file: StagedFile, record: Record, options: Options) -> Arc<Tracked> {
        let id = record.id;
        let tracked = Arc::new(Tracked {
            file,
            record: Mutex::new(Arc::new(record)),
            destination: Mutex::new(Destination { options, asked: 0 }),
            trouble: Mutex::default(),
            retry: Notify::new(),
            is_removed: tokio::sync::Mutex::new(false),
            is_cancelled: AtomicBool::new(false),
            awaits_commit: AtomicBool::new(false),
            copying: tokio::sync::Mutex::default(),
            reader: Mutex::default(),
        });
        let mut files = self.lock();
        files.insert(id, tracked.clone());
        for id in tracked.record().commit.iter().flat_map(|commit| &commit.ids) {
            if let Some(file) = files.get(id).filter(|file| file.awaits_commit()) {
                file.retry.notify_one();
            }
        }
        drop(files);
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
        let id = tracked.lock().id;
        self.lock().remove(&id);
        self.removed.lock().unwrap_or_else(PoisonError::into_inner).put(id, ());
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
        self.change(tracked, |record| Record { progress, ..record }).await?;
        self.forget_trouble(tracked);
        Ok(())
    }

    /// Returns true for a file that was removed, as far back as is remembered.
    pub(crate) fn had(&self, id: FileId) -> bool {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Forgets a file, which stays on the tier: whoever has it removes or changes nothing of it by
    /// this registry any more. Returns false if it was removed or forgotten before.
    pub(crate) async fn take(&self, tracked: &Tracked) -> bool {
        let mut is_removed = tracked.is_removed.lock().await;
        if *is_removed {
            return false;
        }
        *is_removed = true;
        let id = tracked.lock().id;
        self.lock().remove(&id);
        self.changed.send_replace(());
        true
    }

    /// Notes the node that keeps the second copy of a file, on the tier first.
    ///
    /// # Errors
    /// As [`Registry::note`].
    pub(crate) async fn note_keeper(&self, tracked: &Tracked, keeper: String) -> Result<()> {
        self.change(tracked, |record| Record { keeper: Some(keeper), ..record }).await
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
        self.change(tracked, change).await?;
        self.forget_trouble(tracked);
        Ok(())
    }

    fn forget_trouble(&self, tracked: &Tracked) {
        tracked.set_trouble(None);
        self.changed.send_replace(());
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
        self.changed.send_replace(());
        Ok(())
    }

    /// Notes a failure that lasts, of a try that began when somebody had asked for one so many
    /// times. Returns false without a note if somebody asked again meanwhile: the credentials may
    /// be others, and what was in the way may be gone.
    pub(crate) fn note_trouble(&self, tracked: &Tracked, asked: u64, error: Error) -> bool {
        let destination = tracked.lock_destination();
        let is_last = destination.asked == asked;
        if is_last {
            tracked.set_trouble(Some(error));
        }
        drop(destination);
        self.changed.send_replace(());
        is_last
    }

    /// Replaces the credentials of a file, forgets the last failure, and wakes its task. One that
    /// awaits its commit sleeps on.
    pub(crate) fn supply(&self, tracked: &Tracked, fresh: Options) {
        let mut destination = tracked.lock_destination();
        destination.options = fresh;
        destination.asked += 1;
        tracked.set_trouble(None);
        drop(destination);
        if !tracked.awaits_commit() {
            tracked.retry.notify_one();
        }
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
        self.lock().level()
    }

    /// Lets a node read the file, to keep the second copy.
    pub(crate) fn let_read(&self, node: &str) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(node.to_owned());
    }

    /// Returns true if a node may read the file.
    pub(crate) fn may_read(&self, node: &str) -> bool {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(node)
    }

    pub(crate) fn options(&self) -> Options {
        self.lock_destination().options.clone()
    }

    /// Returns the number of times that somebody asked for another try.
    pub(crate) fn asked(&self) -> u64 {
        self.lock_destination().asked
    }

    fn lock_destination(&self) -> MutexGuard<'_, Destination> {
        self.destination.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true once its file is removed.
    pub(crate) async fn is_removed(&self) -> bool {
        *self.is_removed.lock().await
    }

    /// Returns true if somebody asked for its removal from the store as well.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Returns true while its upload waits for a commit that allows it.
    pub(crate) fn awaits_commit(&self) -> bool {
        self.awaits_commit.load(Ordering::Acquire)
    }

    /// Sleeps until the commit of this file may be there, or its removal, unless `has_come` says
    /// that it is there.
    pub(crate) async fn await_commit(&self, has_come: impl Fn() -> bool) {
        self.awaits_commit.store(true, Ordering::Release);
        // A commit that came before does not see that this waits.
        if !has_come() {
            self.retry.notified().await;
        }
        self.awaits_commit.store(false, Ordering::Release);
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
