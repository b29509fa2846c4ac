//! Handle of an open shard.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

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
    asked: Duration,
    /// Payer of reads from the origin.
    pub(super) payer: Option<Payer>,
    /// True if the handle is for a move to another tier, not for a batch.
    pub(super) is_for_move: bool,
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
        Self { shard, _end: end, asked: Duration::ZERO, payer: None, is_for_move: false }
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
            payer: self.payer,
            is_for_move: self.is_for_move,
            ..Self::new(shard)
        }
    }

    /// Sets the time waited for the origin's version.
    pub(crate) fn asked_for(self, asked: Duration) -> Self {
        Self { asked, ..self }
    }

    /// Time waited for the origin to report its version of the shard. The rest of the opening was
    /// spent on its tier, or on the start of its fill.
    #[must_use]
    pub fn asked(&self) -> Duration {
        self.asked
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
