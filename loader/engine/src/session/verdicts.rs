//! Shards whose samples a job received before they were verified.
//!
//! A wrong shard is reported once per shard and run, with the next batch or at the run's end,
//! but never with a batch before the first one that has, or would have had, its samples, since
//! batches are made far ahead. Nothing waits for a verdict before that end. A verdict still unknown
//! then stays with the job for its next run.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_error::Error;
use forebay_store::{Shard, Verdict};

/// Verdicts a job still has to hear: as many as fills of its shards are in progress.
#[derive(Default)]
pub(crate) struct Verdicts(Mutex<VerdictState>);

#[derive(Default)]
struct VerdictState {
    /// Unknown or unreported verdicts.
    open: Vec<Open>,
    /// Shards reported in this run.
    told: HashSet<u32>,
    /// Shards reported in all runs.
    total: u64,
}

/// An unreported verdict of a shard.
struct Open {
    shard: u32,
    /// First batch of the run with samples of it.
    since: u64,
    verdict: Verdict,
}

impl Verdicts {
    /// Starts another run.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.told.clear();
        // Verdicts left from the run before concern none of this run's batches.
        state.open.iter_mut().for_each(|open| open.since = 0);
    }

    /// Records that batch `batch` takes samples of this shard.
    pub(super) fn note(&self, number: u32, shard: &Shard, batch: u64) {
        let verdict = shard.verdict();
        // The common case: it was on a tier.
        if verdict.known() == Some(Ok(())) {
            return;
        }
        let mut state = self.lock();
        state.open.retain(|open| open.verdict.known() != Some(Ok(())));
        match state.open.iter_mut().find(|open| open.verdict.is_of_the_same(verdict)) {
            // Batches made in parallel may come in any order.
            Some(open) => open.since = open.since.min(batch),
            None => {
                let verdict = verdict.clone();
                state.open.push(Open { shard: number, since: batch, verdict });
            }
        }
    }

    /// Takes the wrong shards of batches up to `batch` that this run has not reported, and marks
    /// them as reported.
    pub(super) fn wrong(&self, batch: u64) -> Vec<Error> {
        let mut state = self.lock();
        let VerdictState { open, told, total } = &mut *state;
        let mut wrong = Vec::new();
        open.retain(|Open { shard, since, verdict }| {
            if *since > batch {
                return true;
            }
            // Read once: it may become known meanwhile.
            let known = verdict.known();
            if let Some(Err(error)) = known
                && told.insert(*shard)
            {
                *total += 1;
                wrong.push(error.clone().at("samples", "served").advise(
                    "samples of it that this job received may be wrong: resume from a \
                             state before them if that matters; the copy was dropped and the \
                             next use fetches it again; if it stays wrong, upload the shard again",
                ));
            }
            known.is_none()
        });
        wrong
    }

    /// Waits until every verdict is known.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let open: Vec<_> = self.lock().open.iter().map(|open| open.verdict.clone()).collect();
        async move {
            for verdict in open {
                verdict.settled().await;
            }
        }
    }

    /// Returns the number of unknown verdicts.
    pub(super) fn pending(&self) -> usize {
        self.lock().open.iter().filter(|open| open.verdict.known().is_none()).count()
    }

    /// Returns the number of shards reported in all runs.
    pub(super) fn total(&self) -> u64 {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, VerdictState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
