//! Bytes read for batches, by source and data set.
//!
//! A shard learns its data set when it is opened, so counting a read is one addition. After a
//! change of rules, open shards count for their old data set.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_histogram::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reads of one data set's shards, on one tier or past all of them.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Bytes read from the tier for batches.
    pub(crate) tier_bytes: AtomicU64,
    /// Bytes read from the tier for moves to another one.
    pub(crate) move_bytes: AtomicU64,
    /// Bytes copied out of frames of a running fill.
    pub(crate) copied_bytes: AtomicU64,
    /// Bytes read from the origin for batches, past the cache.
    pub(crate) through_bytes: AtomicU64,
    /// Waits for samples that had not arrived.
    pub(crate) waits: Arc<Histogram>,
    /// Set by tests: a copy panics from then on.
    pub(crate) no_copies: Arc<AtomicBool>,
}

/// Bytes for batches of one data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatasetTraffic {
    /// Name of the data set; `(rest)` for shards of none.
    pub dataset: String,
    /// Bytes read from the tier.
    pub hit_bytes: u64,
    /// Bytes that were not on the tier: copied from memory while they arrived, or read past the
    /// cache.
    pub miss_bytes: u64,
}

/// Sums over all data sets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) tier_bytes: u64,
    pub(crate) move_bytes: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) through_bytes: u64,
}

/// Reads on one tier, or past all of them.
#[derive(Debug)]
pub(crate) struct Traffics {
    /// By name of data set: all that the configuration has named so far.
    of: Mutex<BTreeMap<String, Arc<Traffic>>>,
    waits: Arc<Histogram>,
    no_copies: Arc<AtomicBool>,
}

impl Traffics {
    /// `waits`: the histogram shared by all tiers.
    pub(crate) fn new(waits: Arc<Histogram>) -> Self {
        Self { of: Mutex::default(), waits, no_copies: Arc::default() }
    }

    /// Counters of a data set.
    pub(crate) fn of(&self, dataset: &str) -> Arc<Traffic> {
        let mut of = self.lock();
        if let Some(traffic) = of.get(dataset) {
            return traffic.clone();
        }
        let traffic = Arc::new(Traffic {
            tier_bytes: AtomicU64::new(0),
            move_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            through_bytes: AtomicU64::new(0),
            waits: self.waits.clone(),
            no_copies: self.no_copies.clone(),
        });
        of.insert(dataset.to_owned(), traffic.clone());
        traffic
    }

    /// Counters of each data set with opened shards.
    pub(crate) fn report(&self) -> Vec<DatasetTraffic> {
        let told = |(dataset, traffic): (&String, &Arc<Traffic>)| {
            let sums = traffic.read();
            let miss_bytes = sums.copied_bytes + sums.through_bytes;
            DatasetTraffic { dataset: dataset.clone(), hit_bytes: sums.tier_bytes, miss_bytes }
        };
        self.lock().iter().map(told).collect()
    }

    /// Sums over all data sets.
    pub(crate) fn sums(&self) -> Sums {
        let add = |sums: Sums, more: Sums| Sums {
            tier_bytes: sums.tier_bytes + more.tier_bytes,
            move_bytes: sums.move_bytes + more.move_bytes,
            copied_bytes: sums.copied_bytes + more.copied_bytes,
            through_bytes: sums.through_bytes + more.through_bytes,
        };
        self.lock().values().map(|traffic| traffic.read()).fold(Sums::default(), add)
    }

    /// Makes every copy out of a frame panic from now on.
    pub(crate) fn forbid_copies(&self) {
        self.no_copies.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Traffic>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    fn read(&self) -> Sums {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Sums {
            tier_bytes: read(&self.tier_bytes),
            move_bytes: read(&self.move_bytes),
            copied_bytes: read(&self.copied_bytes),
            through_bytes: read(&self.through_bytes),
        }
    }
}
