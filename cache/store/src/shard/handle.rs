//! Handle of an open shard.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_source::PeerTimes;
use forebay_uring::Span;

use super::{Placed, Shard};
use crate::budget::Budget;
use crate::ledger::Payer;

/// Handle of an open shard. Its file is not evicted until the handle is dropped.
#[derive(Debug)]
pub struct ShardHandle {
    // Dropped in this order: the count is down when waiting tasks look again.
    shard: Arc<Shard>,
    _end: RoomWaker,
    asked: Waited,
    opened: Waited,
    /// Payer of reads from the origin.
    pub(super) payer: Option<Payer>,
    /// True if the handle is for a move to another tier, not for a batch.
    pub(super) is_for_move: bool,
}

/// Time waited for a shard: all of it, and the part in which another node was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// All of it.
    pub time: Duration,
    /// Time of it in which another node was asked.
    pub at_peer: Duration,
}

impl Waited {
    /// Returns the time since `start`.
    pub(crate) fn since(start: Instant, peer_times: Option<&PeerTimes>) -> Self {
        let at_peer = peer_times.map_or(Duration::ZERO, |times| times.since(start));
        Self { time: start.elapsed(), at_peer }
    }
}

/// Wakes the tasks that wait for room on the shard's tier, on drop.
#[derive(Debug)]
struct RoomWaker(Option<Arc<Budget>>);

impl Drop for RoomWaker {
    fn drop(&mut self) {
        if let Some(budget) = &self.0 {
            budget.wake();
        }
    }
}

impl ShardHandle {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        let end = RoomWaker(shard.home.as_ref().map(|home| home.budget.clone()));
        let (asked, opened) = (Waited::default(), Waited::default());
        Self { shard, _end: end, asked, opened, payer: None, is_for_move: false }
    }

    /// Sets the payer of reads from the origin.
    pub(crate) fn paid_by(self, payer: Payer) -> Self {
        Self { payer: Some(payer), ..self }
    }

    /// Marks the handle as one for a move.
    pub(crate) fn for_move(self) -> Self {
        Self { is_for_move: true, ..self }
    }

    /// The same handle for another shard.
    pub(crate) fn to(self, shard: Arc<Shard>) -> Self {
        Self {
            asked: self.asked,
            opened: self.opened,
            payer: self.payer,
            is_for_move: self.is_for_move,
            ..Self::new(shard)
        }
    }

    /// Sets the time waited for the shard's version, and then for its opening.
    pub(crate) fn opened_in(self, asked: Waited, opened: Waited) -> Self {
        Self { asked, opened, ..self }
    }

    /// Time waited for the shard's version.
    #[must_use]
    pub fn asked(&self) -> Waited {
        self.asked
    }

    /// Rest of the time in which it was opened: its tier was read, or its fill started.
    #[must_use]
    pub fn opened(&self) -> Waited {
        self.opened
    }

    /// Reads ranges, each into a span as long as its footprint. An error shows when a member of its
    /// range is checked. The span comes back in any case, unless the origin failed.
    ///
    /// Ranges with all frames in memory are copied. All others are read together, from the tier, or
    /// from the origin if the tier has lost them; then the payer of this handle pays.
    pub async fn read(&self, wanted: Vec<(Range<u64>, Span)>) -> Vec<Placed> {
        self.shard.read(wanted, self).await
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Deref for ShardHandle {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}
