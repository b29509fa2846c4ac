//! Shards that other nodes read from this one.
//!
//! A node that asks for a copy gets whole blocks, each compared with the checksum that this node's
//! own fill recorded: a bit that flips on a disk does not spread. A node that asks for records
//! compares them itself.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard, PoisonError, RwLockReadGuard, Weak};

use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_peers::message::ShardRequest;
use forebay_peers::{Hop, Part};
use forebay_shard::{BLOCK_BYTES, Catalogue};
use forebay_source::{Options, Source, Stat, object_of};
use forebay_uring::Span;
use lru::LruCache;
use tokio::sync::Notify;

use super::identity::{COPIES, PEERS};
use super::{Store, StoreInner};
use crate::directory::{ObjectKey, ShardName};
use crate::selector::Selector;
use crate::shard::{Growth, Progress, Shard, ShardHandle};
use crate::tier::{CopyFacts, OpeningGuard, Urgency};

/// Copies of which the checksums are remembered while other nodes read them: 4 KiB for 4 GiB of a
/// shard, and each node that copies one asks a thousand times.
pub(super) const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Attempts at a second copy: a job of this node may open the shard at its owner at the same
/// moment, and both get what was opened first.
const KEEP_TRIES: u32 = 8;

/// A shard that another node reads from this one.
pub struct PeerShard {
    shard: ShardHandle,
    growth: Growth,
    /// Facts about a whole copy.
    facts: Option<Arc<CopyFacts>>,
    /// Keeps a copy that is not in use otherwise.
    _stays: Option<OpeningGuard>,
}

impl PeerShard {
    /// Returns the length of the plain tar.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.growth.known_len().unwrap_or_else(|| self.shard.len())
    }

    /// Returns true if it has no bytes (never: a tar has end blocks).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index of the samples so far.
    pub fn index(&self) -> RwLockReadGuard<'_, Catalogue> {
        self.growth.index()
    }

    /// Returns true if the origin's object is not the plain tar.
    #[must_use]
    pub fn is_unpacked(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.is_unpacked) || self.growth.is_unpacked()
    }

    /// Returns `end`, or the end of the shard if that is known and comes before.
    #[must_use]
    pub fn end_of(&self, end: u64) -> u64 {
        let as_stored = (!self.is_unpacked()).then_some(self.shard.stat.len);
        let copied = self.facts.as_ref().map(|facts| facts.len);
        self.growth.known_len().or(copied).or(as_stored).map_or(end, |len| end.min(len))
    }

    /// Waits for more than `samples` samples, or for the last one. `is_awaited`: fetches them
    /// before samples that no trainer waits for.
    ///
    /// # Errors
    /// The error of the fill, if it ended early.
    pub async fn more_than(&self, samples: u64, is_awaited: bool) -> Result<Progress> {
        if is_awaited && self.facts.is_none() {
            return self.shard.wait(samples + 1).await;
        }
        self.growth.grown(samples + 1).await
    }

    /// Reads ranges of the plain tar, each into a span that holds [`Shard::footprint`] of it.
    /// Returns the spans, and the places of the bytes in them.
    ///
    /// # Errors
    /// The error of the tier and of the origin; `Invalid` if the shard ends before.
    pub async fn read(&self, wanted: Vec<(Range<u64>, Span)>) -> Result<Vec<(Span, Range<usize>)>> {
        let ranges: Vec<_> = wanted.iter().map(|(range, _)| range.clone()).collect();
        let placed = self.shard.read(wanted).await;
        if placed.len() < ranges.len() {
            return Err(Error::shutting_down());
        }
        let read = ranges.into_iter().zip(placed).map(|(range, placed)| {
            let start = Shard::footprint(&range).start;
            let at = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
            Ok((placed.whole()?, at(range.start)..at(range.end)))
        });
        read.collect()
    }

    /// Returns the checksum of a block at its fill.
    ///
    /// # Errors
    /// `NotFound` for bytes that are no block of a whole copy: the asker fetches them elsewhere.
    pub fn block_sum(&self, range: &Range<u64>) -> Result<u32> {
        let absent = |what: &str| {
            let error = Error::new(ErrorKind::NotFound, what.to_owned());
            error.at("url", self.shard.url()).at("offset", range.start)
        };
        let Some(facts) = &self.facts else { return Err(absent("this node has no whole copy")) };
        let end = (range.start + BLOCK_BYTES).min(facts.len);
        if !range.start.is_multiple_of(BLOCK_BYTES) || range.end != end || facts.is_unpacked {
            return Err(absent("copies are made of whole blocks of the origin's object"));
        }
        let block = usize::try_from(range.start / BLOCK_BYTES).unwrap_or(usize::MAX);
        facts.blocks.get(block).copied().ok_or_else(|| absent("the copy has no such block"))
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
        let is_absent = match request.origin().filter(|_| request.only_cached) {
            Some(origin) => !self.has_whole(&ShardName::new(&origin)).await,
            None => request.only_cached && self.certainly_lacks(&request.endpoint, &request.url),
        };
        if is_absent {
            return Err(no_copy(request));
        }
        let rank = self.rank();
        let _awaited = request.is_awaited.then(|| rank.awaited());
        if request.only_cached {
            // This goes no further than the origin. With another list of members, the asking node
            // may be the one that this node would ask, and both would wait for each other.
            let origin = self.inner.sources.open(&request.url, &Options::default())?;
            return self.look_for_peer(&origin, COPIES, &request.url).await;
        }
        self.look_for_peer(&source, PEERS, &request.url).await
    }

    /// Opens a shard for another node: a whole copy, or the shard as it arrives. `indexed`: with
    /// its index.
    ///
    /// # Errors
    /// As [`Store::stat_for_peer`] and [`Store::shard`]; `NotFound` if only a copy counts and there
    /// is none; `Unavailable` with the reason `changed` if the version is another one.
    pub async fn shard_for_peer(&self, request: &ShardRequest, indexed: bool) -> Result<PeerShard> {
        self.source_for_peer(request)?;
        if request.only_cached {
            let copy = self.copy_for_peer(request, indexed).await?;
            return copy.ok_or_else(|| no_copy(request));
        }
        let urgency = if request.is_awaited { Urgency::Needed } else { Urgency::Ahead };
        let shard = self.shard(&request.url, &Options::default(), urgency).await?;
        match &request.version {
            Some(version) if *version != shard.stat.version => {
                let error =
                    Error::new(ErrorKind::Unavailable, "the shard has another version here");
                let error = error.at("url", &request.url).at("reason", "changed");
                Err(error.at("version", &shard.stat.version))
            }
            _ => {
                let growth = shard.growth.clone();
                Ok(PeerShard { shard, growth, facts: None, _stays: None })
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

    /// Copies a shard of which the owner wants this node to keep the second copy, and waits until
    /// it is durable. A shard of which this node is no next candidate is left. The owner's rules
    /// count: rules change on one node after the other.
    ///
    /// # Errors
    /// As [`Store::stat_for_peer`] and [`Store::prefetch`]; `Unavailable` if the owner has no whole
    /// copy.
    pub async fn keep_for_peer(&self, request: &ShardRequest) -> Result<()> {
        let source = self.source_for_peer(request)?;
        let Some(peers) = self.peers() else { return Ok(()) };
        let route = peers.route(ObjectKey::new(source.endpoint(), &object_of(&request.url)));
        if route.own != Part::Next {
            return Ok(());
        }
        // The node that told has its answer: this is a request of this node's own.
        let store = Self { hop: Hop::First, is_told: true, ..self.clone() };
        for _ in 0..KEEP_TRIES {
            let held = AtomicU64::new(0);
            let copied = store.prefetch(&request.url, &Options::default(), &held).await?;
            copied.settled().await?;
            if !copied.is_elsewhere() {
                return Ok(());
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "the owner has no whole copy");
        Err(error.at("url", &request.url))
    }

    /// Tells the next candidate of a shard that arrives here, which this node owns, to keep the
    /// second copy once it is whole.
    pub(super) fn tell_when_whole(&self, shard: &Arc<Shard>) {
        let Some(request) = self.second_copy(&shard.origin().endpoint, shard.url()) else { return };
        let (store, shard) = (self.clone(), shard.clone());
        tokio::spawn(async move {
            if shard.settled().await.is_ok() {
                drop(shard);
                store.tell(request).await;
            }
        });
    }

    /// Returns the request for the second copy of a shard; none if this node does not own it, or if
    /// there is no second copy.
    fn second_copy(&self, endpoint: &str, url: &str) -> Option<ShardRequest> {
        let options = Options::default();
        let source = self.inner.sources.open(url, &options).ok()?;
        let route = self.peers()?.route(ObjectKey::new(endpoint, &object_of(url)));
        let is_wanted = route.own == Part::Owner
            && route.next.is_some()
            && self.copies_kept(url) > 1
            && source.endpoint() == endpoint
            && self.is_shared(&source, url, &options);
        is_wanted.then(|| ShardRequest::any_version(endpoint, &object_of(url)))
    }

    async fn tell(&self, request: ShardRequest) {
        let Some(peers) = self.peers() else { return };
        let key = ObjectKey::new(&request.endpoint, &request.url);
        let Some(next) = peers.route(key).next else { return };
        if let Err(error) = peers.keep(&next, &request).await {
            // Its own jobs make it copy the shard, and so does the next change of members.
            tracing::debug!(url = shown(&request.url), %error, "a node takes no second copy now");
        }
    }

    /// Opens a whole copy of one version; none if there is no copy.
    async fn copy_for_peer(
        &self,
        request: &ShardRequest,
        indexed: bool,
    ) -> Result<Option<PeerShard>> {
        let Some(origin) = request.origin() else { return Ok(None) };
        let name = ShardName::new(&origin);
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            let here = tier.name_for(&name);
            let known = self.copy_facts().get(&here).cloned();
            let Some((shard, facts, stays)) = tier.open_for_peer(&here, known).await? else {
                continue;
            };
            self.copy_facts().put(here.clone(), facts.clone());
            let growth = match indexed {
                true => {
                    let index = tier.index_of(&here).await?;
                    Growth::whole(index, facts.len)
                }
                false => shard.growth.clone(),
            };
            return Ok(Some(PeerShard { shard, growth, facts: Some(facts), _stays: Some(stays) }));
        }
        Ok(None)
    }

    fn copy_facts(&self) -> MutexGuard<'_, LruCache<ShardName, Arc<CopyFacts>>> {
        self.inner.copy_facts.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Tells the next candidates of all shards here that this node owns, where the rules want two
/// copies: whenever members or rules changed, while the store exists.
pub(super) async fn tell_about_second_copies(store: Weak<StoreInner>, changed: Arc<Notify>) {
    let all: Selector = Arc::new(|_| true);
    loop {
        changed.notified().await;
        let Some(inner) = store.upgrade() else { return };
        let store = Store::without_job(inner);
        let rules = store.inner.shared.shares.current();
        if store.peers().is_none() || !rules.any_rule(|rule| rule.copies > 1) {
            continue;
        }
        for tier in store.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            // A tier that cannot be listed has no whole copies: those that come are told of then.
            for url in tier.urls(&all).await.unwrap_or_default() {
                let Ok(source) = store.inner.sources.open(&url, &Options::default()) else {
                    continue;
                };
                if let Some(request) = store.second_copy(source.endpoint(), &url) {
                    store.tell(request).await;
                }
            }
        }
    }
}

fn no_copy(request: &ShardRequest) -> Error {
    Error::new(ErrorKind::NotFound, "this node has no copy").at("url", &request.url)
}
