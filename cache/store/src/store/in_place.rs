//! Shards that are read where they are: those that no tier can take, and those of data sets that are never
//! cached.
//!
//! One rule: no byte of theirs is kept, only where each member lies and what it sums up to. So they are
//! checked as those on a tier are, and a file that is not the one that was indexed is never served.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Sidecar;
use tokio::sync::SetOnce;

use super::Store;
use crate::dataset::{Cache, Dataset};
use crate::fill::{Format, Job, Parts, Target};
use crate::shard::{Body, Growth, Lease, Shard};
use crate::tier::Wanted;

impl Store {
    /// Whether no copy of a shard is kept.
    pub(super) fn is_never_cached(&self, url: &str) -> bool {
        is_read_in_place(self.inner.commons.shares.now().rule(self.charge(url)), url)
    }

    /// The shard where it is, by its index; if there is none, that is made on the way.
    pub(super) async fn open_in_place(&self, wanted: &Wanted) -> Arc<Shard> {
        let known = self.inner.commons.through().get(&wanted.name);
        if let Some(shard) = known.filter(|shard| shard.progress().failed.is_none()) {
            return shard;
        }
        if let Some(sidecar) = self.kept_index(wanted).await {
            let growth = Growth::whole(sidecar.index, sidecar.len);
            let shard = self.through(wanted, growth, None, in_place());
            self.inner.commons.through().keep(wanted.name.clone(), &shard);
            return shard;
        }
        self.index_through(wanted, in_place(), false)
    }

    /// The same shard, read from its origin through this client's own files: what is known of it serves
    /// all, but another client may be gone by now.
    #[must_use]
    pub fn by_own_files(&self, lease: Lease) -> Lease {
        match self.own_files(&lease) {
            Some(source) if lease.home.is_none() => {
                let ours = lease.shard().read_by(source);
                lease.to(ours)
            }
            _ => lease,
        }
    }

    /// Indexes a shard that no tier can take; it is kept nowhere and read from its origin.
    pub(super) fn begin_through(&self, wanted: &Wanted, why: &Error) -> Arc<Shard> {
        let kept = self.inner.commons.through().get(&wanted.name);
        if let Some(shard) = kept.filter(|shard| shard.progress().failed.is_none()) {
            return shard;
        }
        let url = &wanted.origin.url;
        let (dataset, job) = (self.inner.commons.dataset_of(url), self.job.as_deref());
        let (url, tenant) = (forebay_error::shown(url), self.tenant());
        let session = self.session();
        tracing::warn!(session, job, tenant, dataset, url, error = %why, "no tier takes a shard: it is read through");
        self.inner.commons.past.misses.inc();
        self.index_through(wanted, why.clone(), true)
    }

    /// The shard without a tier, for the reason `why`.
    fn through(
        &self,
        wanted: &Wanted,
        growth: Growth,
        parts: Option<Arc<Parts>>,
        why: Error,
    ) -> Arc<Shard> {
        Arc::new(Shard {
            name: wanted.name.clone(),
            url: wanted.origin.url.clone(),
            growth,
            body: Body::Origin,
            parts: Mutex::new(parts),
            traffic: self.inner.commons.traffic_of(&wanted.origin.url),
            home: None,
            source: wanted.lasting.clone(),
            stat: wanted.stat.clone(),
            rank: wanted.rank.clone(),
            lost: Arc::new(OnceLock::from(why)),
        })
    }

    /// The same, indexed by one pass over it. `missed`: it counts as one that a tier should have had; each of those
    /// ends here.
    fn index_through(&self, wanted: &Wanted, why: Error, missed: bool) -> Arc<Shard> {
        let (growth, parts) = (Growth::new(), Parts::new(wanted.stat.len, wanted.stat.binding));
        let shard = self.through(wanted, growth.clone(), Some(parts.clone()), why);
        self.inner.commons.through().keep(wanted.name.clone(), &shard);
        let job = Arc::new(Job {
            url: wanted.origin.url.clone(),
            source: wanted.source.clone(),
            stat: wanted.stat.clone(),
            frames: self.inner.commons.frames.clone(),
            spare: self.inner.commons.frames.clone(),
            allotment: None,
            target: Target::Nowhere,
            tier: None,
            parts,
            growth,
            origin: wanted.origin.clone(),
            origin_len: AtomicU64::new(wanted.stat.len),
            form: SetOnce::new(),
            unpacked: AtomicU64::new(0),
            spoilt: OnceLock::new(),
            tenant: None,
            resumed: AtomicU64::new(0),
            written: Arc::default(),
            tally: None,
            wears: false,
            since: None,
            fault: shard.lost.clone(),
            rank: wanted.rank.clone(),
            rates: Some(self.inner.commons.shares.clone()),
            head: Mutex::new(wanted.head.take()),
            journal: self.inner.commons.journal.clone(),
        });
        let keeps = self.is_never_cached(&wanted.origin.url).then(|| Arc::downgrade(&self.inner));
        let (commons, indexed) = (self.inner.commons.clone(), shard.clone());
        let whose = (self.tenant.clone(), self.owner, self.job.clone());
        tokio::spawn(async move {
            let filled = match commons.begin(&job).await {
                Ok(mut running) => job.run(&mut running).await,
                Err(error) => Err(error),
            };
            *indexed.parts.lock().unwrap_or_else(PoisonError::into_inner) = None;
            match filled {
                Ok(()) => {
                    if missed {
                        commons.past.through.inc();
                    }
                    job.growth.settle();
                    let inner = keeps.and_then(|inner| inner.upgrade());
                    let Some(inner) = inner else { return };
                    // Its index has its size by now.
                    commons.through().keep(indexed.name().clone(), &indexed);
                    let store = Self {
                        inner,
                        tenant: whose.0,
                        owner: whose.1,
                        job: whose.2,
                        client: None,
                        pace: None,
                    };
                    store.keep_index(&job, &indexed).await;
                }
                Err(error) => {
                    if missed {
                        commons.past.failed_fills.inc();
                    }
                    job.parts.fail(&error);
                    commons.forget_identity(&*job.source, &job.url);
                    job.fail(&error);
                    job.growth.settle();
                }
            }
        });
        shard
    }

    async fn kept_index(&self, wanted: &Wanted) -> Option<Sidecar> {
        for tier in &self.inner.tiers {
            let name = wanted.name.clone();
            let kept = tier.on_disk(move |directory| Ok(directory.kept_index(&name))).await;
            if let Some(sidecar) = kept.ok().flatten().filter(|kept| kept.origin == wanted.origin) {
                return Some(sidecar);
            }
        }
        None
    }

    /// Keeps the index of a shard that was read whole, where a disk is.
    pub(super) async fn keep_index(&self, job: &Job, shard: &Shard) {
        let sidecar = Arc::new(Sidecar {
            origin: job.origin.clone(),
            tenant: None,
            len: job.parts.len(),
            compressed_len: None,
            blocks: job.parts.sums().into_iter().flatten().collect(),
            index: job.growth.index().index(),
        });
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_writable()) {
            let (name, sidecar) = (shard.name().clone(), sidecar.clone());
            match tier.on_disk(move |directory| directory.keep_index(&name, &sidecar)).await {
                Ok(()) => return,
                // A tier in memory has no directory.
                Err(error) if error.kind() == ErrorKind::Closed => {}
                Err(error) => {
                    tracing::warn!(tier = tier.name(), %error, "failed to keep an index: it is made anew");
                }
            }
        }
    }

    /// Forgets the index of a shard that is not what it was.
    pub(super) async fn drop_index(&self, shard: &Shard) {
        for tier in &self.inner.tiers {
            let name = shard.name().clone();
            // What cannot be removed now proves wrong again when it is next used.
            let _: Result<()> = tier.on_disk(move |directory| directory.drop_index(&name)).await;
        }
    }
}

/// Whether a shard of a data set with this rule is read where it is. What is compressed there, or comes only
/// as a whole, has no members to be read there.
pub(crate) fn is_read_in_place(rule: &Dataset, url: &str) -> bool {
    rule.cache == Cache::Never && !Format::is_promised(url) && forebay_error::command(url).is_none()
}

/// Why no tier has it.
fn in_place() -> Error {
    Error::new(ErrorKind::Unavailable, "its data set is never cached")
}
