//! Blocks of a shard in memory.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use forebay_uring::Frozen;

use crate::held::HeldBytes;
use crate::parts::parts_of;
use crate::sizes::PART_BYTES;

/// A shard in memory: one block per part. Blocks arrive one by one.
#[derive(Debug, Default)]
pub(crate) struct Blocks(RwLock<Vec<Option<Frozen>>>);

impl Blocks {
    pub(crate) fn put(&self, part: usize, bytes: Frozen) {
        let mut blocks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if part >= blocks.len() {
            blocks.resize(part + 1, None);
        }
        blocks[part] = Some(bytes);
    }

    /// Returns the bytes of a range; none if a part is missing.
    pub(crate) fn held(&self, range: &Range<u64>) -> Option<HeldBytes> {
        // Held only while the blocks are cloned.
        let blocks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let pieces = parts_of(range).map(|part| {
            let block = blocks.get(part)?.clone()?;
            let begin = part as u64 * PART_BYTES as u64;
            let place = |offset: u64| usize::try_from(offset.saturating_sub(begin)).ok();
            let place = place(range.start)?..place(range.end)?.min(PART_BYTES);
            (place.end <= block.len()).then_some((block, place))
        });
        Some(HeldBytes::new(range.clone(), pieces.collect::<Option<_>>()?))
    }
}
