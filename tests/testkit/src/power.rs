//! Simulated power: cut at a chosen call, for good.
//!
//! The call at the cut may be done, in part or whole, and reports an error. Every later call
//! fails and changes nothing.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use rustix::io::Errno;

/// Power of a machine's disks.
#[derive(Default)]
pub struct Power {
    left: Mutex<Left>,
    went: Condvar,
    then: Option<Arc<dyn Faults>>,
}

/// Remaining time with power.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Left {
    #[default]
    Always,
    /// Until the last of this many calls.
    Calls(u64),
    None,
}

/// State of the power at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// On.
    On,
    /// Cut during this call.
    Going,
    /// Off.
    Off,
}

impl fmt::Debug for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Power").field(&*self.left()).finish()
    }
}

impl Power {
    /// Power that stays on; `then` decides the fate of operations.
    #[must_use]
    pub fn on(then: Option<Arc<dyn Faults>>) -> Arc<Self> {
        Arc::new(Self { then, ..Self::default() })
    }

    /// Cuts the power in the `calls`-th call from now on that changes a disk.
    pub fn goes_after(&self, calls: u64) {
        *self.left() = Left::Calls(calls.max(1));
    }

    /// Cut during this call.
    pub fn off(&self) {
        *self.left() = Left::None;
        self.went.notify_all();
    }

    /// True if the power is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self.left() == Left::None
    }

    /// Waits until the power is off, at most this long; returns true if it is.
    #[must_use]
    pub fn wait(&self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        let mut left = self.left();
        while *left != Left::None {
            let Some(rest) = deadline.checked_duration_since(Instant::now()) else { return false };
            left = self.went.wait_timeout(left, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Counts a call that changes a disk.
    pub(crate) fn call(&self) -> Moment {
        let mut left = self.left();
        match *left {
            Left::Always => Moment::On,
            Left::None => Moment::Off,
            Left::Calls(calls) if calls > 1 => {
                *left = Left::Calls(calls - 1);
                Moment::On
            }
            Left::Calls(_) => {
                *left = Left::None;
                self.went.notify_all();
                Moment::Going
            }
        }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults for Power {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let gone = || Fate::Fail(Errno::IO.raw_os_error());
        if attempt.kind == AttemptKind::Read {
            return match self.is_off() {
                true => gone(),
                false => self.then.as_ref().map_or(Fate::Pass, |then| then.fate(attempt)),
            };
        }
        match (self.call(), attempt.kind) {
            (Moment::On, _) => self.then.as_ref().map_or(Fate::Pass, |then| then.fate(attempt)),
            // Half of the write reaches the disk.
            (Moment::Going, AttemptKind::Write) => Fate::Torn(attempt.len / 2),
            (Moment::Going | Moment::Off, _) => gone(),
        }
    }

    fn landed(&self, attempt: &Attempt<'_>, is_ok: bool) {
        if let Some(then) = &self.then {
            then.landed(attempt, is_ok);
        }
    }
}
