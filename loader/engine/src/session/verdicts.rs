//! Shards whose samples a job was handed before it was known whether they are right.
//!
//! One rule: what turns out wrong is told, once for each shard and run, with the next batch or at the run's
//! end, but never with a batch before the first that has, or would have had, samples of it: batches are made far ahead.
//! Nothing waits for it before that end. What is not known even then stays with the job, for its next run to tell.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_error::Error;
use forebay_store::{Shard, Verdict};

/// What a job still has to hear. It holds as many verdicts as fills of its shards are under way.
#[derive(Default)]
pub(crate) struct Verdicts(Mutex<State>);

#[derive(Default)]
struct State {
    /// Not known, or not told.
    open: Vec<Open>,
    /// Shards that the run was told of.
    told: HashSet<u32>,
    /// The same of all runs.
    total: u64,
}

/// What is open of a shard.
struct Open {
    shard: u32,
    /// The first batch of the run that has samples of it.
    since: u64,
    verdict: Verdict,
}

impl Verdicts {
    /// Another run begins.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.told.clear();
        // What the run before left open concerns none of this one's batches.
        state.open.iter_mut().for_each(|open| open.since = 0);
    }

    /// Batch `batch` takes samples of this shard, as it came then.
    pub(super) fn note(&self, number: u32, shard: &Shard, batch: u64) {
        let verdict = shard.verdict();
        // As most are: it lay on a tier.
        if verdict.known() == Some(Ok(())) {
            return;
        }
        let mut state = self.lock();
        state.open.retain(|open| open.verdict.known() != Some(Ok(())));
        match state.open.iter_mut().find(|open| open.verdict.is_of_the_same(verdict)) {
            // Of batches that are made at once any may come first.
            Some(open) => open.since = open.since.min(batch),
            None => {
                let verdict = verdict.clone();
                state.open.push(Open { shard: number, since: batch, verdict });
            }
        }
    }

    /// What turned out wrong of batches up to `batch` and was not told in this run. It counts as told.
    pub(super) fn wrong(&self, batch: u64) -> Vec<Error> {
        let mut state = self.lock();
        let State { open, told, total } = &mut *state;
        let mut wrong = Vec::new();
        open.retain(|Open { shard, since, verdict }| {
            if *since > batch {
                return true;
            }
            // Looked at once: it may come to be known meanwhile.
            let known = verdict.known();
            if let Some(Err(error)) = known
                && told.insert(*shard)
            {
                *total += 1;
                wrong.push(error.clone().at("samples", "served").advise(
                    "samples of it that this job had before may be wrong: go back to a state from before them if that \
                     matters; nothing of it was kept, the next use fetches it anew, and if it stays so, upload it again",
                ));
            }
            known.is_none()
        });
        wrong
    }

    /// Waits until all of it is known.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let open: Vec<_> = self.lock().open.iter().map(|open| open.verdict.clone()).collect();
        async move {
            for verdict in open {
                verdict.settled().await;
            }
        }
    }

    /// How many are not known.
    pub(super) fn pending(&self) -> usize {
        self.lock().open.iter().filter(|open| open.verdict.known().is_none()).count()
    }

    /// Shards that were told, in all runs.
    pub(super) fn total(&self) -> u64 {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
