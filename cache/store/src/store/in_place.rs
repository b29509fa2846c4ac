//! Shards read where they are: those that no tier can take, and those of data sets that are never
//! cached.
//!
//! Only the position and checksum of each member are kept, no payload. So members are checked
//! as those on a tier, and a file that changed since it was indexed is never served.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Sidecar;

use super::Store;
use crate::fill::{Accounting, Destination, Fill, FillRequest, Target};
use crate::parts::Parts;
use crate::shard::{Body, Growth, Shard, ShardHandle};
use crate::shared_state::SharedState;
use crate::tier::Wanted;

impl Store {
    /// Returns true if no copy of a shard is kept.
    pub(super) fn is_never_cached(&self, url: &str) -> bool {
        self.inner.shared.shares.current().rule(self.charge(url)).is_read_in_place(url)
    }

    /// Opens a shard where it is, by its saved index. Without one, the shard is indexed in one
    /// pass.
    pub(super) async fn open_in_place(&self, wanted: &Wanted) -> Arc<Shard> {
        let known = self.inner.shared.through().get(&wanted.name);
        if let Some(shard) = known.filter(|shard| shard.progress().failed.is_none()) {
            return shard;
        }
        if let Some(sidecar) = self.load_index(wanted).await {
            let growth = Growth::whole(sidecar.index, sidecar.len);
            let shard = self.through(wanted, growth, None, Some(in_place()));
            self.inner.shared.through().keep(wanted.name.clone(), &shard);
            return shard;
        }
        self.index_through(wanted, in_place(), false)
    }

    /// The same shard, read through this client's own files: its index serves all clients, but
    /// another client may be gone.
    #[must_use]
    pub fn by_own_files(&self, lease: ShardHandle) -> ShardHandle {
        match self.own_files(&lease) {
            Some(source) if lease.home.is_none() => {
                let ours = lease.shard().read_by(source);
                lease.to(ours)
            }
            _ => lease,
        }
    }

    /// Indexes a shard that no tier can take. It is not stored and is read from its origin.
    pub(super) fn begin_through(&self, wanted: &Wanted, why: &Error) -> Arc<Shard> {
        let kept = self.inner.shared.through().get(&wanted.name);
        if let Some(shard) = kept.filter(|shard| shard.progress().failed.is_none()) {
            return shard;
        }
        if let Some(shards) = self.inner.shared.unaccepted.note(Instant::now()) {
            let url = &wanted.origin.url;
            let (dataset, job) = (self.inner.shared.dataset_of(url), self.job.as_deref());
            let (url, tenant) = (forebay_error::shown(url), self.tenant());
            let session = self.session();
            tracing::warn!(session, job, tenant, dataset, url, shards, error = %why, "no tier accepts shards: they are read through");
        }
        self.inner.shared.past.misses.inc();
        self.index_through(wanted, why.clone(), true)
    }

    /// The shard without a tier, for the reason `why`; none: it is where it should be.
    pub(super) fn through(
        &self,
        wanted: &Wanted,
        growth: Growth,
        parts: Option<Arc<Parts>>,
        why: Option<Error>,
    ) -> Arc<Shard> {
        Arc::new(Shard {
            name: wanted.name.clone(),
            url: wanted.origin.url.clone(),
            growth,
            body: Body::Origin,
            parts: Mutex::new(parts),
            traffic: self.inner.shared.traffic_of(&wanted.origin.url),
            home: None,
            source: wanted.lasting.clone(),
            stat: wanted.stat.clone(),
            rank: wanted.rank.clone(),
            lost: Arc::new(why.map_or_else(OnceLock::new, OnceLock::from)),
        })
    }

    /// The shard without a tier, indexed in one pass. `missed`: counts as a miss, which ends here.
    fn index_through(&self, wanted: &Wanted, why: Error, missed: bool) -> Arc<Shard> {
        let (growth, parts) = (Growth::new(), Parts::new(wanted.stat.len, wanted.stat.binding));
        let shard = self.through(wanted, growth.clone(), Some(parts.clone()), Some(why));
        self.inner.shared.through().keep(wanted.name.clone(), &shard);
        tokio::spawn(self.index_alone(wanted, shard.clone(), parts, growth, missed));
        shard
    }

    /// Indexes a shard without a tier.
    pub(super) fn index_alone(
        &self,
        wanted: &Wanted,
        indexed: Arc<Shard>,
        parts: Arc<Parts>,
        growth: Growth,
        missed: bool,
    ) -> impl Future<Output = ()> + Send + use<> {
        let fill = self.fill_without_tier(wanted, &indexed, parts, growth);
        let keeps = self.is_never_cached(&wanted.origin.url).then(|| Arc::downgrade(&self.inner));
        let shared = self.inner.shared.clone();
        let whose = (self.tenant.clone(), self.owner, self.job.clone());
        async move {
            let filled = match shared.begin(&fill).await {
                Ok(mut running) => fill.run(&mut running).await,
                Err(error) => Err(error),
            };
            *indexed.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
            match filled {
                Ok(()) => {
                    if missed {
                        shared.past.through.inc();
                    }
                    fill.growth.settle();
                    let inner = keeps.and_then(|inner| inner.upgrade());
                    let Some(inner) = inner else { return };
                    // Updates the size of its index.
                    shared.through().keep(indexed.name().clone(), &indexed);
                    let (tenant, owner, job) = whose;
                    let store = Self { tenant, owner, job, ..Self::without_job(inner) };
                    store.save_index(&fill, &indexed).await;
                }
                Err(error) => {
                    if missed {
                        shared.past.failed_fills.inc();
                    }
                    fill.parts.fail(&error);
                    shared.forget_identity(&*fill.request.source, fill.url());
                    fill.fail(&error);
                    fill.growth.settle();
                }
            }
        }
    }

    fn fill_without_tier(
        &self,
        wanted: &Wanted,
        shard: &Shard,
        parts: Arc<Parts>,
        growth: Growth,
    ) -> Arc<Fill> {
        let SharedState { frames, shares, journal, .. } = &*self.inner.shared;
        let request = FillRequest {
            source: wanted.source.clone(),
            stat: wanted.stat.clone(),
            origin: wanted.origin.clone(),
            tenant: None,
            rank: wanted.rank.clone(),
            head: Mutex::new(wanted.head.take()),
            since: None,
        };
        let destination = Destination {
            target: Target::Nowhere,
            frames: frames.clone(),
            spare: frames.clone(),
            allotment: None,
            tier: None,
            wears: false,
            fault: shard.lost.clone(),
        };
        let rates = Some(shares.clone());
        let accounting = Accounting::new(wanted.stat.len, None, rates, journal.clone());
        Fill::new(request, destination, accounting, parts, growth)
    }

    async fn load_index(&self, wanted: &Wanted) -> Option<Sidecar> {
        for tier in &self.inner.tiers {
            let name = wanted.name.clone();
            let kept = tier.on_disk(move |directory| Ok(directory.load_index(&name))).await;
            if let Some(sidecar) = kept.ok().flatten().filter(|kept| kept.origin == wanted.origin) {
                return Some(sidecar);
            }
        }
        None
    }

    /// Saves the index of a shard that was read to its end, on the first disk that takes it.
    pub(super) async fn save_index(&self, fill: &Fill, shard: &Shard) {
        let sidecar = Arc::new(Sidecar {
            origin: fill.request.origin.clone(),
            tenant: None,
            len: fill.parts.len(),
            compressed_len: None,
            blocks: fill.parts.sums().into_iter().flatten().collect(),
            index: fill.growth.index().index(),
        });
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_writable()) {
            let (name, sidecar) = (shard.name().clone(), sidecar.clone());
            match tier.on_disk(move |directory| directory.save_index(&name, &sidecar)).await {
                Ok(()) => return,
                // A memory tier has no directory.
                Err(error) if error.kind() == ErrorKind::Closed => {}
                Err(error) => {
                    tracing::warn!(tier = tier.name(), %error, "failed to store an index: it is rebuilt");
                }
            }
        }
    }

    /// Drops the index of a shard that has changed.
    pub(super) async fn drop_index(&self, shard: &Shard) {
        for tier in &self.inner.tiers {
            let name = shard.name().clone();
            // An index that cannot be removed proves wrong again on its next use.
            let _: Result<()> = tier.on_disk(move |directory| directory.drop_index(&name)).await;
        }
    }
}

/// Reason why no tier has the shard.
fn in_place() -> Error {
    Error::new(ErrorKind::Unavailable, "its data set is never cached")
}
