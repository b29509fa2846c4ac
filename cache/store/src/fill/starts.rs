//! Jobs that wait for their first batch.
//!
//! Its rule: until that batch is there, nothing of such a job's is fetched that nobody waits for: a network
//! that brings only what is waited for brings it several times sooner than one that is shared with the rest
//! of the same shards.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The jobs of a store that wait for their first batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Starts(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Jobs by number, and how many starts each has.
    jobs: HashMap<u64, usize>,
    closed: bool,
}

impl State {
    fn has(&self, job: u64) -> bool {
        !self.closed && self.jobs.contains_key(&job)
    }
}

/// A job waits for its first batch, until this is dropped.
#[derive(Debug)]
pub struct Start {
    starts: Starts,
    job: u64,
}

impl Drop for Start {
    fn drop(&mut self) {
        self.starts.0.send_modify(|state| {
            if let Some(starts) = state.jobs.get_mut(&self.job) {
                *starts -= 1;
                if *starts == 0 {
                    state.jobs.remove(&self.job);
                }
            }
        });
    }
}

impl Starts {
    /// This job waits for its first batch.
    pub(crate) fn begin(&self, job: u64) -> Start {
        self.0.send_modify(|state| *state.jobs.entry(job).or_default() += 1);
        Start { starts: self.clone(), job }
    }

    /// Whether this job waits for its first batch.
    pub(super) fn has(&self, job: u64) -> bool {
        self.0.borrow().has(job)
    }

    /// Hears of each that begins or ends.
    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    /// Waits until this job waits for no first batch, or none is waited for any more.
    pub(super) async fn over(&self, job: u64) {
        // The sender is this one's own.
        let _ = self.watch().wait_for(|state| !state.has(job)).await;
    }

    /// Nobody waits any more.
    pub(super) fn close(&self) {
        self.0.send_modify(|state| state.closed = true);
    }
}
