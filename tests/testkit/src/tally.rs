//! Counters that tests can wait for.

use std::fmt::Debug;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Limit of a wait: far above any step of a test. Reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counters that change.
#[derive(Default)]
pub(crate) struct Tally<C> {
    counts: Mutex<C>,
    changed: Condvar,
}

impl<C: Clone + Debug> Tally<C> {
    pub(crate) fn add(&self, change: impl FnOnce(&mut C)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(crate) fn now(&self) -> C {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until they satisfy `condition`.
    ///
    /// # Panics
    /// If they do not within a minute: the test has failed.
    pub(crate) fn wait_until(&self, condition: impl Fn(&C) -> bool) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, timeout) = self
            .changed
            .wait_timeout_while(counts, PATIENCE, |counts| !condition(counts))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "it never came to that: {counts:?}");
    }

    /// Counts one more of a gauge for as long as the result lives.
    pub(crate) fn present(&self, which: fn(&mut C) -> &mut u64) -> Present<'_, C> {
        self.add(|counts| *which(counts) += 1);
        Present { tally: self, which }
    }
}

/// One count of a gauge, given back when dropped, also if the client leaves.
pub(crate) struct Present<'a, C: Clone + Debug> {
    tally: &'a Tally<C>,
    which: fn(&mut C) -> &mut u64,
}

impl<C: Clone + Debug> Drop for Present<'_, C> {
    fn drop(&mut self) {
        self.tally.add(|counts| *(self.which)(counts) -= 1);
    }
}
