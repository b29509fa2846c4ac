//! A disk with random faults.
//!
//! Faults are errors that kernels return, with a set chance and at random moments.

use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use forebay_store::{Extent, Files, LocalFiles};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use rustix::io::Errno;

use crate::random::Random;

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// No faults.
    None,
    /// Reads fail with EIO.
    Reads,
    /// Writes and syncs fail with EIO, some of them with a part written.
    Writes,
    /// Writes and new files fail with ENOSPC.
    Full,
    /// Changes of directories fail with EIO.
    Names,
    /// Transfers are short at first.
    Short,
    /// Transfers end after others that began later.
    Late,
}

/// Polls of a late transfer: others end meanwhile.
const LATE: u32 = 20;

/// Files and faults of such a disk.
pub struct RandomFaults(Mutex<State>);

struct State {
    kind: DiskFault,
    /// Chance of a fault in percent.
    chance: u64,
    random: Random,
}

impl fmt::Debug for RandomFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RandomFaults").field(&self.state().kind).finish()
    }
}

impl RandomFaults {
    /// A disk without faults yet.
    #[must_use]
    pub fn new(random: Random) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { kind: DiskFault::None, chance: 0, random })))
    }

    /// Sets the kind of fault and its chance in percent.
    pub fn set(&self, kind: DiskFault, chance: u64) {
        let mut state = self.state();
        (state.kind, state.chance) = (kind, chance);
    }

    /// Returns the fault that this operation meets, if any, and a random number for its extent.
    fn meets(&self) -> Option<(DiskFault, u64)> {
        let mut state = self.state();
        let chance = state.chance;
        (state.kind != DiskFault::None && state.random.percent(chance))
            .then(|| (state.kind, state.random.number()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.meets() {
            Some((DiskFault::Names, _)) => Err(Errno::IO.into()),
            _ => call(),
        }
    }
}

impl Faults for RandomFaults {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let Some((kind, number)) = self.meets() else { return Fate::Pass };
        let some = usize::try_from(number % (attempt.len as u64 + 1)).expect("a length fits");
        match (kind, attempt.kind) {
            (DiskFault::Reads, AttemptKind::Read) | (DiskFault::Writes, AttemptKind::Sync) => {
                Fate::Fail(Errno::IO.raw_os_error())
            }
            (DiskFault::Writes, AttemptKind::Write) => Fate::Torn(some),
            (DiskFault::Full, AttemptKind::Write) => Fate::Fail(Errno::NOSPC.raw_os_error()),
            (DiskFault::Short, AttemptKind::Read | AttemptKind::Write) => Fate::Short(some),
            (DiskFault::Late, _) => Fate::Wait(Box::pin(Late(LATE))),
            _ => Fate::Pass,
        }
    }

    fn landed(&self, _: &Attempt<'_>, _: bool) {}
}

/// A future that is ready after this many polls.
struct Late(u32);

impl Future for Late {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        std::thread::yield_now();
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Files for RandomFaults {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.meets() {
            Some((DiskFault::Names, _)) => Err(Errno::IO.into()),
            Some((DiskFault::Full, _)) => {
                // As on a full disk, a part of the file is there.
                LocalFiles.write(path, &bytes[..bytes.len() / 2])?;
                Err(Errno::NOSPC.into())
            }
            _ => LocalFiles.write(path, bytes),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|| LocalFiles.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|| LocalFiles.remove(path))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.change(|| LocalFiles.truncate(path, len))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.change(|| LocalFiles.sync_directory(path))
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        LocalFiles.extent(path)
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        LocalFiles.identity(path)
    }
}
