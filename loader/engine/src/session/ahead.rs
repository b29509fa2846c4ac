//! Look-ahead: shards the plan needs soon are fetched early and claimed, so that nothing evicts
//! them in between.
//!
//! Where the node knows the future reads of its jobs, it fetches for them itself, and a job
//! requests only the samples of its next batch.
//!
//! The next batch comes first. The samples of all its shards are awaited at once, not shard
//! by shard; before the first batch is ready, nothing else is fetched.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::ErrorKind;
use forebay_store::Claim;
use futures::StreamExt;
use tokio::task::JoinSet;

use super::JobData;
use super::assembly::SamplePlace;
use super::gather::samples_of;

/// Shards fetched beyond those open at once: one or two rounds of concurrent fills.
const BEYOND_OPEN: usize = 2 * forebay_store::FILLS;

/// Shards of a batch awaited at once: enough that identity and room of several are ready when each
/// concurrent fill frees up.
const EXPECTED: usize = 4 * forebay_store::FILLS;

/// Largest number of open shards considered, since the list is made anew with every batch. With
/// more open shards, as in a global shuffle, the next samples decide which come first.
const OPEN_MAX: u64 = 1024;

/// Look-ahead of one run.
pub(super) struct Ahead {
    job: Arc<JobData>,
    limit: usize,
    claims: Arc<Mutex<HashMap<u32, Option<Claim>>>>,
    tasks: JoinSet<()>,
    last: Vec<u32>,
    /// Shards that the next batch waits for.
    expecting: JoinSet<()>,
    /// Shards known to be cached: they are not looked up again.
    here: Arc<Mutex<HashSet<u32>>>,
    has_begun: bool,
    /// The epoch, if the run follows a known order.
    epoch: Option<u64>,
}

impl Ahead {
    /// Makes the look-ahead of a run with `open` shards open at once; `epoch` is set if its order
    /// is that of an epoch.
    pub(super) fn new(job: Arc<JobData>, open: u64, epoch: Option<u64>) -> Self {
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

    /// True if a batch is ready or being made.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Requests the samples of the next batch from all its shards at once. Errors surface where the
    /// batch is gathered.
    pub(super) async fn expect(&mut self, places: &[SamplePlace]) {
        if self.begin_to_expect(places) {
            self.job.outlook.is_told().await;
        }
    }

    /// Does the same without waiting; returns true if the job's future reads are still being
    /// announced.
    fn begin_to_expect(&mut self, places: &[SamplePlace]) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first {
            let at = self.epoch.zip(places.first().map(|place| place.position));
            self.job.outlook.begins(&self.job, at);
        }
        let is_being_told = is_first && self.epoch.is_some();
        // All samples of the batch before have arrived.
        self.expecting.abort_all();
        while self.expecting.try_join_next().is_some() {}
        let mut samples = samples_of(places);
        let others = samples.iter().flat_map(|(shard, samples)| {
            self.job.joins.others(*shard).map(|other| (other, *samples))
        });
        samples.extend(others.collect::<Vec<_>>());
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        samples.retain(|(shard, _)| !here.contains(shard));
        drop(here);
        if samples.is_empty() {
            return is_being_told;
        }
        let (job, here) = (self.job.clone(), self.here.clone());
        let start = is_first.then(|| job.store.wait_for_first_batch());
        self.expecting.spawn(async move {
            let expected = futures::stream::iter(samples);
            let come = expected.for_each_concurrent(EXPECTED, |(shard, samples)| {
                let (job, here) = (&job, &here);
                async move {
                    match job.wait_for_samples(shard, samples).await {
                        Ok(true) => {
                            here.lock().unwrap_or_else(PoisonError::into_inner).insert(shard);
                        }
                        Ok(false) => {}
                        Err(error) => {
                            tracing::debug!(url = job.url(shard), %error, "failed to request samples");
                        }
                    }
                }
            });
            come.await;
            drop(start);
        });
        is_being_told
    }

    /// Returns the number of shards to look ahead.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Fetches and claims the unclaimed shards of `upcoming`, and releases all others.
    pub(super) fn look(&mut self, mut upcoming: Vec<u32>) {
        while self.tasks.try_join_next().is_some() {}
        let of = |shard| std::iter::once(shard).chain(self.job.joins.others(shard));
        upcoming = upcoming.into_iter().flat_map(of).collect();
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
                let fetched = job.fetch_ahead(shard).await;
                let mut claims = claims.lock().unwrap_or_else(PoisonError::into_inner);
                match fetched {
                    Ok(arriving) => {
                        if let Some(claim) = claims.get_mut(&shard) {
                            *claim = Some(job.store.claim(&arriving));
                        }
                    }
                    Err(error) => {
                        // The error is reported where the shard is needed; a full tier may have
                        // room at the next look.
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
