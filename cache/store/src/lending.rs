//! Shards in memory that trainers read in place.
//!
//! A loan keeps its shard: it is not evicted while a trainer has a batch with samples of it. Lent
//! shards take half of their tier at most, and half of what their data set and tenant may have
//! there. Beyond that samples are copied.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use forebay_uring::Region;

use crate::blocks::Blocks;
use crate::budget::Lent;
use crate::shard::{Body, Shard, ShardHandle};

/// A whole shard in memory, which is not kept there.
#[derive(Debug)]
pub struct LendableShard(Weak<Shard>);

impl LendableShard {
    pub(crate) fn of(shard: &Arc<Shard>) -> Option<Self> {
        shard.is_whole_in_memory().then(|| Self(Arc::downgrade(shard)))
    }

    /// Lends the shard for a batch; none if it left, or if as much is lent as may be.
    #[must_use]
    pub fn lend(&self) -> Option<ShardLoan> {
        let handle = ShardHandle::new(self.0.upgrade()?);
        if handle.lost.get().is_some() || handle.verdict().is_wrong() {
            return None;
        }
        let Body::Memory(blocks) = &handle.body else { return None };
        let (home, blocks) = (handle.home.as_ref()?, blocks.clone());
        let lent = blocks.lend(&home.space)?;
        // It may have been evicted just before the handle was there.
        let is_kept = home.keeper.upgrade()?.keeps(&handle);
        is_kept.then_some(ShardLoan { _lent: lent, blocks, handle })
    }
}

/// A shard in memory, lent for one batch.
#[derive(Debug)]
pub struct ShardLoan {
    // Dropped in this order: the shard may be lent again when tasks that wait for room look.
    _lent: Arc<Lent>,
    blocks: Arc<Blocks>,
    handle: ShardHandle,
}

impl ShardLoan {
    /// The memory that the shard lies in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.blocks.region()
    }

    /// Returns the start of a range of the shard in that memory, in bytes; none if the range does
    /// not lie there in one piece.
    #[must_use]
    pub fn place(&self, range: &Range<u64>) -> Option<u64> {
        self.blocks.place(range).map(|place| place as u64)
    }

    /// Counts bytes as read from the tier.
    pub fn note_read(&self, bytes: u64) {
        self.handle.traffic.tier_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
