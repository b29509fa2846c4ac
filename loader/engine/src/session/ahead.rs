//! Looking ahead: shards the plan needs soon are fetched before they are asked for, and claimed so
//! that nothing pushes them out in between.
//!
//! Where the node knows what its jobs will read, it fetches for them itself; a job then only has come what its next batch needs.
//!
//! One rule: what the next batch needs comes first. Of all its shards those samples are waited for at once,
//! not shard by shard; and before the first batch is there, nothing else is fetched.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::ErrorKind;
use forebay_store::{Claim, Urgency};
use futures::StreamExt;
use tokio::task::JoinSet;

use super::Job;
use super::assembly::Place;
use super::gather::samples_of;

/// Shards fetched beyond those that are open at once: two rounds of the fills that run at once.
const BEYOND_OPEN: usize = 2 * forebay_store::FILLS;

/// Shards of a batch that are waited for at once: for each fill that runs, some whose identity and room are
/// there when their turn comes.
const EXPECTED: usize = 4 * forebay_store::FILLS;

/// Of the shards that are open at once, how many are looked at: the list is made anew with every
/// batch. Where more are open, as with a global shuffle, the next samples say which come first.
const OPEN_MAX: u64 = 1024;

/// The look-ahead of one run.
pub(super) struct Ahead {
    job: Arc<Job>,
    limit: usize,
    claims: Arc<Mutex<HashMap<u32, Option<Claim>>>>,
    tasks: JoinSet<()>,
    last: Vec<u32>,
    /// What the next batch waits for.
    expecting: JoinSet<()>,
    /// Shards that were found to be here: they are not looked for again.
    here: Arc<Mutex<HashSet<u32>>>,
    has_begun: bool,
    /// The epoch, if the run is one of an order that is known.
    epoch: Option<u64>,
}

impl Ahead {
    /// The look-ahead of a run that has `open` shards open at once; of an `epoch`, where its order is that of one.
    pub(super) fn new(job: Arc<Job>, open: u64, epoch: Option<u64>) -> Self {
        if epoch.is_none() {
            job.outlook.begins(&job, None);
        }
        let limit = usize::try_from(open.min(OPEN_MAX)).expect("a small number") + BEYOND_OPEN;
        Self {
            job,
            limit,
            claims: Arc::default(),
            tasks: JoinSet::new(),
            last: Vec::new(),
            expecting: JoinSet::new(),
            here: Arc::default(),
            has_begun: false,
            epoch,
        }
    }

    /// Whether a batch is there, or on its way.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Has the samples of the next batch come, of all its shards at once. Who gathers the batch meets what
    /// goes wrong with them.
    pub(super) async fn expect(&mut self, places: &[Place]) {
        if self.begin_to_expect(places) {
            self.job.outlook.is_told().await;
        }
    }

    /// The same, without waiting for anything; whether what the job will read is only now being told.
    fn begin_to_expect(&mut self, places: &[Place]) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first {
            let at = self.epoch.zip(places.first().map(|place| place.position));
            self.job.outlook.begins(&self.job, at);
        }
        let is_being_told = is_first && self.epoch.is_some();
        // Of the batch before, all is there.
        self.expecting.abort_all();
        while self.expecting.try_join_next().is_some() {}
        let mut samples = samples_of(places);
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        samples.retain(|(shard, _)| !here.contains(shard));
        drop(here);
        if samples.is_empty() {
            return is_being_told;
        }
        let (job, here) = (self.job.clone(), self.here.clone());
        let start = is_first.then(|| job.store.start());
        self.expecting.spawn(async move {
            let expected = futures::stream::iter(samples);
            let come = expected.for_each_concurrent(EXPECTED, |(shard, samples)| {
                let (job, here) = (&job, &here);
                async move {
                    match job.store.expect(job.url(shard), &job.origin, samples).await {
                        Ok(true) => {
                            here.lock().unwrap_or_else(PoisonError::into_inner).insert(shard);
                        }
                        Ok(false) => {}
                        Err(error) => {
                            tracing::debug!(url = job.url(shard), %error, "failed to expect samples");
                        }
                    }
                }
            });
            come.await;
            drop(start);
        });
        is_being_told
    }

    /// How many shards to look ahead.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Fetches and claims what of `upcoming` is not claimed yet, and lets go of everything else.
    pub(super) fn look(&mut self, mut upcoming: Vec<u32>) {
        while self.tasks.try_join_next().is_some() {}
        self.job.outlook.leave(&mut upcoming);
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if upcoming != self.last {
            let wanted: HashSet<_> = upcoming.iter().copied().collect();
            claims.retain(|shard, _| wanted.contains(shard));
            self.last = upcoming;
        }
        for &shard in &self.last {
            if self.tasks.len() >= BEYOND_OPEN {
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
