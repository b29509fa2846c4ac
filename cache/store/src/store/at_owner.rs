//! Shards that another node owns: opened at the owner, and read from it record by record.
//!
//! The owner fetches the shard once for the cluster and keeps it. This node keeps only the index,
//! which comes while the owner indexes, so a first sample needs no whole shard on either node. If
//! the owner cannot be reached, the next candidate's copy serves; without one, this node fetches
//! the shard for itself, as it would alone.

use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peers::message::{Reply, ShardRequest};
use forebay_peers::{CANDIDATES, Hop, IndexStream, OwnerReport, Part, Peered, Peers, Route};
use forebay_policy::Moment;
use forebay_shard::UNKNOWN;
use forebay_source::{AtPeer, Binding, ByClient, Options, PeerTimes, Source, object_of};
use lru::LruCache;

use super::Store;
use crate::compression::Compression;
use crate::directory::{ObjectKey, ShardName, object_key};
use crate::open_shards::OpenShards;
use crate::parts::Parts;
use crate::shard::{Growth, Shard};
use crate::tier::{Arrival, ShardState, Tier, Urgency, Wanted};

/// Shards that are not read from their owners for a while. Corrupt copies are rare.
pub(super) const DISTRUSTED: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Time for which a shard is not read from its owner after a failure or wrong bytes: the owner
/// compares its copy meanwhile, and fetches the shard anew.
const DISTRUST: Duration = Duration::from_secs(60);

/// Largest ratio of a shard's unpacked to its packed bytes: a zstd block stands for 128 KiB of one
/// byte in 4 bytes.
const MAX_UNPACKING: u64 = (128 << 10) / 4;

/// Part of this node in a shard that it wants to open.
enum Duty {
    /// It keeps the shard as it would alone.
    Own,
    /// It keeps the second copy, which comes from the owner.
    Second(Route),
    /// Others keep it.
    Elsewhere(Route),
}

impl Store {
    /// Joins a cluster: shards of other owners are read from them from now on. A second call has no
    /// effect.
    pub fn join(&self, peers: Arc<Peers>) {
        // Set once, by the node that starts.
        let _ = self.inner.peers.set(peers);
        self.note_ring_change();
    }

    /// Notes that the members changed, or the rules: shards have other owners, and foresight
    /// decides about those that this node keeps.
    pub fn note_ring_change(&self) {
        *self.elsewhere() = OpenShards::new();
        self.decide_managed(None);
        self.inner.second_copies.notify_one();
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
        self.source_among_nodes(url, options, |peered| peered)
    }

    /// Returns the source of parts of a shard: copies of other nodes, or the origin.
    pub(super) fn source_of_parts(&self, url: &str, options: &Options) -> Result<Arc<dyn Source>> {
        self.source_among_nodes(url, options, Peered::of_copies)
    }

    fn source_among_nodes(
        &self,
        url: &str,
        options: &Options,
        with: impl FnOnce(Peered) -> Peered,
    ) -> Result<Arc<dyn Source>> {
        let source = self.inner.sources.open_for(url, options, self.client.as_ref())?;
        match self.peers() {
            Some(peers) if self.is_shared(&source, url, options) => {
                let peered = Peered::new(source, peers.clone(), self.hop, self.asking_tenant());
                Ok(Arc::new(with(peered)))
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
    pub(super) fn is_shared(&self, source: &Arc<dyn Source>, url: &str, options: &Options) -> bool {
        self.allows_peers(url)
            && source.is_remote()
            && !self.is_never_cached(url)
            && self.inner.sources.reads_by_rule(url, options)
    }

    fn allows_peers(&self, url: &str) -> bool {
        self.inner.shared.shares.current().rule(self.charge(url)).peers
    }

    /// Returns true if other nodes keep this shard, and this one does not.
    pub(super) fn is_kept_elsewhere(&self, url: &str, options: &Options) -> bool {
        let Some(peers) = self.peers() else { return false };
        let Ok(source) = self.inner.sources.open_for(url, options, self.client.as_ref()) else {
            return false;
        };
        let key = ObjectKey::new(source.endpoint(), &object_of(url));
        !peers.route(key).keeps(self.copies_kept(url)) && self.is_shared(&source, url, options)
    }

    /// Returns the number of nodes that keep a shard.
    pub(super) fn copies_kept(&self, url: &str) -> u8 {
        self.inner.shared.shares.current().rule(self.charge(url)).copies
    }

    fn duty(&self, wanted: &Wanted) -> Duty {
        let url = &wanted.origin.url;
        let Some(peers) = self.peers() else { return Duty::Own };
        let route = peers.route(object_key(&wanted.origin));
        if route.owner.is_none()
            || self.hop == Hop::Last
            || !wanted.source.is_shared()
            || !self.allows_peers(url)
        {
            return Duty::Own;
        }
        match route.own {
            Part::Next if self.is_told || self.copies_kept(url) > 1 => Duty::Second(route),
            _ => Duty::Elsewhere(route),
        }
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
            true => ring.candidates(key, CANDIDATES),
            false => Vec::new(),
        }
        .into_iter()
        .map(|member| member.name.clone());
        let (owner, next) = (candidates.next(), candidates.next());
        let is_self = owner.as_deref() == Some(peers.own());
        Ok(OwnerReport { url: shown(url), owner, next, is_self })
    }

    /// Returns a shard that is open at its owner, unless a copy is here. A prefetch of a copy that
    /// this node keeps does not content itself with it.
    pub(super) fn opened_at_owner(&self, wanted: &Wanted, urgency: Urgency) -> Option<Arc<Shard>> {
        let is_whole = |state: Option<ShardState>| state.is_some_and(ShardState::is_whole);
        let mut tiers = self.inner.tiers.iter().filter(|tier| tier.is_readable());
        if tiers.any(|tier| is_whole(tier.state(&tier.name_for(&wanted.name))))
            || (urgency == Urgency::Ahead && self.wants_copy(wanted))
        {
            return None;
        }
        let mut elsewhere = self.elsewhere();
        let shard = elsewhere.get(&wanted.name)?;
        if shard.progress().failed.is_some() {
            elsewhere.forget(&wanted.name);
            return None;
        }
        Some(shard)
    }

    /// Returns true if this node is to have a copy of a shard that another one owns.
    pub(super) fn wants_copy(&self, wanted: &Wanted) -> bool {
        match self.duty(wanted) {
            Duty::Own => false,
            Duty::Second(_) => true,
            Duty::Elsewhere(_) => self.guest_due(wanted).is_some(),
        }
    }

    /// Opens a shard at a node that keeps it; none if this node is to fetch it: as its owner, from
    /// the owner's copy, or because no other node serves it.
    pub(super) async fn open_elsewhere(
        &self,
        wanted: &Wanted,
        urgency: Urgency,
    ) -> Option<Arc<Shard>> {
        match self.duty(wanted) {
            Duty::Own => None,
            // The copy comes once the owner's is whole; until then its records are read there.
            Duty::Second(route) if self.has_copy(&route, wanted).await => None,
            Duty::Second(route) => self.open_at_owner(wanted, route, urgency).await,
            Duty::Elsewhere(route) => match self.begin_guest(wanted, &route).await {
                Some(guest) => Some(guest),
                None => self.open_at_owner(wanted, route, urgency).await,
            },
        }
    }

    /// Starts to copy a shard of another owner that jobs of this node will read again before the
    /// copy has to go; none if it does not pay, or the owner has no whole copy.
    async fn begin_guest(&self, wanted: &Wanted, route: &Route) -> Option<Arc<Shard>> {
        let due = self.guest_due(wanted)?;
        if !self.has_copy(route, wanted).await {
            return None;
        }
        let charge = wanted.charge(&self.inner.shared.shares.current());
        let wanted = Wanted { guest: Some(due), ..wanted.clone() };
        for tier in self.candidates(charge, Some(&wanted.name), wanted.len, Urgency::Ahead) {
            let here = Wanted { name: tier.name_for(&wanted.name), ..wanted.clone() };
            match tier.begin(&here, Arrival::Fetch(Urgency::Ahead), false).await {
                Ok((shard, _filling)) => {
                    self.elsewhere().forget(&wanted.name);
                    return Some(shard);
                }
                Err(error) => {
                    let (url, tier) = (shown(&wanted.origin.url), tier.name());
                    tracing::debug!(url, tier, %error, "no guest");
                }
            }
        }
        None
    }

    /// Time of a shard's use after the next one, if a copy pays.
    fn guest_due(&self, wanted: &Wanted) -> Option<Moment> {
        if Compression::is_promised(&wanted.origin.url) {
            // Its owner has the plain tar only, and a copy is one of the origin's object.
            return None;
        }
        let tiers = self.inner.tiers.iter().filter(|tier| tier.is_writable());
        let budgets = tiers.map(Tier::budget);
        let free = budgets.map(|budget| budget.limit().saturating_sub(budget.used())).sum();
        self.inner.shared.forecast.guest_due(object_key(&wanted.origin), free)
    }

    /// Returns true if the owner of a shard has a whole copy.
    async fn has_copy(&self, route: &Route, wanted: &Wanted) -> bool {
        let (Some(peers), Some(owner)) = (self.peers(), &route.owner) else { return false };
        peers.has_copy(owner, &self.request(wanted, true)).await
    }

    /// Makes a request about a shard for this node's job.
    fn request(&self, wanted: &Wanted, only_cached: bool) -> ShardRequest {
        let tenant = self.asking_tenant();
        ShardRequest { only_cached, tenant, ..ShardRequest::of(wanted.origin.clone()) }
    }

    async fn open_at_owner(
        &self,
        wanted: &Wanted,
        route: Route,
        urgency: Urgency,
    ) -> Option<Arc<Shard>> {
        let peers = self.peers()?;
        let is_distrusted = {
            let mut distrusted = self.distrusted();
            distrusted.get(&wanted.name).is_some_and(|since| since.elapsed() < DISTRUST)
        };
        if is_distrusted {
            return None;
        }
        for (peer, only_cached) in [(route.owner, false), (route.next, true)] {
            let Some(peer) = peer else { continue };
            let is_awaited = urgency == Urgency::Needed;
            let request = ShardRequest { is_awaited, ..self.request(wanted, only_cached) };
            let at_node = wanted.source.peer_times().map(PeerTimes::begin);
            match peers.index(&peer, &request).await {
                Ok(index) => return Some(self.open_with(wanted, index, at_node)),
                Err(error) => {
                    let url = &wanted.origin.url;
                    let (url, dataset) = (shown(url), self.inner.shared.dataset_of(url));
                    tracing::debug!(dataset, url, %error, "a node does not serve a shard");
                }
            }
        }
        None
    }

    /// Opens a shard whose index comes from another node.
    fn open_with(
        &self,
        wanted: &Wanted,
        index: IndexStream,
        at_node: Option<AtPeer>,
    ) -> Arc<Shard> {
        let growth = Growth::new();
        let shard = self.through(wanted, growth.clone(), None, None);
        self.keep_elsewhere(&shard);
        let (store, wanted, opened) = (self.clone(), wanted.clone(), shard.clone());
        tokio::spawn(async move { store.follow(&wanted, opened, growth, index, at_node).await });
        shard
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
            let Route { owner, next, .. } = peers.route(object_key(&origin));
            // While the owner is left alone, the other copy serves.
            let served = owner.filter(|owner| !owner.is_down()).or(next)?;
            Some((peers.clone(), served))
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
        at_node: Option<AtPeer>,
    ) {
        let stored = wanted.stat.len;
        let is_sized = wanted.stat.binding != Binding::Stream;
        let most = if is_sized { stored.saturating_mul(MAX_UNPACKING) } else { UNKNOWN };
        let broke = loop {
            let taken = match index.next().await {
                Ok(Reply::Waiting | Reply::Stat(_) | Reply::Kept) => Ok(()),
                Ok(Reply::Samples(part)) => {
                    growth.append(part, most).inspect_err(|error| index.note_wrong(error))
                }
                Ok(Reply::End { len, is_unpacked }) => {
                    let ended = match is_sized && !is_unpacked && len != stored {
                        true => {
                            let what = "a node's index is not that of the origin's object";
                            let error = Error::new(ErrorKind::Corrupt, what);
                            Err(error.at("len", len).at("origin", stored))
                        }
                        false => growth.finish(len, is_unpacked),
                    };
                    if ended.is_ok() {
                        growth.settle();
                        self.keep_elsewhere(&shard);
                        return;
                    }
                    ended.inspect_err(|error| index.note_wrong(error))
                }
                Ok(Reply::Failed(error)) | Err(error) => Err(error),
            };
            if let Err(error) = taken {
                break error;
            }
        };
        drop(at_node);
        let (url, node) = (shown(shard.url()), index.peer().name());
        let what = "the index of a shard broke off: this node reads the shard's origin";
        tracing::warn!(url, node, error = %broke, "{what}");
        let parts = Parts::new(wanted.stat.len, wanted.stat.binding);
        *shard.parts.lock().unwrap_or_else(PoisonError::into_inner) = Some(parts.clone());
        self.index_alone(wanted, shard, parts, growth, false).await;
    }
}
