//! What reads for batches come to, by where they were served from and by data set.
//!
//! Its rule: a shard is told whose it is when it is opened, so that to count a read is to add to a number. Where rules
//! change, what is open counts for the data set that it was opened in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_histogram::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What reads of shards of one data set come to, on one tier or past all of them.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Read from the tier for batches.
    pub(crate) tier_bytes: AtomicU64,
    /// Read from the tier to be moved to another one.
    pub(crate) move_bytes: AtomicU64,
    /// Copied out of frames of a running fill.
    pub(crate) copied_bytes: AtomicU64,
    /// Read from the origin for a batch, past the cache.
    pub(crate) through_bytes: AtomicU64,
    /// How long samples were waited for that had not arrived.
    pub(crate) waits: Arc<Histogram>,
    /// Set by a test: from now on a copy is a bug.
    pub(crate) no_copies: Arc<AtomicBool>,
}

/// Bytes for batches of one data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatasetTraffic {
    /// The data set; `(rest)` is what belongs to none.
    pub dataset: String,
    /// Bytes read from the tier.
    pub hit_bytes: u64,
    /// Bytes that it did not have: taken from memory while they arrived, or read past the cache.
    pub miss_bytes: u64,
}

/// The same of all data sets together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) tier_bytes: u64,
    pub(crate) move_bytes: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) through_bytes: u64,
}

/// What reads on one tier come to, or those past all of them.
#[derive(Debug)]
pub(crate) struct Traffics {
    /// By the names of data sets: as many as the configuration had so far.
    of: Mutex<BTreeMap<String, Arc<Traffic>>>,
    waits: Arc<Histogram>,
    no_copies: Arc<AtomicBool>,
}

impl Traffics {
    /// `waits`: where those of all tiers are counted.
    pub(crate) fn new(waits: Arc<Histogram>) -> Self {
        Self { of: Mutex::default(), waits, no_copies: Arc::default() }
    }

    /// A data set's.
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

    /// Each data set's of which something was opened.
    pub(crate) fn report(&self) -> Vec<DatasetTraffic> {
        let told = |(dataset, traffic): (&String, &Arc<Traffic>)| {
            let sums = traffic.read();
            let miss_bytes = sums.copied_bytes + sums.through_bytes;
            DatasetTraffic { dataset: dataset.clone(), hit_bytes: sums.tier_bytes, miss_bytes }
        };
        self.lock().iter().map(told).collect()
    }

    /// All together.
    pub(crate) fn sums(&self) -> Sums {
        let add = |sums: Sums, more: Sums| Sums {
            tier_bytes: sums.tier_bytes + more.tier_bytes,
            move_bytes: sums.move_bytes + more.move_bytes,
            copied_bytes: sums.copied_bytes + more.copied_bytes,
            through_bytes: sums.through_bytes + more.through_bytes,
        };
        self.lock().values().map(|traffic| traffic.read()).fold(Sums::default(), add)
    }

    /// From now on a copy out of a frame is a bug.
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
