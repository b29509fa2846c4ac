//! What has passed a proxy, and waiting for it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Far above what any step of a test takes; reaching it is the test's failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// What has passed a proxy. Paths are without escapes and query: `/bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Of these, open at this moment.
    pub open: u64,
    /// Requests that came in.
    pub requests: u64,
    /// Answers by method and status; 0 is a connection that ended without one.
    pub answers: BTreeMap<(String, u16), u64>,
    /// Body bytes of objects handed to the connection, by path; what refusals say does not count.
    pub bytes: BTreeMap<String, u64>,
    /// Requests by path.
    pub asked: BTreeMap<String, u64>,
    /// Faults that met a request.
    pub faults: u64,
    /// Answers held back at this moment.
    pub stalled: u64,
}

impl Traffic {
    /// Answers to requests of this method with this status.
    #[must_use]
    pub fn answered(&self, method: &str, status: u16) -> u64 {
        self.answers.get(&(method.to_owned(), status)).copied().unwrap_or(0)
    }

    /// Body bytes of all paths.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.bytes.values().sum()
    }
}

/// Traffic that goes on.
#[derive(Default)]
pub(super) struct Tally {
    traffic: Mutex<Traffic>,
    changed: Condvar,
}

impl Tally {
    pub(super) fn add(&self, change: impl FnOnce(&mut Traffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(super) fn now(&self) -> Traffic {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn wait_until(&self, condition: impl Fn(&Traffic) -> bool) {
        let traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        let (traffic, timeout) = self
            .changed
            .wait_timeout_while(traffic, PATIENCE, |traffic| !condition(traffic))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the proxy never came to that: {traffic:?}");
    }

    /// A connection, for as long as this lives.
    pub(super) fn opened(&self) -> Counted<'_> {
        self.add(|traffic| traffic.connections += 1);
        Counted::new(self, |traffic| &mut traffic.open)
    }

    /// An answer held back, for as long as this lives: also when the client gives up.
    pub(super) fn stalled(&self) -> Counted<'_> {
        Counted::new(self, |traffic| &mut traffic.stalled)
    }
}

/// One of a kind that come and go.
pub(super) struct Counted<'a> {
    tally: &'a Tally,
    which: fn(&mut Traffic) -> &mut u64,
}

impl<'a> Counted<'a> {
    fn new(tally: &'a Tally, which: fn(&mut Traffic) -> &mut u64) -> Self {
        tally.add(|traffic| *which(traffic) += 1);
        Self { tally, which }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.tally.add(|traffic| *(self.which)(traffic) -= 1);
    }
}
