//! Announced reads of jobs, and the fetches made for them.
//!
//! The node fetches for all jobs, the shard needed first before all others. A job itself
//! fetches only what it waits for. If there is room, a needed shard is fetched at once; if another
//! must be evicted, as late as possible.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::simulate::Trace;
use forebay_policy::{Evict, Future, JobId, Role, Shard};
use forebay_source::{Options, object_of};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::{Store, StoreInner};
use crate::dataset::Cache;
use crate::directory::ObjectKey;
use crate::fill::WATCHED;
use crate::forecast::{Forecast, ForecastReport, NextFetch, ReadContext, Refusal, Scope};
use crate::shared_state::SharedState;
use crate::sizes::{FILLS, SMALL_BYTES, SMALL_FILLS};
use crate::tier::{Tier, Urgency};

/// Fetches ahead of need at once: as many as run at once, at least. An earlier request would only
/// take its room earlier.
const AT_ONCE: usize = FILLS;

/// Fetches ahead of need with those of small shards and those whose stores do not answer.
const ASKED_AT_ONCE: usize = SMALL_FILLS;

/// Bit of the numbers under which the forecast has the reads of a job on all nodes. Sessions are
/// counted from 1 on.
const ON_ALL_NODES: JobId = 1 << 63;

/// Reads that a job announces.
pub struct AnnouncedReads {
    /// Name of the job, for admins.
    pub name: String,
    /// URLs of its shards.
    pub urls: Arc<[String]>,
    /// Bytes of each shard.
    pub bytes: Vec<u64>,
    /// Endpoint and credentials for them.
    pub options: Options,
    /// Nodes whose reads they are.
    pub scope: Scope,
    /// Order of its reads, by shard id.
    pub future: Box<dyn FnOnce(Vec<Shard>) -> Box<dyn Future> + Send>,
}

/// A job with announced reads, until dropped.
pub struct Announcement {
    store: Weak<StoreInner>,
    /// True for the shards that the forecast decides about under the current rules.
    managed: Arc<[AtomicBool]>,
    forecast: Arc<Forecast>,
    job: JobId,
}

impl Announcement {
    /// Returns true if the node fetches this shard of the job, under the current rules.
    #[must_use]
    pub fn has(&self, shard: usize) -> bool {
        self.managed.get(shard).is_some_and(|has| has.load(Ordering::Relaxed))
    }

    /// Reports progress: bytes read in all, and the wait for batches since the last report.
    pub fn advance(&self, read: u64, waited: Duration) {
        self.forecast.advance(self.job, read, waited);
    }

    /// Reports a restart at this number of bytes read. Returns false if the job had read more
    /// before. The time since the last report does not count for its pace.
    #[must_use]
    pub fn restart_at(&self, read: u64) -> bool {
        self.forecast.restart_at(self.job, read)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let _changing = self.forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let orphans = self.forecast.remove_job(self.job);
        if let Some(inner) = self.store.upgrade() {
            inner.tiers.iter().for_each(Tier::refresh_forecast);
        }
        self.forecast.release_ids(orphans);
        self.forecast.changed.notify_one();
    }
}

/// Way for a shard to come in.
enum WayIn {
    /// There is room.
    Free,
    /// A shard that is needed later is evicted.
    Evict,
    /// No shard that may be evicted is needed later.
    Blocked,
    /// The limit of its data set or tenant is in the way.
    OverQuota,
}

impl Store {
    /// Announces the reads of a job. Costs O(n log n).
    ///
    /// # Errors
    /// As [`Store::shard`] for an invalid URL.
    pub fn announce(&self, reading: AnnouncedReads) -> Result<Announcement> {
        let AnnouncedReads { name, urls, bytes, options, scope, future } = reading;
        let mut objects = Vec::with_capacity(urls.len());
        for (url, bytes) in urls.iter().zip(bytes) {
            let source = self.inner.sources.open_for(url, &options, self.client.as_ref())?;
            objects.push((ObjectKey::new(source.endpoint(), &object_of(url)), bytes));
        }
        let forecast = self.inner.shared.forecast.clone();
        let (tenant, owner, job) = (self.tenant.clone(), self.owner, self.job.clone());
        let client = self.client.clone();
        let via = Arc::new(ReadContext { scope, tenant, owner, job, client, options, urls });
        let number = match scope {
            Scope::Node(_) => owner,
            Scope::Cluster => owner | ON_ALL_NODES,
        };
        let managed = {
            let _changing = forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
            forecast.add_job(number, (&name, via), &objects, future)
        };
        let store = Arc::downgrade(&self.inner);
        let foreseen = Announcement { store, managed, forecast, job: number };
        self.decide_managed(Some(number));
        Ok(foreseen)
    }

    /// Decides by the current rules and members about the role of each shard of a job, or of all
    /// jobs, in the forecast. Costs O(n).
    pub(super) fn decide_managed(&self, job: Option<JobId>) {
        let SharedState { forecast, shares, .. } = &*self.inner.shared;
        loop {
            let rules = shares.current();
            // A data set with another policy evicts by use: its jobs claim and fetch their shards
            // themselves.
            let role = |url: &str, options: &Options| {
                let rule = rules.rule_of(url);
                let is_foreseen = rule.evict == Evict::Clairvoyant && rule.cache != Cache::Never;
                match is_foreseen && self.is_kept_elsewhere(url, options) {
                    // A pinned copy would never go.
                    true if !rule.pin => Role::Guest,
                    false if is_foreseen => Role::Kept,
                    _ => Role::Apart,
                }
            };
            let read = forecast.announced_shards(job);
            let decided: Vec<_> = read
                .iter()
                .filter_map(|read| Some((read.object, role(read.url()?, read.options()))))
                .collect();
            let _changing = forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
            // A change of rules calls this function again: decisions by older rules must not
            // outlast it.
            if !Arc::ptr_eq(&rules, &shares.current()) {
                continue;
            }
            if forecast.set_roles(&decided) {
                self.inner.tiers.iter().for_each(Tier::refresh_forecast);
            }
            break;
        }
        forecast.changed.notify_one();
    }

    /// Report on the forecast and its results.
    #[must_use]
    pub fn forecast(&self) -> ForecastReport {
        self.inner.shared.forecast.report(self.capacity())
    }

    /// Trace for the simulator: announced reads of the next `rounds` rounds of each job, and recent
    /// decisions.
    #[must_use]
    pub fn trace(&self, rounds: u64) -> Trace {
        self.inner.shared.forecast.trace(self.capacity(), rounds)
    }

    /// Bytes that the tiers may hold now.
    fn capacity(&self) -> u64 {
        let tiers = self.inner.tiers.iter().filter(|tier| tier.is_writable());
        tiers.map(|tier| tier.budget().limit()).fold(0, u64::saturating_add)
    }

    /// Lengths of shards with a known identity, as their origins report them; for the others the
    /// mean. None if fewer than half are known.
    #[must_use]
    pub fn lengths(&self, urls: &[String], options: &Options) -> Option<Vec<u64>> {
        let mut lengths = Vec::with_capacity(urls.len());
        for url in urls {
            let source = self.inner.sources.open_for(url, options, self.client.as_ref()).ok()?;
            lengths.push(self.known_length(&*source, &object_of(url)));
        }
        let known: Vec<u64> = lengths.iter().flatten().copied().collect();
        if known.len() * 2 < urls.len() || known.is_empty() {
            return None;
        }
        let mean = known.iter().sum::<u64>() / known.len() as u64;
        Some(lengths.into_iter().map(|length| length.unwrap_or(mean)).collect())
    }

    /// Way for a shard nobody waits for to come in.
    fn way_in(&self, url: &str, object: ObjectKey, bytes: u64) -> WayIn {
        let charge = self.charge(url);
        for tier in self.candidates(charge, None, bytes, Urgency::Ahead) {
            if tier.has_room(charge, bytes) || tier.has_guest_to_go(charge, bytes) {
                return WayIn::Free;
            }
            if tier.has_later_victim(charge, object, bytes) {
                return WayIn::Evict;
            }
        }
        match self.inner.shared.shares.current().have(charge, bytes) {
            true => WayIn::Blocked,
            false => WayIn::OverQuota,
        }
    }

    /// Fetches a shard, and waits until it is durable. `turn`: returned before if the store does
    /// not answer, so that shards of others are fetched.
    ///
    /// # Errors
    /// Those of the fetch; `Unavailable` at once if the store is slow, or answers no other request.
    async fn fetch(
        self,
        url: &str,
        options: &Options,
        turn: Option<OwnedSemaphorePermit>,
        silent: &SilentEndpoints,
    ) -> Result<()> {
        let source = self.source(url, options)?;
        let (rank, endpoint) = (self.rank(), source.endpoint());
        if silent.has(endpoint) {
            return Err(slow(endpoint));
        }
        let fetched = async {
            let mut asked = pin!(self.identity(&source, url, &rank));
            if tokio::time::timeout(WATCHED, &mut asked).await.is_err() {
                let _silent = silent.note(endpoint);
                drop(turn);
                self.inner.shared.forecast.changed.notify_one();
                asked.await?;
                // The next turn finds the answer.
                return Err(slow(endpoint));
            }
            let shard = self.ranked(url, options, Urgency::Ahead, rank.clone()).await?;
            shard.settled().await?;
            if shard.is_at_owner() {
                let what = "the owner of the shard had no whole copy yet";
                return Err(Error::new(ErrorKind::Unavailable, what).at("url", shard.url()));
            }
            Ok(())
        };
        tokio::select! {
            biased;
            () = self.inner.shared.flights.slow(endpoint) => Err(slow(endpoint)),
            fetched = fetched => fetched,
        }
    }
}

/// Endpoints that have not answered a request for a while, and the number of these requests.
#[derive(Clone, Default)]
struct SilentEndpoints(Arc<Mutex<HashMap<String, usize>>>);

/// A request without an answer, until dropped.
struct SilentRequest<'a>(&'a SilentEndpoints, &'a str);

impl SilentEndpoints {
    fn has(&self, endpoint: &str) -> bool {
        self.lock().contains_key(endpoint)
    }

    fn note<'a>(&'a self, endpoint: &'a str) -> SilentRequest<'a> {
        *self.lock().entry(endpoint.to_owned()).or_default() += 1;
        SilentRequest(self, endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SilentRequest<'_> {
    fn drop(&mut self) {
        let mut silent = self.0.lock();
        if let Some(requests) = silent.get_mut(self.1) {
            *requests -= 1;
            if *requests == 0 {
                silent.remove(self.1);
            }
        }
    }
}

fn slow(endpoint: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "the store is slow").at("endpoint", endpoint)
}

/// Turns of the fetches ahead of need.
struct Turns {
    permits: Arc<Semaphore>,
    silent: SilentEndpoints,
    /// Bytes of the fetches that run; some of them have no room yet.
    started: Arc<AtomicU64>,
}

/// Bytes of a running fetch, until dropped.
struct StartedFetch(Arc<AtomicU64>, u64);

impl StartedFetch {
    fn new(started: &Arc<AtomicU64>, bytes: u64) -> Self {
        started.fetch_add(bytes, Ordering::Relaxed);
        Self(started.clone(), bytes)
    }
}

impl Drop for StartedFetch {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Fetches announced shards while the store exists.
pub(super) async fn fetch_ahead(store: Weak<StoreInner>, forecast: Arc<Forecast>) {
    let mut fetches = JoinSet::new();
    let turns = Turns {
        permits: Arc::new(Semaphore::new(AT_ONCE)),
        silent: SilentEndpoints::default(),
        started: Arc::default(),
    };
    loop {
        let changed = forecast.changed.notified();
        let again = match store.upgrade() {
            Some(inner) => fetch_what_is_due(&inner, &mut fetches, &turns),
            None => return,
        };
        let pause = async {
            match again {
                Some(moment) => tokio::time::sleep_until(forecast.instant(moment).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = pause => {}
            Some(_) = fetches.join_next() => {}
        }
    }
}

/// Starts the fetches that are due. Returns the time of the next check, if known.
fn fetch_what_is_due(
    inner: &Arc<StoreInner>,
    fetches: &mut JoinSet<()>,
    turns: &Turns,
) -> Option<forebay_policy::Moment> {
    let forecast = &inner.shared.forecast;
    while fetches.try_join_next().is_some() {}
    while fetches.len() < ASKED_AT_ONCE
        && let Ok(turn) = turns.permits.clone().try_acquire_owned()
    {
        let NextFetch { shard, object, bytes, via, at, due } = match forecast.next_fetch() {
            Ok(next) => next,
            Err(again) => return again,
        };
        let store = Store {
            tenant: via.tenant.clone(),
            owner: via.owner,
            job: via.job.clone(),
            client: via.client.clone(),
            ..Store::without_job(inner.clone())
        };
        let Some(url) = via.urls.get(at) else {
            forecast.postpone(shard, Refusal::Origin);
            continue;
        };
        match store.way_in(url, object, bytes) {
            WayIn::Free => {}
            WayIn::Evict if due <= forecast.now() => {}
            WayIn::Evict => {
                let again = forecast.next_retry().unwrap_or(due);
                return Some(due.min(again));
            }
            // Shards needed even later have no way in either, until something changes,
            WayIn::Blocked => return forecast.next_retry(),
            // except those of other data sets and tenants.
            WayIn::OverQuota => {
                forecast.postpone(shard, Refusal::Room);
                continue;
            }
        }
        forecast.note_fetch_start(shard);
        // Small shards need no turn, unless they would take the room of others earlier than needed.
        let started = turns.started.load(Ordering::Relaxed).saturating_add(bytes);
        let is_brief =
            bytes <= SMALL_BYTES && matches!(store.way_in(url, object, started), WayIn::Free);
        let turn = (!is_brief).then_some(turn);
        let started = StartedFetch::new(&turns.started, bytes);
        let silent = turns.silent.clone();
        fetches.spawn(async move {
            let forecast = store.inner.shared.forecast.clone();
            let (url, store_tenant) = (&via.urls[at], store.tenant.clone());
            let fetched = store.fetch(url, &via.options, turn, &silent).await;
            drop(started);
            if let Err(error) = &fetched
                && error.kind() != ErrorKind::Full
            {
                // The job that needs the shard gets the error and reports it.
                let (url, tenant) = (forebay_error::shown(url), store_tenant.as_deref());
                tracing::debug!(url, tenant, %error, "failed to prefetch a shard");
            }
            let refused = fetched.err().map(|error| match error.kind() {
                ErrorKind::Full => Refusal::Room,
                _ => Refusal::Origin,
            });
            forecast.note_fetch_end(object, refused);
        });
    }
    None
}
