//! An origin whose shards may come from other nodes.
//!
//! | read | asks, in this order |
//! |---|---|
//! | identity | the owner, the origin |
//! | bytes for a fill of this node | the next candidate for its copy, the origin |
//! | records of a shard of another owner | the owner, the next candidate for its copy, the origin |
//!
//! All replies are of one version: each request names it. A shard whose version nothing binds
//! comes from its origin alone.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_cluster::ObjectKey;
use forebay_error::{Error, Result};
use forebay_source::{
    AtPeer, Begun, Binding, Comparison, Listing, PeerTimes, RangeRead, Rank, Source, Stat, Turn,
    object_of,
};
use forebay_uring::Span;

use crate::client::{Peers, Route};
use crate::message::{BytesRequest, MAX_BYTES, ShardRequest};
use crate::peer::{Asked, Failure, Peer};

/// Place of a request on its way through the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// A job of this node asks.
    First,
    /// Another node asks: no third one is asked, except for a copy that is there.
    Last,
}

/// An origin, and the nodes that may have its shards.
pub struct Peered {
    origin: Arc<dyn Source>,
    peers: Arc<Peers>,
    hop: Hop,
    /// Tenant for whose job it reads.
    tenant: Option<String>,
    times: PeerTimes,
}

impl Peered {
    /// Wraps an origin, for a job of `tenant`.
    #[must_use]
    pub fn new(
        origin: Arc<dyn Source>,
        peers: Arc<Peers>,
        hop: Hop,
        tenant: Option<String>,
    ) -> Self {
        Self { origin, peers, hop, tenant, times: PeerTimes::default() }
    }

    /// Returns the nodes to ask for a shard.
    fn route(&self, url: &str) -> Route {
        let key = ObjectKey::new(self.origin.endpoint(), &object_of(url));
        let Route { owner, next } = self.peers.route(key);
        match self.hop {
            Hop::First => Route { owner, next },
            Hop::Last => Route { owner: None, next },
        }
    }

    fn request(
        &self,
        url: &str,
        stat: Option<&Stat>,
        only_cached: bool,
        rank: &Rank,
    ) -> ShardRequest {
        ShardRequest {
            endpoint: self.origin.endpoint().to_owned(),
            url: object_of(url).into_owned(),
            version: stat.map(|stat| stat.version.clone()),
            only_cached,
            is_awaited: rank.is_awaited(),
            tenant: self.tenant.clone(),
        }
    }

    /// Fills the span from a node, as far as the shard reaches.
    async fn read_at(
        &self,
        peer: &Peer,
        shard: ShardRequest,
        of_object: bool,
        offset: u64,
        into: &mut [u8],
    ) -> Asked<usize> {
        let mut filled = 0;
        while filled < into.len() {
            let len = (into.len() - filled).min(MAX_BYTES as usize);
            let ranges = vec![(offset + filled as u64, len as u64)];
            let request = BytesRequest { shard: shard.clone(), of_object, ranges };
            let got = self.peers.bytes(peer, &request, &mut into[filled..filled + len]).await?;
            filled += got;
            if got < len {
                break;
            }
        }
        Ok(filled)
    }

    /// Fills the span from the owner, else from the next candidate's copy. Returns the errors of
    /// both if neither has the bytes.
    async fn read_plain(
        &self,
        url: &str,
        stat: &Stat,
        offset: u64,
        into: &mut [u8],
        rank: &Rank,
    ) -> std::result::Result<usize, Option<Error>> {
        let Route { owner, next } = self.route(url);
        let mut last = None;
        for (peer, only_cached) in [(owner, false), (next, true)] {
            let Some(peer) = peer else { continue };
            let request = self.request(url, Some(stat), only_cached, rank);
            let _asked = self.times.begin();
            match self.read_at(&peer, request, false, offset, into).await {
                Ok(filled) => return Ok(filled),
                Err(failure) => last = Some(peer.noted(failure)),
            }
        }
        Err(last)
    }

    /// Asks the owner for a shard's version, or the next candidate if this node owns the shard and
    /// that one may have a copy.
    async fn stat_elsewhere(&self, url: &str, rank: &Rank) -> Option<Stat> {
        let Route { owner: None, next: Some(next) } = self.route(url) else {
            return self.stat_at_owner(url, rank).await;
        };
        let request = self.request(url, None, true, rank);
        let _asked = self.times.begin();
        match self.peers.stat(&next, &request).await {
            Ok(stat) => Some(stat),
            Err(failure) => {
                next.noted(failure);
                None
            }
        }
    }

    async fn stat_at_owner(&self, url: &str, rank: &Rank) -> Option<Stat> {
        let owner = self.route(url).owner?;
        let request = self.request(url, None, false, rank);
        let _asked = self.times.begin();
        match self.peers.stat(&owner, &request).await {
            Ok(stat) => Some(stat),
            Err(failure) => {
                let error = owner.noted(failure);
                tracing::debug!(url = forebay_error::shown(url), %error, "the owner does not tell a shard's version");
                None
            }
        }
    }
}

/// Returns true if requests can name the version of a shard.
fn is_bound(stat: &Stat) -> bool {
    matches!(stat.binding, Binding::Strong | Binding::Weak)
}

#[async_trait]
impl Source for Peered {
    async fn stat(&self, url: &str) -> Result<Stat> {
        match self.stat_at_owner(url, &Rank::ahead(0)).await {
            Some(stat) => Ok(stat),
            None => self.origin.stat(url).await,
        }
    }

    async fn begin(&self, url: &str, rank: &Rank) -> Result<Begun> {
        match self.stat_elsewhere(url, rank).await {
            Some(stat) => Ok(Begun { stat, head: None }),
            None => self.origin.begin(url, rank).await,
        }
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        let Some(next) = self.route(url).next.filter(|_| is_bound(stat)) else {
            return self.origin.range_read(url, stat, range, rank).await;
        };
        let Range { start, end } = range;
        let from = ReadFrom::Copy(next, self.times.begin());
        Ok(Box::new(PeeredRead { peered: self, url, stat, at: start, end, rank, from }))
    }

    async fn read_part(
        &self,
        url: &str,
        stat: &Stat,
        offset: u64,
        mut into: Span,
        rank: &Rank,
    ) -> Result<Span> {
        if is_bound(stat) && self.read_plain(url, stat, offset, &mut into, rank).await.is_ok() {
            return Ok(into);
        }
        self.origin.read_part(url, stat, offset, into, rank).await
    }

    async fn read_unpacked(
        &self,
        url: &str,
        stat: &Stat,
        offset: u64,
        mut into: Span,
        rank: &Rank,
    ) -> (Span, Result<()>) {
        match self.read_plain(url, stat, offset, &mut into, rank).await {
            Ok(_) => (into, Ok(())),
            Err(Some(error)) => (into, Err(error)),
            Err(None) => self.origin.read_unpacked(url, stat, offset, into, rank).await,
        }
    }

    async fn list(&self, pattern: &str) -> Result<Listing> {
        self.origin.list(pattern).await
    }

    async fn origin_checksum(&self, url: &str, stat: &Stat) -> Option<Comparison> {
        self.origin.origin_checksum(url, stat).await
    }

    fn at_once(&self) -> u64 {
        self.origin.at_once()
    }

    async fn turn(&self, url: &str, rank: &Rank) -> Result<Turn> {
        self.origin.turn(url, rank).await
    }

    fn trouble(&self, url: &str) -> Option<Error> {
        self.origin.trouble(url)
    }

    fn is_remote(&self) -> bool {
        self.origin.is_remote()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn peer_times(&self) -> Option<&PeerTimes> {
        Some(&self.times)
    }

    fn scope(&self) -> &str {
        self.origin.scope()
    }

    fn endpoint(&self) -> &str {
        self.origin.endpoint()
    }
}

/// Bytes for a fill of this node: of a node's copy as long as it has them, then of the origin.
struct PeeredRead<'a> {
    peered: &'a Peered,
    url: &'a str,
    stat: &'a Stat,
    at: u64,
    end: u64,
    rank: &'a Rank,
    from: ReadFrom<'a>,
}

enum ReadFrom<'a> {
    /// A copy on another node.
    Copy(Arc<Peer>, #[expect(dead_code, reason = "it ends the time at the node")] AtPeer),
    Origin(Box<dyn RangeRead + 'a>),
}

#[async_trait]
impl RangeRead for PeeredRead<'_> {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(into.len());
        if let ReadFrom::Copy(peer, _) = &self.from {
            let request = self.peered.request(self.url, Some(self.stat), true, self.rank);
            let peered = self.peered;
            let read = peered.read_at(peer, request, true, self.at, &mut into[..wanted]).await;
            let failure = match read {
                Ok(filled) if filled == wanted => {
                    self.at += wanted as u64;
                    return Ok(into);
                }
                Ok(_) => Failure::shortened(),
                Err(failure) => failure,
            };
            peer.noted(failure);
            let (origin, rest) = (&peered.origin, self.at..self.end);
            // It asks for nothing yet.
            let read = origin.range_read(self.url, self.stat, rest, self.rank).await?;
            self.from = ReadFrom::Origin(read);
        }
        let ReadFrom::Origin(read) = &mut self.from else { return Ok(into) };
        let into = read.fill(into).await?;
        self.at += wanted as u64;
        Ok(into)
    }

    fn ends_at(&self) -> Option<u64> {
        match &self.from {
            ReadFrom::Copy(..) => None,
            ReadFrom::Origin(read) => read.ends_at(),
        }
    }
}
