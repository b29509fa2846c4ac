//! Blocks of a shard in memory.

use std::sync::{PoisonError, RwLock};

use forebay_uring::Frozen;

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

    /// Copies bytes from `offset` on until `into` is full. Returns false if a part is missing.
    pub(crate) fn copy(&self, offset: u64, into: &mut [u8]) -> bool {
        let mut part = usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
        let mut at = usize::try_from(offset % PART_BYTES as u64).expect("below a part's size");
        let mut done = 0;
        while done < into.len() {
            // Held only while the block is cloned.
            let blocks = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let Some(block) = blocks.get(part).cloned().flatten() else { return false };
            drop(blocks);
            let len = (PART_BYTES - at).min(into.len() - done);
            let Some(bytes) = block.get(at..at + len) else { return false };
            into[done..done + len].copy_from_slice(bytes);
            (done, at, part) = (done + len, 0, part + 1);
        }
        true
    }
}
