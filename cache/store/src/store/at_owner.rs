//! Shards that another node owns: opened at the owner, and read from it record by record.
//!
//! The owner fetches the shard once for the cluster and keeps it. This node keeps only the index,
//! which comes while the owner indexes, so a first sample needs no whole shard on either node. If
//! the owner cannot be reached, this node fetches the shard for itself, as it would alone.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peers::message::{Reply, ShardRequest};
use forebay_peers::{Hop, IndexStream, OwnerReport, Peered, Peers};
use forebay_shard::UNKNOWN;
use forebay_source::{AtPeer, Binding, ByClient, Options, PeerTimes, Source, Stat, object_of};
use forebay_uring::Span;
use lru::LruCache;

use super::Store;
use crate::directory::{ObjectKey, ShardName, object_key};
use crate::open_shards::OpenShards;
use crate::parts::Parts;
use crate::shard::{Growth, Progress, Shard, ShardHandle};
use crate::shutdown::shutting_down;
use crate::tier::{OpeningGuard, Urgency, Wanted};

/// Shards that are not read from their owners for a while. Corrupt copies are rare.
pub(super) const DISTRUSTED: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Time for which a shard is not read from its owner after a failure or wrong bytes: the owner
/// compares its copy meanwhile, and fetches the shard anew.
const DISTRUST: Duration = Duration::from_secs(60);

/// Largest ratio of a shard's unpacked to its packed bytes: a zstd block stands for 128 KiB of one
/// byte in 4 bytes.
const MAX_UNPACKING: u64 = (128 << 10) / 4;

impl Store {
    /// Joins a cluster: shards of other owners are read from them from now on. A second call has no
    /// effect.
    pub fn join(&self, peers: Arc<Peers>) {
        // Set once, by the node that starts.
        let _ = self.inner.peers.set(peers);
        self.note_ring_change();
    }

    /// Notes that the members changed: shards have other owners, and foresight decides about those
    /// of this node.
    pub fn note_ring_change(&self) {
        *self.elsewhere() = OpenShards::new();
        self.decide_managed(None);
    }

    /// Returns the other nodes, if this one is in a cluster.
    #[must_use]
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.inner.peers.get()
    }

    /// The same store for the requests of another node.
    #[must_use]
    pub fn for_peer(&self) -> Self {
        Self { hop: Hop::Last, ..self.clone() }
    }

    /// Returns the source of a shard: its origin, or that and the nodes that may have the shard.
    ///
    /// # Errors
    /// As [`forebay_source::Sources::open_for`].
    pub(super) fn source(&self, url: &str, options: &Options) -> Result<Arc<dyn Source>> {
        let source = self.inner.sources.open_for(url, options, self.client.as_ref())?;
        match self.peers() {
            Some(peers) if self.is_shared(&source, url, options) => {
                Ok(Arc::new(Peered::new(source, peers.clone(), self.hop, self.asking_tenant())))
            }
            _ => Ok(source),
        }
    }

    /// Returns the tenant by which other nodes judge what they are asked for.
    fn asking_tenant(&self) -> Option<String> {
        self.client.as_ref().and_then(ByClient::tenant)
    }

    /// Returns true if nodes share copies of this shard: its data set allows it, and every node
    /// reads it by its own rules, not by a job's credentials.
    fn is_shared(&self, source: &Arc<dyn Source>, url: &str, options: &Options) -> bool {
        let rule_allows = self.inner.shared.shares.current().rule(self.charge(url)).peers;
        rule_allows
            && source.is_remote()
            && !self.is_never_cached(url)
            && self.inner.sources.reads_by_rule(url, options)
    }

    /// Returns true if another node owns this shard.
    pub(super) fn is_owned_elsewhere(&self, url: &str, options: &Options) -> bool {
        let Some(peers) = self.peers() else { return false };
        let Ok(source) = self.inner.sources.open_for(url, options, self.client.as_ref()) else {
            return false;
        };
        let key = ObjectKey::new(source.endpoint(), &object_of(url));
        peers.route(key).owner.is_some() && self.is_shared(&source, url, options)
    }

    /// Returns the placement of a shard, as nodes read it by their rules.
    ///
    /// # Errors
    /// As [`Store::shard`] for an invalid URL; `NotFound` if this node is in no cluster.
    pub fn owner(&self, url: &str) -> Result<OwnerReport> {
        let alone = || {
            Error::new(ErrorKind::NotFound, "this node is in no cluster")
                .advise("add [cluster] to its configuration")
        };
        let peers = self.peers().ok_or_else(alone)?;
        let options = Options::default();
        let source = self.inner.sources.open(url, &options)?;
        let key = ObjectKey::new(source.endpoint(), &object_of(url));
        let ring = peers.ring();
        let mut candidates = match self.is_shared(&source, url, &options) {
            true => ring.candidates(key, 2),
            false => Vec::new(),
        }
        .into_iter()
        .map(|member| member.name.clone());
        let (owner, next) = (candidates.next(), candidates.next());
        let is_self = owner.as_deref() == Some(peers.own());
        Ok(OwnerReport { url: shown(url), owner, next, is_self })
    }

    /// Returns a shard that is open at its owner.
    pub(super) fn opened_at_owner(&self, wanted: &Wanted) -> Option<Arc<Shard>> {
        let mut elsewhere = self.elsewhere();
        let shard = elsewhere.get(&wanted.name)?;
        if shard.progress().failed.is_some() {
            elsewhere.forget(&wanted.name);
            return None;
        }
        Some(shard)
    }

    /// Opens a shard at the node that owns it; none if that is this one, or if the owner does not
    /// serve it.
    pub(super) async fn open_at_owner(
        &self,
        wanted: &Wanted,
        urgency: Urgency,
    ) -> Option<Arc<Shard>> {
        let peers = self.peers()?;
        let url = &wanted.origin.url;
        let owner = peers.route(object_key(&wanted.origin)).owner?;
        let rule_allows = self.inner.shared.shares.current().rule(self.charge(url)).peers;
        let is_distrusted = {
            let mut distrusted = self.distrusted();
            distrusted.get(&wanted.name).is_some_and(|since| since.elapsed() < DISTRUST)
        };
        if self.hop == Hop::Last || !wanted.source.is_shared() || !rule_allows || is_distrusted {
            return None;
        }
        let request = ShardRequest {
            is_awaited: urgency == Urgency::Needed,
            tenant: self.asking_tenant(),
            ..ShardRequest::of(wanted.origin.clone())
        };
        let at_owner = wanted.source.peer_times().map(PeerTimes::begin);
        let index = match peers.index(&owner, &request).await {
            Ok(index) => index,
            Err(error) => {
                let (url, dataset) = (shown(url), self.inner.shared.dataset_of(url));
                tracing::debug!(dataset, url, %error, "the owner of a shard does not serve it");
                return None;
            }
        };
        let growth = Growth::new();
        let shard = self.through(wanted, growth.clone(), None, None);
        self.keep_elsewhere(&shard);
        let (store, wanted, opened) = (self.clone(), wanted.clone(), shard.clone());
        tokio::spawn(async move { store.follow(&wanted, opened, growth, index, at_owner).await });
        Some(shard)
    }

    /// Notes that the bytes of a shard did not come from its owner, or were wrong: this node reads
    /// it elsewhere for a while. The owner hears of wrong bytes.
    pub(super) fn distrust(&self, shard: &Shard, why: &Error) {
        let mut elsewhere = self.elsewhere();
        if elsewhere.get(shard.name()).is_none() {
            return;
        }
        elsewhere.forget(shard.name());
        drop(elsewhere);
        self.distrusted().put(shard.name().clone(), Instant::now());
        if why.kind() != ErrorKind::Corrupt {
            return;
        }
        let origin = shard.origin();
        let owner = self.peers().and_then(|peers| {
            let owner = peers.route(object_key(&origin)).owner?;
            Some((peers.clone(), owner))
        });
        let Some((peers, owner)) = owner else { return };
        let request = ShardRequest { only_cached: true, ..ShardRequest::of(origin) };
        tokio::spawn(async move {
            let (url, node) = (shown(&request.url), owner.name());
            let told = peers.suspect(&owner, &request).await.err();
            let what = "a node sent wrong bytes of a shard";
            tracing::warn!(url, node, error = told.map(|error| error.to_string()), "{what}");
        });
    }

    fn elsewhere(&self) -> MutexGuard<'_, OpenShards> {
        self.inner.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn distrusted(&self) -> MutexGuard<'_, LruCache<ShardName, Instant>> {
        self.inner.distrusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_elsewhere(&self, shard: &Arc<Shard>) {
        self.elsewhere().keep(shard.name().clone(), shard);
    }

    /// Takes the index as it comes from the owner. If it breaks off, this node indexes the rest
    /// itself.
    async fn follow(
        self,
        wanted: &Wanted,
        shard: Arc<Shard>,
        growth: Growth,
        mut index: IndexStream,
        at_owner: Option<AtPeer>,
    ) {
        let stored = wanted.stat.len;
        let is_sized = wanted.stat.binding != Binding::Stream;
        let most = if is_sized { stored.saturating_mul(MAX_UNPACKING) } else { UNKNOWN };
        let broke = loop {
            let taken = match index.next().await {
                Ok(Reply::Waiting | Reply::Stat(_)) => Ok(()),
                Ok(Reply::Samples(part)) => {
                    growth.append(part, most).inspect_err(|error| index.note_wrong(error))
                }
                Ok(Reply::End { len, is_unpacked }) => {
                    let is_changed = is_sized && !is_unpacked && len != stored;
                    if !is_changed && growth.fits(len) {
                        if is_unpacked {
                            growth.mark_unpacked();
                        }
                        growth.finish(len);
                        growth.settle();
                        self.keep_elsewhere(&shard);
                        return;
                    }
                    let what = "a node's index is not that of the origin's object";
                    let error = Error::new(ErrorKind::Corrupt, what);
                    let error = error.at("len", len).at("origin", stored);
                    index.note_wrong(&error);
                    Err(error)
                }
                Ok(Reply::Failed(error)) | Err(error) => Err(error),
            };
            if let Err(error) = taken {
                break error;
            }
        };
        drop(at_owner);
        let (url, node) = (shown(shard.url()), index.peer().name());
        let what = "the index of a shard broke off: this node reads the shard's origin";
        tracing::warn!(url, node, error = %broke, "{what}");
        let parts = Parts::new(wanted.stat.len, wanted.stat.binding);
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = Some(parts.clone());
        self.index_alone(wanted, shard, parts, growth, false).await;
    }
}

/// A shard that another node reads from this one.
pub struct PeerShard {
    shard: ShardHandle,
    is_unpacked: bool,
    /// Keeps a copy that is not in use otherwise.
    _stays: Option<OpeningGuard>,
}

impl PeerShard {
    /// Returns the open shard.
    #[must_use]
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Returns true if the origin's object is not the plain tar.
    #[must_use]
    pub fn is_unpacked(&self) -> bool {
        self.is_unpacked || self.shard.growth.is_unpacked()
    }

    /// Returns `end`, or the end of the shard if that is known and comes before.
    #[must_use]
    pub fn end_of(&self, end: u64) -> u64 {
        let growth = &self.shard.growth;
        let as_stored = (!self.is_unpacked()).then_some(self.shard.stat.len);
        growth.known_len().or(as_stored).map_or(end, |len| end.min(len))
    }

    /// Waits for more than `samples` samples, or for the last one. `is_awaited`: fetches them
    /// before samples that no trainer waits for.
    ///
    /// # Errors
    /// The error of the fill, if it ended early.
    pub async fn more_than(&self, samples: u64, is_awaited: bool) -> Result<Progress> {
        if is_awaited {
            return self.shard.wait(samples + 1).await;
        }
        self.shard.growth.grown(samples + 1).await
    }

    /// Reads a range of the plain tar into a span that holds [`Shard::footprint`] of it. Returns
    /// the span, and the place of the bytes in it.
    ///
    /// # Errors
    /// The error of the tier and of the origin; `Invalid` if the shard ends before.
    pub async fn read(&self, range: Range<u64>, span: Span) -> Result<(Span, Range<usize>)> {
        let start = Shard::footprint(&range).start;
        let read = self.shard.read(vec![(range.clone(), span)]).await.pop();
        let read = read.ok_or_else(shutting_down)?.whole()?;
        let at = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
        Ok((read, at(range.start)..at(range.end)))
    }
}

impl Store {
    /// Returns length and version of a shard.
    ///
    /// # Errors
    /// The error of the origin; `NotFound` if only a copy counts and there is none; `Invalid` if
    /// this node reaches another store by the URL; `PermissionDenied` if it does not share the
    /// shard.
    pub async fn stat_for_peer(&self, request: &ShardRequest) -> Result<Stat> {
        let source = self.source_for_peer(request)?;
        if request.only_cached && self.certainly_lacks(&request.endpoint, &request.url) {
            let error = Error::new(ErrorKind::NotFound, "this node has no copy");
            return Err(error.at("url", &request.url));
        }
        let rank = self.rank();
        let _awaited = request.is_awaited.then(|| rank.awaited());
        Ok(self.look(&source, &request.url).await?.stat)
    }

    /// Opens a shard for another node: a whole copy, or the shard as it arrives.
    ///
    /// # Errors
    /// As [`Store::stat_for_peer`] and [`Store::shard`]; `NotFound` if only a copy counts and there
    /// is none; `Unavailable` with the reason `changed` if the version is another one.
    pub async fn shard_for_peer(&self, request: &ShardRequest) -> Result<PeerShard> {
        self.source_for_peer(request)?;
        let at = |error: Error| error.at("url", &request.url);
        if request.only_cached {
            let copy = self.copy_for_peer(request).await?;
            let absent = || Error::new(ErrorKind::NotFound, "this node has no copy");
            return copy.ok_or_else(|| at(absent()));
        }
        let urgency = if request.is_awaited { Urgency::Needed } else { Urgency::Ahead };
        let shard = self.shard(&request.url, &Options::default(), urgency).await?;
        match &request.version {
            Some(version) if *version != shard.stat.version => {
                let error =
                    Error::new(ErrorKind::Unavailable, "the shard has another version here");
                Err(at(error.at("reason", "changed").at("version", &shard.stat.version)))
            }
            _ => {
                let is_unpacked = shard.growth.is_unpacked();
                Ok(PeerShard { shard, is_unpacked, _stays: None })
            }
        }
    }

    /// Compares the copies of a shard whose bytes another node found wrong, and drops those that
    /// differ from their checksums. One at a time: a node that cries wolf slows none down.
    ///
    /// # Errors
    /// As [`Store::stat_for_peer`].
    pub async fn compare_for_peer(&self, request: &ShardRequest) -> Result<()> {
        self.source_for_peer(request)?;
        let Some(origin) = request.origin() else { return Ok(()) };
        let name = ShardName::new(&origin);
        let _alone = self.inner.comparing.lock().await;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            tier.drop_if_corrupt(&tier.name_for(&name)).await;
        }
        Ok(())
    }

    /// Opens a whole copy of one version; none if there is no copy.
    async fn copy_for_peer(&self, request: &ShardRequest) -> Result<Option<PeerShard>> {
        let Some(origin) = request.origin() else { return Ok(None) };
        let name = ShardName::new(&origin);
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            if let Some((shard, sidecar, stays)) = tier.open_for_move(&tier.name_for(&name)).await?
            {
                let is_unpacked = sidecar.compressed_len.is_some();
                return Ok(Some(PeerShard { shard, is_unpacked, _stays: Some(stays) }));
            }
        }
        Ok(None)
    }

    /// Returns the source that another node's request is about.
    pub(super) fn source_for_peer(&self, request: &ShardRequest) -> Result<Arc<dyn Source>> {
        let url = &request.url;
        let options = Options::default();
        let by_rule = self.inner.sources.open(url, &options)?;
        if !self.is_shared(&by_rule, url, &options) {
            let error =
                Error::new(ErrorKind::PermissionDenied, "this node does not share the shard");
            return Err(error.at("url", url));
        }
        if by_rule.endpoint() != request.endpoint {
            let error =
                Error::new(ErrorKind::Invalid, "this node reads the shard from another store");
            return Err(error
                .at("url", url)
                .at("endpoint", by_rule.endpoint())
                .at("asked", &request.endpoint)
                .advise("give all nodes of a cluster the same [[source]] rules"));
        }
        self.source(url, &options)
    }
}
