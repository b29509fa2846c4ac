//! A device that fails on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use tokio::sync::watch;

/// Fails operations on files below one directory.
#[derive(Debug)]
pub struct FaultyDevice {
    directory: PathBuf,
    reads: AtomicI32,
    writes: AtomicI32,
    failed: AtomicU64,
    /// True while no operation ends.
    silent: watch::Sender<bool>,
}

impl FaultyDevice {
    /// A device without faults yet.
    #[must_use]
    pub fn below(directory: &Path) -> Arc<Self> {
        let directory = directory.to_owned();
        let (reads, writes) = (AtomicI32::new(0), AtomicI32::new(0));
        Arc::new(Self {
            directory,
            reads,
            writes,
            failed: AtomicU64::new(0),
            silent: watch::Sender::new(false),
        })
    }

    /// Fails reads with this errno from now on; 0 lets them pass.
    pub fn fail_reads(&self, errno: i32) {
        self.reads.store(errno, Ordering::SeqCst);
    }

    /// Fails writes and syncs with this errno from now on; 0 lets them pass.
    pub fn fail_writes(&self, errno: i32) {
        self.writes.store(errno, Ordering::SeqCst);
    }

    /// Holds back every operation from now on, without an error, until it is `false`.
    pub fn hang(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// Number of operations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        // One receiver each.
        self.silent.receiver_count()
    }

    /// Number of failed operations.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }
}

impl Faults for FaultyDevice {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let is_here = attempt.file.path().is_some_and(|path| path.starts_with(&self.directory));
        let errno = match attempt.kind {
            AttemptKind::Read => self.reads.load(Ordering::SeqCst),
            AttemptKind::Write | AttemptKind::Sync => self.writes.load(Ordering::SeqCst),
        };
        if is_here && *self.silent.borrow() {
            let mut silent = self.silent.subscribe();
            return Fate::Wait(Box::pin(async move {
                // Fails if the device is gone: nothing waits then.
                let _ = silent.wait_for(|silent| !silent).await;
            }));
        }
        if !is_here || errno == 0 {
            return Fate::Pass;
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        Fate::Fail(errno)
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}
