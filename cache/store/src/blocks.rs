//! Blocks of a shard in memory.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use forebay_uring::{Frozen, Region};

use crate::budget::{Lent, Space};
use crate::held::HeldBytes;
use crate::parts::parts_of;
use crate::sizes::PART_BYTES;

/// A shard in memory: one block per part. Blocks arrive one by one.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: RwLock<Vec<Option<Frozen>>>,
    /// Memory of its tier, which trainers may map.
    region: Arc<Region>,
    /// Entry among the lent shards, while it is lent.
    lent: Mutex<Weak<Lent>>,
}

impl Blocks {
    pub(crate) fn new(region: &Arc<Region>) -> Self {
        Self { blocks: RwLock::default(), region: region.clone(), lent: Mutex::default() }
    }

    /// The memory of its tier.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn put(&self, part: usize, bytes: Frozen) {
        let mut blocks = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
        if part >= blocks.len() {
            blocks.resize(part + 1, None);
        }
        blocks[part] = Some(bytes);
    }

    /// Removes the blocks of the parts from `part` on.
    pub(crate) fn remove_from(&self, part: usize) {
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).truncate(part);
    }

    /// Returns the bytes of a range; none if a part is missing.
    pub(crate) fn held(&self, range: &Range<u64>) -> Option<HeldBytes> {
        // Held only while the blocks are cloned.
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let cloned =
            pieces(&blocks, range).map(|piece| piece.map(|(block, at)| (block.clone(), at)));
        Some(HeldBytes::new(range.clone(), cloned.collect::<Option<_>>()?))
    }

    /// Enters the shard, whose space this is, among those that are lent, until the result and its
    /// clones are dropped; none if as much is lent as may be.
    pub(crate) fn lend(&self, space: &Space) -> Option<Arc<Lent>> {
        let mut entry = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lent) = entry.upgrade() {
            return Some(lent);
        }
        let lent = Arc::new(space.lend()?);
        *entry = Arc::downgrade(&lent);
        Some(lent)
    }

    /// Number of loans.
    pub(crate) fn loans(&self) -> usize {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).strong_count()
    }

    /// Returns the start of a range in the memory that its tier lends; none if the range is not
    /// there, in one piece.
    pub(crate) fn place(&self, range: &Range<u64>) -> Option<usize> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        // Start of the first piece, and end of the last one so far.
        let mut lies: Option<Range<usize>> = None;
        for piece in pieces(&blocks, range) {
            let (block, at) = piece?;
            let (start, end) = (block.offset() + at.start, block.offset() + at.end);
            let follows = lies.as_ref().is_none_or(|lies| lies.end == start);
            if !follows || !Arc::ptr_eq(block.region(), &self.region) {
                return None;
            }
            lies = Some(lies.map_or(start, |lies| lies.start)..end);
        }
        lies.map(|lies| lies.start)
    }
}

/// Returns the blocks that have a range, and its places in them; none for a part that is missing.
fn pieces<'a>(
    blocks: &'a [Option<Frozen>],
    range: &Range<u64>,
) -> impl Iterator<Item = Option<(&'a Frozen, Range<usize>)>> {
    parts_of(range).map(move |part| {
        let block = blocks.get(part)?.as_ref()?;
        let begin = part as u64 * PART_BYTES as u64;
        let place = |offset: u64| usize::try_from(offset.saturating_sub(begin)).ok();
        let place = place(range.start)?..place(range.end)?.min(PART_BYTES);
        (place.end <= block.len()).then_some((block, place))
    })
}

#[cfg(test)]
mod tests {
    use forebay_uring::{Arena, CHUNK, Region};

    use super::*;
    use crate::budget::Budget;

    const PART: u64 = PART_BYTES as u64;

    /// Blocks in parts `order` of a region, one after the other.
    fn blocks(order: &[usize]) -> Blocks {
        let region = Region::create_sealed("blocks", 2 * order.len() * CHUNK).unwrap();
        let blocks = Blocks::new(&region);
        let arena = Arena::new(region);
        for part in order {
            blocks.put(*part, arena.try_lease(PART_BYTES).unwrap().freeze());
        }
        blocks
    }

    #[test]
    fn removed_blocks_are_free_and_may_come_again() {
        let region = Region::create_sealed("blocks", 4 * CHUNK).unwrap();
        let (blocks, arena) = (Blocks::new(&region), Arena::new(region));
        let lease = || arena.try_lease(CHUNK).unwrap().freeze();
        (0..3).for_each(|part| blocks.put(part, lease()));
        blocks.remove_from(1);
        assert_eq!(arena.in_use(), CHUNK);
        assert!(blocks.held(&(0..10)).is_some());
        assert!(blocks.held(&(PART..PART + 10)).is_none());
        blocks.put(2, lease());
        assert!(blocks.held(&(2 * PART..2 * PART + 10)).is_some());
    }

    #[test]
    fn places_are_those_of_one_piece() {
        let (part, blocks) = (PART_BYTES, blocks(&[1, 2, 0]));
        assert_eq!(blocks.place(&(PART + 5..PART + 9)), Some(5));
        assert_eq!(blocks.place(&(PART + 5..2 * PART)), Some(5));
        assert_eq!(blocks.place(&(PART + 5..2 * PART + 1)), Some(5), "its blocks follow");
        assert_eq!(blocks.place(&(5..9)), Some(2 * part + 5));
        assert_eq!(blocks.place(&(5..PART + 1)), None, "its blocks do not follow");
        assert_eq!(blocks.place(&(3 * PART..3 * PART + 1)), None, "not here");
    }

    #[test]
    fn shard_is_lent_once() {
        let (blocks, budget) = (blocks(&[0, 1]), Budget::new(80));
        let space = Space::enter(&budget, [&Budget::new(80), &Budget::new(80)], 10);
        let lent = blocks.lend(&space).unwrap();
        let again = blocks.lend(&space).unwrap();
        assert_eq!((budget.lent(), blocks.loans()), (10, 2));
        drop(lent);
        assert_eq!(budget.lent(), 10);
        drop(again);
        assert_eq!(budget.lent(), 0);
        assert!(blocks.lend(&space).is_some());
    }
}
