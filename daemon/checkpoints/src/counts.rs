//! Counts of bytes and publications since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of a node.
#[derive(Default)]
pub(crate) struct Counts {
    /// Bytes of sealed files.
    pub(crate) saved: Count,
    /// Bytes that stores took.
    pub(crate) uploaded: Count,
    /// Checkpoints that this node published.
    pub(crate) published: Count,
    /// Bytes read from this node's tiers.
    pub(crate) local: Count,
    /// Bytes read from stores.
    pub(crate) remote: Count,
}
