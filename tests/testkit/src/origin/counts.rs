//! What the server has done, and waiting for it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Far above what any step of a test takes; reaching it is the test's failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server has served. Keys are `bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of every kind, refused ones included.
    pub requests: u64,
    /// HEAD requests per key.
    pub heads: BTreeMap<String, u64>,
    /// GET requests per key.
    pub gets: BTreeMap<String, u64>,
    /// Body bytes handed to the connection per key, by GET.
    pub bytes: BTreeMap<String, u64>,
    /// Bodies held back at this moment.
    pub stalled: u64,
}

/// Counts that change.
#[derive(Default)]
pub(super) struct Tally {
    counts: Mutex<Counts>,
    changed: Condvar,
}

impl Tally {
    pub(super) fn add(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(super) fn now(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn wait_until(&self, condition: impl Fn(&Counts) -> bool) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, timeout) = self
            .changed
            .wait_timeout_while(counts, PATIENCE, |counts| !condition(counts))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the origin never came to that: {counts:?}");
    }
}
