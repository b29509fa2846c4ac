//! A device that fails on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use forebay_uring::{Attempt, AttemptKind, Fate, Faults};

/// Fails operations on files below one directory.
#[derive(Debug)]
pub struct FaultyDevice {
    directory: PathBuf,
    reads: AtomicI32,
    writes: AtomicI32,
    failed: AtomicU64,
}

impl FaultyDevice {
    /// A device without faults yet.
    #[must_use]
    pub fn below(directory: &Path) -> Arc<Self> {
        let directory = directory.to_owned();
        let (reads, writes) = (AtomicI32::new(0), AtomicI32::new(0));
        Arc::new(Self { directory, reads, writes, failed: AtomicU64::new(0) })
    }

    /// Fails reads with this errno from now on; 0 lets them pass.
    pub fn fail_reads(&self, errno: i32) {
        self.reads.store(errno, Ordering::SeqCst);
    }

    /// Fails writes and syncs with this errno from now on; 0 lets them pass.
    pub fn fail_writes(&self, errno: i32) {
        self.writes.store(errno, Ordering::SeqCst);
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
        if !is_here || errno == 0 {
            return Fate::Pass;
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        Fate::Fail(errno)
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}
