//! Looking ahead: shards the plan needs soon are fetched before they are asked for, and claimed so
//! that nothing pushes them out in between.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::ErrorKind;
use forebay_store::{Claim, Urgency};
use forebay_wire::message::Shuffle;
use tokio::task::JoinSet;

use super::Job;

/// Shards fetched beyond those the current window needs: two rounds of the fills that run at once.
const BEYOND_WINDOW: usize = 2 * forebay_store::FILLS;

/// The look-ahead of one run.
pub(super) struct Ahead {
    job: Arc<Job>,
    claims: Arc<Mutex<HashMap<u32, Option<Claim>>>>,
    tasks: JoinSet<()>,
    last: Vec<u32>,
}

impl Ahead {
    pub(super) fn new(job: Arc<Job>) -> Self {
        Self { job, claims: Arc::default(), tasks: JoinSet::new(), last: Vec::new() }
    }

    /// How many shards to look ahead.
    pub(super) fn limit(&self) -> usize {
        match self.job.spec.order.shuffle {
            // Every shard may be needed by the next batch.
            Shuffle::Global => usize::MAX,
            Shuffle::None | Shuffle::Window => self.job.spec.order.window as usize + BEYOND_WINDOW,
        }
    }

    /// Fetches and claims what of `upcoming` is not claimed yet, and lets go of everything else.
    pub(super) fn look(&mut self, upcoming: Vec<u32>) {
        while self.tasks.try_join_next().is_some() {}
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if upcoming != self.last {
            let wanted: std::collections::HashSet<_> = upcoming.iter().copied().collect();
            claims.retain(|shard, _| wanted.contains(shard));
            self.last = upcoming;
        }
        for &shard in &self.last {
            if self.tasks.len() >= BEYOND_WINDOW {
                break;
            }
            if claims.contains_key(&shard) {
                continue;
            }
            claims.insert(shard, None);
            let (job, claims) = (self.job.clone(), self.claims.clone());
            self.tasks.spawn(async move {
                let fetched = job.store.shard(job.url(shard), &job.origin, Urgency::Ahead).await;
                let mut claims = claims.lock().unwrap_or_else(PoisonError::into_inner);
                match fetched {
                    Ok(arriving) => {
                        if let Some(claim) = claims.get_mut(&shard) {
                            *claim = Some(job.store.claim(&arriving));
                        }
                    }
                    Err(error) => {
                        // Whoever needs the shard meets the error and reports it; a full tier may
                        // have room by the next look.
                        if error.kind() != ErrorKind::Full {
                            tracing::debug!(url = job.url(shard), %error, "failed to fetch ahead");
                        } else {
                            claims.remove(&shard);
                        }
                    }
                }
            });
        }
    }
}
