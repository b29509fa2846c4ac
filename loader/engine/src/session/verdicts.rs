//! Shards whose samples a job was handed before it was known whether they are right.
//!
//! One rule: what turns out wrong is told, once for each shard and run, with the next batch or at the run's
//! end; nothing waits for it before that end. What is not known even then stays with the job, for its next
//! run to tell.

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
    open: Vec<(u32, Verdict)>,
    /// Shards that the run was told of.
    told: HashSet<u32>,
    /// The same of all runs.
    total: u64,
}

impl Verdicts {
    /// Another run begins.
    pub(super) fn begin(&self) {
        self.lock().told.clear();
    }

    /// The job takes samples of this shard, as it came then.
    pub(super) fn note(&self, number: u32, shard: &Shard) {
        let verdict = shard.verdict();
        // As most are: it lay on a tier.
        if verdict.known() == Some(Ok(())) {
            return;
        }
        let mut state = self.lock();
        state.open.retain(|(_, open)| open.known() != Some(Ok(())));
        if !state.open.iter().any(|(_, open)| open.is_of_the_same(verdict)) {
            state.open.push((number, verdict.clone()));
        }
    }

    /// What turned out wrong and was not told in this run. It counts as told.
    pub(super) fn wrong(&self) -> Vec<Error> {
        let mut state = self.lock();
        let State { open, told, total } = &mut *state;
        let mut wrong = Vec::new();
        open.retain(|(shard, verdict)| {
            // Looked at once: it may come to be known meanwhile.
            let known = verdict.known();
            if let Some(Err(error)) = known
                && told.insert(*shard)
            {
                *total += 1;
                wrong.push(error.clone().advise(
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
        let open: Vec<_> = self.lock().open.iter().map(|(_, verdict)| verdict.clone()).collect();
        async move {
            for verdict in open {
                verdict.settled().await;
            }
        }
    }

    /// How many are not known.
    pub(super) fn pending(&self) -> usize {
        self.lock().open.iter().filter(|(_, verdict)| verdict.known().is_none()).count()
    }

    /// Shards that were told, in all runs.
    pub(super) fn total(&self) -> u64 {
        self.lock().total
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
