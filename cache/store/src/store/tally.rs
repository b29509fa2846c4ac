//! What the store counts.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::budget::Budget;
use crate::evict::Evict;
use crate::shard::Traffic;

/// A count that only grows.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn inc(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) hits: Count,
    pub(super) misses: Count,
    pub(super) fills: Count,
    pub(super) failed_fills: Count,
    pub(super) evictions: Count,
    pub(super) corruptions: Count,
    pub(super) origin_bytes: Count,
    pub(super) resumed_bytes: Count,
}

/// What a data set holds now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// The data set.
    pub name: String,
    /// The order in which its shards are given up.
    pub evict: Evict,
    /// Bytes reserved for it.
    pub used_bytes: u64,
    /// Bytes it may hold, where that is less than the tier.
    pub max_bytes: Option<u64>,
    /// Its shards, arriving ones included.
    pub shards: usize,
}

/// Counts since the store was opened; bytes and shards are what is there now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Bytes the tier may hold.
    pub capacity_bytes: u64,
    /// Bytes reserved on it.
    pub used_bytes: u64,
    /// Shards on it, arriving ones included.
    pub shards: usize,
    /// Shards opened that were on the tier.
    pub hits: u64,
    /// Shards opened that were not.
    pub misses: u64,
    /// Shards fetched whole.
    pub fills: u64,
    /// Fetches that ended in an error.
    pub failed_fills: u64,
    /// Shards removed to make room.
    pub evictions: u64,
    /// Copies dropped because bytes at rest were wrong.
    pub corruptions: u64,
    /// Bytes of whole shards fetched.
    pub origin_bytes: u64,
    /// Bytes of whole shards that a fill which did not end had left.
    pub resumed_bytes: u64,
    /// Bytes read from the tier for batches.
    pub tier_read_bytes: u64,
    /// Bytes copied for batches out of frames of running fills.
    pub copied_bytes: u64,
}

impl Tally {
    pub(super) fn read(&self, budget: &Budget, traffic: &Traffic, shards: usize) -> Counters {
        let get = |count: &Count| count.0.load(Ordering::Relaxed);
        Counters {
            capacity_bytes: budget.capacity(),
            used_bytes: budget.used(),
            shards,
            hits: get(&self.hits),
            misses: get(&self.misses),
            fills: get(&self.fills),
            failed_fills: get(&self.failed_fills),
            evictions: get(&self.evictions),
            corruptions: get(&self.corruptions),
            origin_bytes: get(&self.origin_bytes),
            resumed_bytes: get(&self.resumed_bytes),
            tier_read_bytes: traffic.tier_bytes.load(Ordering::Relaxed),
            copied_bytes: traffic.copied_bytes.load(Ordering::Relaxed),
        }
    }
}
