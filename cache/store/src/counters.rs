//! Counters of tiers and of reads past them.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::budget::Budget;
use crate::dataset::{Cache, Dataset};
use crate::shares::Share;
use crate::traffic::Sums;
use forebay_policy::Evict;

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

/// Counters of a tier.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hits: Count,
    pub(crate) misses: Count,
    pub(crate) fills: Count,
    pub(crate) failed_fills: Count,
    pub(crate) evictions: Count,
    pub(crate) corruptions: Count,
    pub(crate) origin_bytes: Count,
    pub(crate) resumed_bytes: Count,
    pub(crate) moved_in: Count,
    pub(crate) moved_bytes: Count,
    pub(crate) written_bytes: Count,
    pub(crate) io_errors: Count,
    pub(crate) through: Count,
}

/// Holdings of all data sets and tenants, on all tiers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holdings {
    /// Each data set, in the order of the rules; last the shards of no data set.
    pub datasets: Vec<Holding>,
    /// Each tenant, in the same way.
    pub tenants: Vec<Holding>,
}

/// Holdings of a data set or a tenant, on all tiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holding {
    /// Name of the data set or tenant.
    pub name: String,
    /// Caching of a data set's shards,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// and their eviction policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict: Option<Evict>,
    /// Bytes reserved.
    pub used_bytes: u64,
    /// Maximum bytes, if less than the tier's.
    pub max_bytes: Option<u64>,
    /// Shards, arriving ones included.
    pub shards: usize,
}

impl Holding {
    /// `rule`: the rule of a data set.
    pub(crate) fn of(share: &Share, rule: Option<&Dataset>, shards: usize) -> Self {
        Self {
            name: share.name.clone(),
            cache: rule.map(|rule| rule.cache),
            evict: rule.map(|rule| rule.evict),
            used_bytes: share.budget.used(),
            max_bytes: share.max_bytes(),
            shards,
        }
    }
}

/// Counters of one tier, or of all tiers together, since the store was opened. Bytes and shards are
/// current values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Bytes the tier may hold.
    pub capacity_bytes: u64,
    /// Bytes it may hold now: less if others fill the disk.
    pub limit_bytes: u64,
    /// Bytes reserved; of compressed shards, their unpacked size.
    pub used_bytes: u64,
    /// Shards on the tier, arriving ones included.
    pub shards: usize,
    /// Excerpts among them: members of shards that jobs want, without the rest.
    #[serde(default)]
    pub excerpts: usize,
    /// Shards no more on the tier whose files are still there: they are being removed, or could
    /// not be. Their bytes stay reserved.
    #[serde(default)]
    pub leaving: usize,
    /// Uses of shards by epochs of jobs that found them on the tier.
    pub hits: u64,
    /// Shards that had to be fetched, for their first use: each ends as one of the next three.
    pub misses: u64,
    /// Shards fetched whole, and kept.
    pub fills: u64,
    /// Fetches that failed.
    pub failed_fills: u64,
    /// Shards that no tier accepted: indexed in one pass and read from their origin.
    pub through: u64,
    /// Shards removed to make room.
    pub evictions: u64,
    /// Copies dropped because bytes at rest were wrong.
    pub corruptions: u64,
    /// Bytes fetched of shards that came or are arriving; of compressed shards, the bytes from
    /// their origin.
    pub origin_bytes: u64,
    /// Bytes of whole shards that an unfinished fill had left.
    pub resumed_bytes: u64,
    /// Shards that came from another tier.
    pub moved_in: u64,
    /// Bytes of these shards.
    pub moved_bytes: u64,
    /// Bytes written by fills and moves: on a disk, they wear it.
    pub written_bytes: u64,
    /// Failed operations of the device.
    pub io_errors: u64,
    /// Bytes read from the tier for batches.
    pub tier_read_bytes: u64,
    /// Bytes copied for batches out of frames of running fills.
    pub copied_bytes: u64,
    /// Bytes read from the origin for batches, because no tier holds the shard.
    pub through_bytes: u64,
}

impl Counters {
    /// Opened shards that were on no tier, and whose fetch has ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.fills + self.failed_fills + self.through
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let sum = |of: fn(&Self) -> u64| of(&self).saturating_add(of(&other));
        Self {
            capacity_bytes: sum(|c| c.capacity_bytes),
            limit_bytes: sum(|c| c.limit_bytes),
            used_bytes: sum(|c| c.used_bytes),
            shards: self.shards + other.shards,
            excerpts: self.excerpts + other.excerpts,
            leaving: self.leaving + other.leaving,
            hits: sum(|c| c.hits),
            misses: sum(|c| c.misses),
            fills: sum(|c| c.fills),
            failed_fills: sum(|c| c.failed_fills),
            through: sum(|c| c.through),
            evictions: sum(|c| c.evictions),
            corruptions: sum(|c| c.corruptions),
            origin_bytes: sum(|c| c.origin_bytes),
            resumed_bytes: sum(|c| c.resumed_bytes),
            moved_in: sum(|c| c.moved_in),
            moved_bytes: sum(|c| c.moved_bytes),
            written_bytes: sum(|c| c.written_bytes),
            io_errors: sum(|c| c.io_errors),
            tier_read_bytes: sum(|c| c.tier_read_bytes),
            copied_bytes: sum(|c| c.copied_bytes),
            through_bytes: sum(|c| c.through_bytes),
        }
    }
}

/// Counters of reads past all tiers, since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThroughCounters {
    /// Opened shards that no tier had or accepted.
    pub misses: u64,
    /// Those that could not be indexed.
    pub failed_fills: u64,
    /// Those that were indexed, and are read from their origin.
    pub through: u64,
    /// Bytes copied for batches out of frames while the shards were indexed.
    pub copied_bytes: u64,
    /// Bytes read from the origin for batches.
    pub through_bytes: u64,
}

impl From<ThroughCounters> for Counters {
    fn from(past: ThroughCounters) -> Self {
        let ThroughCounters { misses, failed_fills, through, copied_bytes, through_bytes } = past;
        Self { misses, failed_fills, through, copied_bytes, through_bytes, ..Self::default() }
    }
}

impl Tally {
    /// Counters of reads past all tiers.
    pub(crate) fn past(&self, traffic: Sums) -> ThroughCounters {
        let get = |count: &Count| count.0.load(Ordering::Relaxed);
        ThroughCounters {
            misses: get(&self.misses),
            failed_fills: get(&self.failed_fills),
            through: get(&self.through),
            copied_bytes: traffic.copied_bytes,
            through_bytes: traffic.through_bytes,
        }
    }

    pub(crate) fn read(
        &self,
        budget: &Budget,
        traffic: Sums,
        (shards, excerpts, leaving): (usize, usize, usize),
    ) -> Counters {
        let get = |count: &Count| count.0.load(Ordering::Relaxed);
        Counters {
            capacity_bytes: budget.capacity(),
            limit_bytes: budget.limit(),
            used_bytes: budget.used(),
            shards,
            excerpts,
            leaving,
            hits: get(&self.hits),
            misses: get(&self.misses),
            fills: get(&self.fills),
            failed_fills: get(&self.failed_fills),
            through: get(&self.through),
            evictions: get(&self.evictions),
            corruptions: get(&self.corruptions),
            origin_bytes: get(&self.origin_bytes),
            resumed_bytes: get(&self.resumed_bytes),
            moved_in: get(&self.moved_in),
            moved_bytes: get(&self.moved_bytes),
            written_bytes: get(&self.written_bytes),
            io_errors: get(&self.io_errors),
            tier_read_bytes: traffic.tier_bytes + traffic.move_bytes,
            copied_bytes: traffic.copied_bytes,
            through_bytes: traffic.through_bytes,
        }
    }
}
