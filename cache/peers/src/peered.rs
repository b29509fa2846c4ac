//! An origin whose shards may come from other nodes.
//!
//! | read | asks, in this order |
//! |---|---|
//! | identity | the owner, the next candidate if it has a copy, the origin |
//! | bytes for a fill of this node | the owner and the next candidate for their copies, the origin |
//! | records of a shard of another owner | the owner, the next candidate for its copy, the origin |
//!
//! All replies are of one version: each request names it. A shard whose version nothing binds
//! comes from its origin alone. A fill takes whole blocks, which the node that has them compares
//! with the checksums of its own fill; so wrong bytes do not spread.

use std::collections::VecDeque;
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
use tokio::sync::Semaphore;

use crate::client::Peers;
use crate::message::{BytesRequest, MAX_BYTES, MAX_RANGES, ShardRequest};
use crate::peer::{Failure, Fallback, Peer};
use crate::routes::Route;

/// Requests of one shard's records at once: 32 MiB, half of what a node serves from at once. A
/// batch rarely has more of a shard.
const REQUESTS_AT_ONCE: usize = 8;

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
    /// True if records come from copies alone: no node fetches a shard for them.
    copies_only: bool,
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
        Self { origin, peers, hop, tenant, copies_only: false, times: PeerTimes::default() }
    }

    /// The same, whose records come from copies that other nodes have already, or from the origin.
    #[must_use]
    pub fn of_copies(self) -> Self {
        Self { copies_only: true, ..self }
    }

    /// Returns the nodes to ask for a shard.
    fn route(&self, url: &str) -> Route {
        let key = ObjectKey::new(self.origin.endpoint(), &object_of(url));
        self.peers.route(key)
    }

    /// Returns the owner of a shard, if a request may ask it for more than its copy.
    fn asked_owner(&self, route: &Route) -> Option<Arc<Peer>> {
        route.owner.clone().filter(|_| self.hop == Hop::First)
    }

    fn request(
        &self,
        url: &str,
        stat: Option<&Stat>,
        only_cached: bool,
        rank: &Rank,
    ) -> ShardRequest {
        ShardRequest {
            version: stat.map(|stat| stat.version.clone()),
            only_cached,
            is_awaited: rank.is_awaited(),
            tenant: self.tenant.clone(),
            ..ShardRequest::any_version(self.origin.endpoint(), &object_of(url))
        }
    }

    /// Fills the spans from a node, as few requests as hold them. Returns those that it did not
    /// fill, and the last error.
    async fn read_at(
        &self,
        peer: &Peer,
        shard: &ShardRequest,
        wanted: &mut [Wanted],
    ) -> Option<Error> {
        let mut pieces = Vec::new();
        for (of, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| !wanted.is_here) {
            let mut offset = wanted.offset;
            for into in wanted.span.chunks_mut(MAX_BYTES as usize) {
                let len = into.len() as u64;
                pieces.push(Piece { of, offset, into });
                offset += len;
            }
        }
        let all: Vec<usize> = pieces.iter().map(|piece| piece.of).collect();
        let (turns, mut requests) = (Semaphore::new(REQUESTS_AT_ONCE), Vec::new());
        for pieces in requests_of(pieces) {
            requests.push(self.read_pieces(peer, shard, pieces, &turns));
        }
        let done = futures::future::join_all(requests).await;
        all.iter().for_each(|of| wanted[*of].is_here = true);
        let mut last = None;
        for (of, failure) in done {
            let Some(failure) = failure else { continue };
            of.iter().for_each(|of| wanted[*of].is_here = false);
            last = Some(peer.noted(failure));
        }
        last
    }

    /// Fills pieces by one request. Returns the numbers of their spans, and its failure.
    async fn read_pieces(
        &self,
        peer: &Peer,
        shard: &ShardRequest,
        pieces: Vec<Piece<'_>>,
        turns: &Semaphore,
    ) -> (Vec<usize>, Option<Failure>) {
        // Never closed.
        let _turn = turns.acquire().await;
        let ranges = pieces.iter().map(|piece| (piece.offset, piece.into.len() as u64)).collect();
        let request = BytesRequest { shard: shard.clone(), of_object: false, ranges };
        let (mut of, mut into) = (Vec::new(), Vec::new());
        for piece in pieces {
            of.push(piece.of);
            into.push(piece.into);
        }
        let read = self.peers.bytes(peer, &request, into).await;
        (of, read.err())
    }

    /// Fills `into` with a block of a node's copy.
    async fn copy(
        &self,
        peer: &Peer,
        shard: ShardRequest,
        offset: u64,
        into: &mut [u8],
    ) -> std::result::Result<(), Failure> {
        let (ranges, wanted) = (vec![(offset, into.len() as u64)], into.len());
        let request = BytesRequest { shard, of_object: true, ranges };
        let read = self.peers.bytes(peer, &request, vec![into]).await?;
        if read == [wanted] { Ok(()) } else { Err(Failure::shortened()) }
    }

    /// Asks other nodes for a shard's version: the owner, which asks the origin if it has to, then
    /// the next candidate, if it may have a copy.
    async fn stat_elsewhere(&self, url: &str, rank: &Rank) -> Option<Stat> {
        let route = self.route(url);
        let owner = self.asked_owner(&route);
        for (peer, only_cached) in [(owner, false), (route.next, true)] {
            let Some(peer) = peer else { continue };
            let request = self.request(url, None, only_cached, rank);
            let _asked = self.times.begin();
            let failure = match self.peers.stat(&peer, &request).await {
                Ok(stat) => return Some(stat),
                Err(failure) => failure,
            };
            let is_absent = failure.reason == Fallback::Absent;
            let error = peer.noted(failure);
            tracing::debug!(url = forebay_error::shown(url), %error, "a node does not tell a shard's version");
            if is_absent && !only_cached {
                // The object is gone: the origin says so.
                return None;
            }
        }
        None
    }
}

/// Memory for bytes of a shard.
struct Wanted {
    offset: u64,
    span: Span,
    is_here: bool,
}

/// A range of a request, and the number of the span that it fills a part of.
struct Piece<'a> {
    of: usize,
    offset: u64,
    into: &'a mut [u8],
}

/// Divides ranges among requests, each as large as a node accepts.
fn requests_of(pieces: Vec<Piece<'_>>) -> Vec<Vec<Piece<'_>>> {
    let mut requests: Vec<Vec<Piece<'_>>> = Vec::new();
    let mut bytes = 0;
    for piece in pieces {
        let len = piece.into.len() as u64;
        match requests.last_mut() {
            Some(last) if last.len() < MAX_RANGES && bytes + len <= MAX_BYTES => {
                bytes += len;
                last.push(piece);
            }
            _ => {
                bytes = len;
                requests.push(vec![piece]);
            }
        }
    }
    requests
}

/// Returns true if requests can name the version of a shard.
fn is_bound(stat: &Stat) -> bool {
    matches!(stat.binding, Binding::Strong | Binding::Weak)
}

#[async_trait]
impl Source for Peered {
    async fn stat(&self, url: &str) -> Result<Stat> {
        match self.stat_elsewhere(url, &Rank::ahead(0)).await {
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
        let nodes: VecDeque<_> = self.route(url).others().into();
        if nodes.is_empty() || !is_bound(stat) {
            return self.origin.range_read(url, stat, range, rank).await;
        }
        let Range { start, end } = range;
        let from = ReadFrom::Copies(nodes, self.times.begin());
        Ok(Box::new(PeeredRead { peered: self, url, stat, at: start, end, rank, from }))
    }

    async fn read_part(
        &self,
        url: &str,
        stat: &Stat,
        offset: u64,
        into: Span,
        rank: &Rank,
    ) -> Result<Span> {
        // A piece of a compressed object: other nodes have only the plain tar.
        self.origin.read_part(url, stat, offset, into, rank).await
    }

    async fn read_records(
        &self,
        url: &str,
        stat: &Stat,
        is_unpacked: bool,
        wanted: Vec<(u64, Span)>,
        rank: &Rank,
    ) -> Vec<(Span, Result<()>)> {
        let route = self.route(url);
        let owner = match self.copies_only {
            true => route.owner.clone(),
            false => self.asked_owner(&route),
        };
        let nodes = [(owner, self.copies_only), (route.next, true)];
        let wanted = wanted.into_iter();
        let wanted = wanted.map(|(offset, span)| Wanted { offset, span, is_here: false });
        let (mut wanted, mut last): (Vec<_>, _) = (wanted.collect(), None);
        for (peer, only_cached) in nodes {
            let Some(peer) = peer.filter(|_| is_unpacked || is_bound(stat)) else { continue };
            if wanted.iter().all(|wanted| wanted.is_here) {
                break;
            }
            let request = self.request(url, Some(stat), only_cached, rank);
            let _asked = self.times.begin();
            let failed = self.read_at(&peer, &request, &mut wanted).await;
            last = failed.or(last);
        }
        let (mut read, mut left, mut places) = (Vec::with_capacity(wanted.len()), vec![], vec![]);
        for (at, Wanted { offset, span, is_here }) in wanted.into_iter().enumerate() {
            match (is_here, &last) {
                (true, _) => read.push(Some((span, Ok(())))),
                // The origin has no bytes of the plain tar.
                (false, Some(error)) if is_unpacked => read.push(Some((span, Err(error.clone())))),
                (false, _) => {
                    read.push(None);
                    left.push((offset, span));
                    places.push(at);
                }
            }
        }
        if !left.is_empty() {
            let rest = self.origin.read_records(url, stat, is_unpacked, left, rank).await;
            for (at, one) in places.into_iter().zip(rest) {
                read[at] = Some(one);
            }
        }
        read.into_iter().flatten().collect()
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

    fn has_ranges(&self, url: &str) -> bool {
        self.origin.has_ranges(url)
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

/// Bytes for a fill of this node: of nodes' copies as long as they have them, then of the origin.
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
    /// Nodes that may have a copy, in the order of asking.
    Copies(
        VecDeque<Arc<Peer>>,
        #[expect(dead_code, reason = "it ends the time at the nodes")] AtPeer,
    ),
    Origin(Box<dyn RangeRead + 'a>),
}

#[async_trait]
impl RangeRead for PeeredRead<'_> {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(into.len());
        while let ReadFrom::Copies(nodes, _) = &self.from {
            if let Some(peer) = nodes.front().cloned() {
                let shard = self.peered.request(self.url, Some(self.stat), true, self.rank);
                let read = self.peered.copy(&peer, shard, self.at, &mut into[..wanted]);
                match read.await {
                    Ok(()) => {
                        self.at += wanted as u64;
                        return Ok(into);
                    }
                    Err(failure) => peer.note(&failure),
                }
            }
            match &mut self.from {
                ReadFrom::Copies(nodes, _) if nodes.len() > 1 => drop(nodes.pop_front()),
                _ => {
                    let (origin, rest) = (&self.peered.origin, self.at..self.end);
                    // It asks for nothing yet.
                    let read = origin.range_read(self.url, self.stat, rest, self.rank).await?;
                    self.from = ReadFrom::Origin(read);
                }
            }
        }
        let ReadFrom::Origin(read) = &mut self.from else { return Ok(into) };
        let into = read.fill(into).await?;
        self.at += wanted as u64;
        Ok(into)
    }

    fn ends_at(&self) -> Option<u64> {
        match &self.from {
            ReadFrom::Copies(..) => None,
            ReadFrom::Origin(read) => read.ends_at(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch's records of a shard go out as few requests as the protocol allows.
    #[test]
    fn ranges_share_requests_up_to_the_limits() {
        let sizes = |lens: &[usize]| {
            let mut memory: Vec<_> = lens.iter().map(|len| vec![0; *len]).collect();
            let pieces = memory.iter_mut().enumerate();
            let pieces = pieces.map(|(of, into)| Piece { of, offset: 0, into });
            requests_of(pieces.collect()).iter().map(Vec::len).collect::<Vec<_>>()
        };
        let most = MAX_BYTES as usize;
        assert!(sizes(&[]).is_empty());
        assert_eq!(sizes(&[1; 3]), [3]);
        assert_eq!(sizes(&[1; MAX_RANGES + 1]), [MAX_RANGES, 1]);
        assert_eq!(sizes(&[most, 1, most - 1, 1]), [1, 2, 1]);
    }
}
