//! Placement of a shard in a cluster: the nodes that may have it, and the rules that must agree.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_peers::message::{Presence, ShardRequest};
use forebay_peers::{HolderReport, Peers, PlacementReport};
use forebay_source::{Options, Rules, object_of};
use xxhash_rust::xxh3::xxh3_64;

use super::Store;
use crate::dataset::{Cache, Dataset};
use crate::tier::CopyState;

/// Time in which another node must say whether it has a shard: an admin waits for the answer.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a digest of the rules by which nodes decide what they share, and where it comes from.
/// Nodes of a cluster should have the same.
#[must_use]
pub fn rules_digest(datasets: &[Dataset], sources: &Rules) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for rule in datasets {
        let is_cached = rule.cache == Cache::Always;
        let Dataset { matches, peers, copies, .. } = rule;
        let _ = writeln!(text, "{:?} {peers:?} {copies} {is_cached}", matches.as_str());
    }
    for (pattern, endpoint) in sources.places() {
        let _ = writeln!(text, "{pattern:?} {endpoint:?}");
    }
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

impl Store {
    /// Returns the owner of a shard and the next candidate, and what each has of it; none outside
    /// of a cluster. Both are asked, for two seconds at most; the origin is not.
    ///
    /// # Errors
    /// As [`Store::owner`].
    pub async fn placement(&self, url: &str) -> Result<Option<PlacementReport>> {
        let Some(peers) = self.peers() else { return Ok(None) };
        let placed = self.owner(url)?;
        let source = self.inner.sources.open(url, &Options::default())?;
        let any = ShardRequest::any_version(source.endpoint(), &object_of(url));
        let request = ShardRequest { only_cached: true, ..any };
        let (owner, next) = tokio::join!(
            self.holder(peers, placed.owner, &request),
            self.holder(peers, placed.next, &request)
        );
        Ok(Some(PlacementReport { owner, next }))
    }

    async fn holder(
        &self,
        peers: &Arc<Peers>,
        node: Option<String>,
        request: &ShardRequest,
    ) -> Option<HolderReport> {
        let node = node?;
        let is_self = node == peers.own();
        let presence = if is_self {
            self.presence(&request.url).await
        } else {
            let asked = tokio::time::timeout(PRESENCE_TIMEOUT, peers.presence(&node, request));
            let late = |_| Error::new(ErrorKind::Unavailable, "the node does not answer in time");
            asked.await.map_err(late).and_then(|asked| asked)
        };
        let (presence, error) = match presence {
            Ok(presence) => (Some(presence), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Some(HolderReport { node, is_self, presence, error })
    }

    /// Returns what this node has of a shard, in any version.
    ///
    /// # Errors
    /// The error of a tier's directory.
    async fn presence(&self, url: &str) -> Result<Presence> {
        let mut best = Presence::Absent;
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_readable()) {
            for name in tier.copies_of(url).await? {
                let Some(copy) = tier.report_copy(&name) else { continue };
                best = best.max(match copy.state {
                    _ if copy.excerpt => Presence::Part,
                    CopyState::Whole | CopyState::Stale => Presence::Whole,
                    CopyState::Arriving | CopyState::Partial | CopyState::Broken => Presence::Part,
                    CopyState::Absent => Presence::Absent,
                });
            }
        }
        Ok(best)
    }

    /// Returns what this node has of a shard, for another node.
    ///
    /// # Errors
    /// As [`Store::stat_for_peer`].
    pub async fn presence_for_peer(&self, request: &ShardRequest) -> Result<Presence> {
        self.source_for_peer(request)?;
        self.presence(&request.url).await
    }
}
