//! Opening of shards: from a tier, or by a fetch.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_shard::Origin;
use forebay_source::{Options, Rank, Source, Stat, object_of};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::Store;
use crate::dataset::Cache;
use crate::directory::ShardName;
use crate::identity::{Begun, Head};
use crate::shard::{Shard, ShardHandle};
use crate::tier::{ShardState, Urgency, Wanted};

/// First asker of a shard; its limits apply to the fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) urgency: Urgency,
    pub(super) tenant: Option<Arc<str>>,
}

impl Asker {
    /// Returns true if there may be room for this asker although there was none for `other`: a
    /// waiting job may evict more than a prefetch, and each tenant has its own limit.
    fn may_fare_better(&self, other: &Self) -> bool {
        self.tenant != other.tenant
            || (other.urgency, self.urgency) == (Urgency::Ahead, Urgency::Needed)
    }
}

/// Outcome of opening or starting a shard, for all concurrent requests.
pub(super) type Opened = BoxFuture<'static, Result<Arc<Shard>>>;

impl Store {
    /// Returns the last failure of requests for a shard that are still made again, and the endpoint
    /// that they go to.
    #[must_use]
    pub fn trouble(&self, url: &str, options: &Options) -> Option<(String, Option<Error>)> {
        let source = self.source(url, options).ok()?;
        Some((source.endpoint().to_owned(), source.trouble(url)))
    }

    pub(super) async fn ranked(
        &self,
        url: &str,
        options: &Options,
        urgency: Urgency,
        rank: Rank,
    ) -> Result<ShardHandle> {
        let source = self.source(url, options)?;
        // The link stays with the source: the shard is known without its signature.
        let url = &*object_of(url);
        if self.inner.shared.shares.current().rule(self.charge(url)).cache == Cache::Never {
            // Without a copy, an old answer is useless once the file has changed.
            self.inner.shared.forget_identity(&*source, url);
        }
        let (Begun { stat, head }, asked) = self.identity(&source, url, &rank).await?;
        let opening = Instant::now();
        let shard = self.shard_of(url, source, stat, rank.clone(), head.clone(), urgency).await;
        // Releases the first bytes if nobody took them.
        drop(head.take());
        let shard = shard?;
        shard.rank.lift(&rank);
        let opened = shard.waited_since(opening);
        Ok(shard.opened_in(asked, opened))
    }

    pub(super) async fn shard_of(
        &self,
        url: &str,
        source: Arc<dyn Source>,
        stat: Stat,
        rank: Rank,
        head: Head,
        urgency: Urgency,
    ) -> Result<ShardHandle> {
        let origin = Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version.clone(),
        };
        let name = ShardName::new(&origin);
        let lease = |shard| ShardHandle::new(shard).paid_by(self.payer());
        if let Some(shard) = self.in_use(&name) {
            return Ok(lease(shard));
        }
        rank.bill_to(|| self.bill(url));
        let tenant = self.tenant.clone();
        let len = self.inner.shared.unpacked(&name).unwrap_or(stat.len);
        let lasting = match &self.client {
            Some(client) => client.lasting(&source),
            None => source.clone(),
        };
        let wanted = Wanted {
            name: name.clone(),
            origin,
            tenant,
            source,
            lasting,
            stat,
            len,
            rank,
            head,
            guest: None,
        };
        let asker = Asker { urgency, tenant: self.tenant.clone() };
        loop {
            let (first, opened) = {
                let mut opening = self.opening();
                // Another request may have opened it since.
                if let Some(shard) = self.in_use(&name) {
                    return Ok(lease(shard));
                }
                let open = || (asker.clone(), self.clone().opened(wanted.clone(), urgency));
                opening.entry(name.clone()).or_insert_with(open).clone()
            };
            match opened.await {
                Err(error) if error.kind() == ErrorKind::Full && asker.may_fare_better(&first) => {}
                // A waiting job reads the shard at its owner; a prefetch may start a copy.
                Ok(shard)
                    if shard.is_at_owner()
                        && (first.urgency, urgency) == (Urgency::Needed, Urgency::Ahead)
                        && self.wants_copy(&wanted) => {}
                opened => return opened.map(lease),
            }
        }
    }

    /// The shard, if it is open or arriving: whole ones first, then the fastest tier's.
    pub(super) fn in_use(&self, name: &ShardName) -> Option<Arc<Shard>> {
        let mut arriving = None;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            match tier.in_use(&tier.name_for(name)) {
                Some((shard, ShardState::Arriving)) => arriving = arriving.or(Some(shard)),
                Some((shard, _)) => return Some(shard),
                // Whole but not open: better than an arriving copy elsewhere.
                None if tier.state(&tier.name_for(name)).is_some_and(ShardState::is_whole) => {
                    return None;
                }
                None => {}
            }
        }
        arriving
    }

    /// Opens or starts a shard in a task of its own: a cancelled request must not leave it half
    /// done.
    fn opened(self, wanted: Wanted, urgency: Urgency) -> Shared<Opened> {
        let task = tokio::spawn(async move {
            let opened = self.open_or_begin(&wanted, urgency).await;
            self.opening().remove(&wanted.name);
            // Whoever asked may have left; a fill that uses the first bytes has taken them.
            drop(wanted.head.take());
            opened
        });
        let ended = |joined: Result<_, _>| joined.unwrap_or_else(|_| Err(Error::shutting_down()));
        task.map(ended).boxed().shared()
    }

    async fn open_or_begin(&self, wanted: &Wanted, urgency: Urgency) -> Result<Arc<Shard>> {
        if self.is_never_cached(&wanted.origin.url) {
            return Ok(self.open_in_place(wanted).await);
        }
        if let Some(shard) = self.opened_at_owner(wanted, urgency) {
            return Ok(shard);
        }
        // Known copies come first: a tier with a slow listing delays nothing else.
        let mut tiers: Vec<_> = Vec::with_capacity(self.inner.tiers.len());
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            let mut here = Wanted { name: tier.name_for(&wanted.name), ..wanted.clone() };
            if tier.state(&here.name).is_none() {
                // If the look fails, the listing will show the shard.
                if let Err(error) = tier.probe(&here.name).await {
                    tracing::debug!(tier = tier.name(), %error, "failed to look up a shard");
                }
                here.name = tier.name_for(&wanted.name);
            }
            let is_there = tier.state(&here.name).is_some_and(ShardState::is_whole);
            tiers.push((!is_there, tier, here));
        }
        tiers.sort_by_key(|(is_absent, ..)| *is_absent);
        for (_, tier, here) in tiers {
            match tier.open_whole(&here).await {
                Ok(Some(shard)) => return Ok(shard),
                Ok(None) => {}
                // A problem of the tier: another tier or the origin has the shard.
                Err(error) => {
                    let url = &wanted.origin.url;
                    let dataset = self.inner.shared.dataset_of(url);
                    let (url, tenant, tier_name) = (shown(url), self.tenant(), tier.name());
                    let (session, job) = (self.session(), self.job.as_deref());
                    tracing::warn!(session, job, tenant, dataset, url, tier = tier_name, %error, "failed to open a shard");
                    if error.kind() == ErrorKind::Unavailable {
                        tier.note_failure(&error);
                    }
                }
            }
        }
        // Opened during the wait for a listing, or by a move.
        if let Some(shard) = self.in_use(&wanted.name).or_else(|| self.arriving(&wanted.name)) {
            return Ok(shard);
        }
        if let Some(shard) = self.open_elsewhere(wanted, urgency).await {
            return Ok(shard);
        }
        let shard = self.begin(wanted, urgency).await?;
        self.tell_when_whole(&shard);
        Ok(shard)
    }

    /// The shard, if it is arriving on a tier although another has a copy that cannot be opened.
    fn arriving(&self, name: &ShardName) -> Option<Arc<Shard>> {
        let mut tiers = self.inner.tiers.iter().filter(|tier| tier.is_readable());
        tiers.find_map(|tier| tier.in_use(&tier.name_for(name)).map(|(shard, _)| shard))
    }

    pub(super) fn opening(&self) -> MutexGuard<'_, HashMap<ShardName, (Asker, Shared<Opened>)>> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
