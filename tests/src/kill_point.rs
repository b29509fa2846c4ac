//! Files and faults of a process that kills itself at a chosen system call.
//!
//! The kill is a real SIGKILL, sent before a call, after it, or with half of it done. The
//! process prints the place in its last line.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_store::{Extent, Files, LocalFiles};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

/// Stage of a shard's life at which a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KillStage {
    /// Writing the data of a shard.
    Fill,
    /// Committing a shard: truncating it, writing, renaming and syncing its sidecar.
    Commit,
    /// Writing, renaming or removing the record of an unfinished shard.
    Record,
    /// Removing a sidecar or a shard.
    Eviction,
}

/// Part of the call that is done before the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillTiming {
    /// Nothing.
    Before,
    /// Half, of calls that can be done by half.
    Half,
    /// All.
    After,
}

/// Call at which a process kills itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillPoint {
    /// Stage of the call.
    pub stage: KillStage,
    /// Number of the call among those of its stage, from one.
    pub nth: u64,
    /// Part of the call that is done.
    pub how: KillTiming,
}

/// Files and faults that kill their process at one call.
pub struct KillingFiles {
    kill_point: Option<KillPoint>,
    calls: AtomicU64,
    /// The last write, once it is under way; attempts count from zero.
    last: AtomicU64,
}

impl fmt::Debug for KillingFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KillingFiles").field(&self.kill_point).finish()
    }
}

impl KillingFiles {
    /// Files of a process that dies at this call, or never.
    #[must_use]
    pub fn new(kill_point: Option<KillPoint>) -> Self {
        Self { kill_point, calls: AtomicU64::new(0), last: AtomicU64::new(u64::MAX) }
    }

    /// Returns the part of this call to do if it is the last one.
    fn meets(&self, stage: KillStage) -> Option<KillTiming> {
        let kill_point = self.kill_point.filter(|kill_point| kill_point.stage == stage)?;
        (self.calls.fetch_add(1, Ordering::SeqCst) + 1 == kill_point.nth).then_some(kill_point.how)
    }

    fn call<T>(
        &self,
        stage: Option<KillStage>,
        name: &str,
        half: impl FnOnce(),
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match stage.and_then(|stage| self.meets(stage).map(|how| (stage, how))) {
            None => call(),
            Some((stage, how)) => {
                match how {
                    KillTiming::Before => {}
                    KillTiming::Half => half(),
                    // The process dies whatever the result.
                    KillTiming::After => drop(call()),
                }
                die(stage, name, how)
            }
        }
    }
}

/// Prints the place and kills this process by SIGKILL.
fn die(stage: KillStage, call: &str, how: KillTiming) -> ! {
    let mut out = io::stdout().lock();
    // Fails only if the parent is gone.
    let _ = writeln!(out, "died {stage:?} {call} {how:?}");
    let _ = out.flush();
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        // The signal is pending.
        std::thread::park();
    }
}

fn ends(path: &Path, ending: &str) -> bool {
    path.to_string_lossy().ends_with(ending)
}

/// Stage in which a file of this name is changed.
fn spot_of(path: &Path) -> Option<KillStage> {
    if ends(path, ".idx") || ends(path, ".idx.new") {
        Some(KillStage::Commit)
    } else if ends(path, ".part") || ends(path, ".part.new") {
        Some(KillStage::Record)
    } else {
        None
    }
}

impl Files for KillingFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // No caller sees the result.
        let half = || drop(LocalFiles.write(path, &bytes[..bytes.len() / 2]));
        self.call(spot_of(path), "write", half, || LocalFiles.write(path, bytes))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(spot_of(to), "rename", || (), || LocalFiles.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        // A record is removed with its shard or once that is whole; most often there is none.
        let stage = match ends(path, ".part") {
            true => path.exists().then_some(KillStage::Record),
            false => Some(KillStage::Eviction),
        };
        self.call(stage, "remove", || (), || LocalFiles.remove(path))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.call(Some(KillStage::Commit), "truncate", || (), || LocalFiles.truncate(path, len))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let stage = path.ends_with("shards").then_some(KillStage::Commit);
        self.call(stage, "sync_directory", || (), || LocalFiles.sync_directory(path))
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        LocalFiles.extent(path)
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        LocalFiles.identity(path)
    }
}

impl Faults for KillingFiles {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        if attempt.kind != AttemptKind::Write {
            return Fate::Pass;
        }
        match self.meets(KillStage::Fill) {
            None => Fate::Pass,
            Some(KillTiming::Before) => die(KillStage::Fill, "write", KillTiming::Before),
            Some(how) => {
                self.last.store(attempt.id, Ordering::SeqCst);
                if how == KillTiming::Half { Fate::Torn(attempt.len / 2) } else { Fate::Pass }
            }
        }
    }

    fn landed(&self, attempt: &Attempt<'_>, _: bool) {
        if self.last.load(Ordering::SeqCst) == attempt.id
            && let Some(kill_point) = self.kill_point
        {
            die(KillStage::Fill, "write", kill_point.how);
        }
    }
}
