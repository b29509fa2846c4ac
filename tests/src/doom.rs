//! A process that kills itself in the middle of what it does, at a place of the test's choice.
//!
//! The kill is a real SIGKILL, given before a system call, after it, or with half of it done;
//! the last line the process says tells where it was.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_store::{Extent, Files, LocalFiles};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

/// In the middle of what a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Spot {
    /// Data of a shard being written.
    Fill,
    /// A shard cut to its length, its sidecar written aside, put in place and made durable.
    Commit,
    /// A record of an unfinished shard written aside, put in place or removed.
    Record,
    /// A sidecar or a shard being removed.
    Eviction,
}

/// How much of the call is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// Nothing.
    Before,
    /// Half, of what can be done by half.
    Half,
    /// All.
    After,
}

/// When a process is to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doom {
    /// In what.
    pub spot: Spot,
    /// In the how manieth call of it, from one.
    pub nth: u64,
    /// How far that call comes.
    pub how: How,
}

/// Files and faults of a process that is to die.
pub struct Doomed {
    doom: Option<Doom>,
    calls: AtomicU64,
    /// The write that is the last one, once it is under way; attempts count from zero.
    last: AtomicU64,
}

impl fmt::Debug for Doomed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Doomed").field(&self.doom).finish()
    }
}

impl Doomed {
    /// Files of a process that dies so, or not at all.
    #[must_use]
    pub fn new(doom: Option<Doom>) -> Self {
        Self { doom, calls: AtomicU64::new(0), last: AtomicU64::new(u64::MAX) }
    }

    /// Whether this call is the last one, and how far it comes.
    fn meets(&self, spot: Spot) -> Option<How> {
        let doom = self.doom.filter(|doom| doom.spot == spot)?;
        (self.calls.fetch_add(1, Ordering::SeqCst) + 1 == doom.nth).then_some(doom.how)
    }

    fn call<T>(
        &self,
        spot: Option<Spot>,
        name: &str,
        half: impl FnOnce(),
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match spot.and_then(|spot| self.meets(spot).map(|how| (spot, how))) {
            None => call(),
            Some((spot, how)) => {
                match how {
                    How::Before => {}
                    How::Half => half(),
                    // It is over either way.
                    How::After => drop(call()),
                }
                die(spot, name, how)
            }
        }
    }
}

/// Says where, and ends this process as the kernel would.
fn die(spot: Spot, call: &str, how: How) -> ! {
    let mut out = io::stdout().lock();
    // Whoever started this is gone if it cannot be told.
    let _ = writeln!(out, "died {spot:?} {call} {how:?}");
    let _ = out.flush();
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        // The signal is on its way.
        std::thread::park();
    }
}

fn ends(path: &Path, ending: &str) -> bool {
    path.to_string_lossy().ends_with(ending)
}

/// What a file's name says of what is done with it.
fn spot_of(path: &Path) -> Option<Spot> {
    if ends(path, ".idx") || ends(path, ".idx.new") {
        Some(Spot::Commit)
    } else if ends(path, ".part") || ends(path, ".part.new") {
        Some(Spot::Record)
    } else {
        None
    }
}

impl Files for Doomed {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // Nobody hears how it went.
        let half = || drop(LocalFiles.write(path, &bytes[..bytes.len() / 2]));
        self.call(spot_of(path), "write", half, || LocalFiles.write(path, bytes))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(spot_of(to), "rename", || (), || LocalFiles.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        // A record goes when its shard is whole, or goes too; most often there is none.
        let spot = match ends(path, ".part") {
            true => path.exists().then_some(Spot::Record),
            false => Some(Spot::Eviction),
        };
        self.call(spot, "remove", || (), || LocalFiles.remove(path))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.call(Some(Spot::Commit), "truncate", || (), || LocalFiles.truncate(path, len))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let spot = path.ends_with("shards").then_some(Spot::Commit);
        self.call(spot, "sync_directory", || (), || LocalFiles.sync_directory(path))
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        LocalFiles.extent(path)
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        LocalFiles.identity(path)
    }
}

impl Faults for Doomed {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        if attempt.kind != AttemptKind::Write {
            return Fate::Pass;
        }
        match self.meets(Spot::Fill) {
            None => Fate::Pass,
            Some(How::Before) => die(Spot::Fill, "write", How::Before),
            Some(how) => {
                self.last.store(attempt.id, Ordering::SeqCst);
                if how == How::Half { Fate::Torn(attempt.len / 2) } else { Fate::Pass }
            }
        }
    }

    fn landed(&self, attempt: &Attempt<'_>, _: bool) {
        if self.last.load(Ordering::SeqCst) == attempt.id
            && let Some(doom) = self.doom
        {
            die(Spot::Fill, "write", doom.how);
        }
    }
}
