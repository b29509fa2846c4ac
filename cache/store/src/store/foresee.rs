//! Jobs that say what they will read, and what is fetched for them by it.
//!
//! One rule: the node fetches for all jobs, what is needed first before all else; a job fetches for itself only what it waits
//! for. Where there is room, what is needed comes at once; where something must go for it, not before it must.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use forebay_error::{ErrorKind, Result};
use forebay_policy::simulate::Trace;
use forebay_policy::{Evict, Future, JobId, Shard};
use forebay_source::Options;
use tokio::task::JoinSet;

use super::{Commons, Inner, Store};
use crate::dataset::Cache;
use crate::directory::ObjectKey;
use crate::fill::FILLS;
use crate::forecast::{Forecast, ForecastReport, Next, Refusal, Via};
use crate::tier::{Tier, Urgency};

/// Shards that are asked for ahead of need at once: as many as are fetched at once. What is asked for earlier takes its room
/// earlier, too.
const AT_ONCE: usize = FILLS;

/// What a job will read.
pub struct Reading {
    /// What admins call it.
    pub name: String,
    /// Its shards.
    pub urls: Arc<[String]>,
    /// Bytes of each.
    pub bytes: Vec<u64>,
    /// Endpoint and credentials to reach them.
    pub options: Options,
    /// What it reads of them, by their numbers.
    pub future: Box<dyn FnOnce(Vec<Shard>) -> Box<dyn Future> + Send>,
}

/// A job whose reading is foreseen, until dropped.
pub struct Foreseen {
    store: Weak<Inner>,
    /// Of which of its shards the node decides by foresight, by the rules in force.
    ours: Arc<[AtomicBool]>,
    forecast: Arc<Forecast>,
    job: JobId,
}

impl Foreseen {
    /// Whether the node fetches its shard of this number, by the rules in force.
    #[must_use]
    pub fn has(&self, shard: usize) -> bool {
        self.ours.get(shard).is_some_and(|has| has.load(Ordering::Relaxed))
    }

    /// It has read so many bytes in all; since it was last heard of it waited so long for batches.
    pub fn advance(&self, read: u64, waited: Duration) {
        self.forecast.advance(self.job, read, waited);
    }

    /// It begins anew where it has read so many bytes; whether that is no less than before. What it did since it was last heard of is
    /// no measure of its pace.
    #[must_use]
    pub fn go_on(&self, read: u64) -> bool {
        self.forecast.go_on(self.job, read)
    }
}

impl Drop for Foreseen {
    fn drop(&mut self) {
        let _changing = self.forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let orphans = self.forecast.leave(self.job);
        if let Some(inner) = self.store.upgrade() {
            inner.tiers.iter().for_each(Tier::look_forward);
        }
        self.forecast.forget(orphans);
        self.forecast.changed.notify_one();
    }
}

/// What would have to happen for a shard to come in.
enum Way {
    /// Nothing: there is room.
    Room,
    /// Something that is needed later goes.
    Instead,
    /// Nothing that may go is needed later.
    None,
    /// The same, of what its data set or its tenant may hold.
    Quota,
}

impl Store {
    /// A job says what it will read. Costs O(n log n): to be called where that may take its time.
    ///
    /// # Errors
    /// As [`Store::shard`] for a URL that makes no sense.
    pub fn foresee(&self, reading: Reading) -> Result<Foreseen> {
        let Reading { name, urls, bytes, options, future } = reading;
        let mut objects = Vec::with_capacity(urls.len());
        for (url, bytes) in urls.iter().zip(bytes) {
            let source = self.inner.sources.open_for(url, &options, self.client.as_ref())?;
            objects.push((ObjectKey::new(source.endpoint(), url), bytes));
        }
        let forecast = self.inner.commons.forecast.clone();
        let (tenant, owner, job) = (self.tenant.clone(), self.owner, self.job.clone());
        let client = self.client.clone();
        let via = Arc::new(Via { tenant, owner, job, client, options, urls });
        let ours = {
            let _changing = forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
            forecast.join(owner, (&name, via), &objects, future)
        };
        let store = Arc::downgrade(&self.inner);
        let foreseen = Foreseen { store, ours, forecast, job: owner };
        self.decide(Some(owner));
        Ok(foreseen)
    }

    /// Finds out by the rules in force of which shards foresight decides, of those that a job reads or all jobs do. Costs O(n):
    /// to be called where that may take its time.
    pub(super) fn decide(&self, job: Option<JobId>) {
        let Commons { forecast, shares, .. } = &*self.inner.commons;
        loop {
            let rules = shares.now();
            // What is given up by its use is what a job claims, and so fetches for itself.
            let is_ours = |url: &str| {
                let rule = rules.rule_of(url);
                rule.evict == Evict::Clairvoyant && rule.cache != Cache::Never
            };
            let read = forecast.read_by(job);
            let decided: Vec<_> =
                read.iter().filter_map(|read| Some((read.object, is_ours(read.url()?)))).collect();
            let _changing = forecast.changing.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever changes the rules comes here afterwards; what was decided by older ones must not outlast that.
            if !Arc::ptr_eq(&rules, &shares.now()) {
                continue;
            }
            if forecast.decide(&decided) {
                self.inner.tiers.iter().for_each(Tier::look_forward);
            }
            break;
        }
        forecast.changed.notify_one();
    }

    /// What is foreseen, and what came of it.
    #[must_use]
    pub fn forecast(&self) -> ForecastReport {
        self.inner.commons.forecast.report(self.capacity())
    }

    /// What jobs will read in the next so many rounds through their shards, as a trace to simulate, and what was decided for them
    /// lately.
    #[must_use]
    pub fn trace(&self, rounds: u64) -> Trace {
        self.inner.commons.forecast.trace(self.capacity(), rounds)
    }

    /// Bytes that tiers may hold now.
    fn capacity(&self) -> u64 {
        let tiers = self.inner.tiers.iter().filter(|tier| tier.is_writable());
        tiers.map(|tier| tier.budget().limit()).fold(0, u64::saturating_add)
    }

    /// Bytes of shards that were asked for before, as their origins have them; of others the mean of those. None if half of
    /// them were not.
    #[must_use]
    pub fn lengths(&self, urls: &[String], options: &Options) -> Option<Vec<u64>> {
        let mut lengths = Vec::with_capacity(urls.len());
        for url in urls {
            let source = self.inner.sources.open_for(url, options, self.client.as_ref()).ok()?;
            lengths.push(self.known_length(&*source, url));
        }
        let known: Vec<u64> = lengths.iter().flatten().copied().collect();
        if known.len() * 2 < urls.len() || known.is_empty() {
            return None;
        }
        let mean = known.iter().sum::<u64>() / known.len() as u64;
        Some(lengths.into_iter().map(|length| length.unwrap_or(mean)).collect())
    }

    /// How a shard could come in that nobody waits for.
    fn way_in(&self, url: &str, object: ObjectKey, bytes: u64) -> Way {
        let charge = self.charge(url);
        for tier in self.candidates(charge, None, bytes, Urgency::Ahead) {
            if tier.has_room(charge, bytes) {
                return Way::Room;
            }
            if tier.has_later(charge, object, bytes) {
                return Way::Instead;
            }
        }
        match self.inner.commons.shares.now().have(charge, bytes) {
            true => Way::None,
            false => Way::Quota,
        }
    }

    /// Fetches a shard, and waits until it is here for good.
    async fn fetch(self, url: &str, options: &Options) -> Result<()> {
        let shard = self.ranked(url, options, Urgency::Ahead, self.rank()).await?;
        shard.settled().await
    }
}

/// Fetches what jobs will read, as long as the store is there.
pub(super) async fn fetch_ahead(store: Weak<Inner>, forecast: Arc<Forecast>) {
    let mut fetches = JoinSet::new();
    loop {
        let changed = forecast.changed.notified();
        let again = match store.upgrade() {
            Some(inner) => fetch_what_is_due(&inner, &mut fetches),
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

/// Begins whatever is to be fetched now; with when to look again, if that is known.
fn fetch_what_is_due(
    inner: &Arc<Inner>,
    fetches: &mut JoinSet<()>,
) -> Option<forebay_policy::Moment> {
    let forecast = &inner.commons.forecast;
    while fetches.try_join_next().is_some() {}
    while fetches.len() < AT_ONCE {
        let Next { shard, object, bytes, via, at, due } = match forecast.next() {
            Ok(next) => next,
            Err(again) => return again,
        };
        let store = Store {
            inner: inner.clone(),
            tenant: via.tenant.clone(),
            owner: via.owner,
            job: via.job.clone(),
            client: via.client.clone(),
            pace: None,
        };
        let Some(url) = via.urls.get(at) else {
            forecast.refuse(shard, Refusal::Origin);
            continue;
        };
        match store.way_in(url, object, bytes) {
            Way::Room => {}
            Way::Instead if due <= forecast.now() => {}
            Way::Instead => {
                let again = forecast.wanted_again().unwrap_or(due);
                return Some(due.min(again));
            }
            // Whatever is needed still later has no way in, either, until something changes …
            Way::None => return forecast.wanted_again(),
            // … but for what other data sets and tenants may hold.
            Way::Quota => {
                forecast.refuse(shard, Refusal::Room);
                continue;
            }
        }
        forecast.begins(shard);
        fetches.spawn(async move {
            let forecast = store.inner.commons.forecast.clone();
            let (url, store_tenant) = (&via.urls[at], store.tenant.clone());
            let fetched = store.fetch(url, &via.options).await;
            if let Err(error) = &fetched
                && error.kind() != ErrorKind::Full
            {
                // Who needs it meets the error, and reports it.
                let (url, tenant) = (forebay_error::shown(url), store_tenant.as_deref());
                tracing::debug!(url, tenant, %error, "failed to fetch ahead");
            }
            let refused = fetched.err().map(|error| match error.kind() {
                ErrorKind::Full => Refusal::Room,
                _ => Refusal::Origin,
            });
            forecast.ended(object, refused);
        });
    }
    None
}
