//! Jobs that wait for their first batch.
//!
//! Until its first batch is there, only awaited samples of a job are fetched. A network that
//! carries only those brings them several times sooner than one shared with the rest of the same
//! shards.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

/// Jobs of a store that wait for their first batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstBatchWaits(Arc<watch::Sender<StartState>>);

#[derive(Debug, Default)]
pub(super) struct StartState {
    /// Jobs by number, with the count of their starts.
    jobs: HashMap<u64, usize>,
    closed: bool,
}

impl StartState {
    fn has(&self, job: u64) -> bool {
        !self.closed && self.jobs.contains_key(&job)
    }
}

/// Marks a job as waiting for its first batch, until dropped.
#[derive(Debug)]
pub struct FirstBatchWait {
    starts: FirstBatchWaits,
    job: u64,
}

impl Drop for FirstBatchWait {
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

impl FirstBatchWaits {
    /// Marks a job as waiting for its first batch.
    pub(crate) fn begin(&self, job: u64) -> FirstBatchWait {
        self.0.send_modify(|state| *state.jobs.entry(job).or_default() += 1);
        FirstBatchWait { starts: self.clone(), job }
    }

    /// Returns true if this job waits for its first batch.
    pub(super) fn has(&self, job: u64) -> bool {
        self.0.borrow().has(job)
    }

    /// Watches jobs that begin or end to wait.
    pub(super) fn watch(&self) -> watch::Receiver<StartState> {
        self.0.subscribe()
    }

    /// Waits until this job no longer waits for its first batch, or all waits are closed.
    pub(super) async fn over(&self, job: u64) {
        // Cannot fail: `self` holds the sender.
        let _ = self.watch().wait_for(|state| !state.has(job)).await;
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        self.0.send_modify(|state| state.closed = true);
    }
}
