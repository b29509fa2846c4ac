//! Counters of a job, over all loaders that it had one after the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_wire::message::{Bytes, Decoded, Progress, SlowSample};
use serde::Serialize;

use crate::waits::{WaitReport, Waits};

/// Counters of a loader since it was opened.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Stats {
    /// Batches handed out.
    pub batches: u64,
    /// Samples handed out.
    pub samples: u64,
    /// Samples that could not be decoded or read.
    pub bad_samples: u64,
    /// Payload bytes read from a tier.
    pub tier_bytes: u64,
    /// Payload bytes copied from a shard still arriving.
    pub origin_bytes: u64,
    /// Batches copied out of the slab because the consumer holds too many views.
    pub private_copies: u64,
    /// Times a lost daemon was replaced.
    pub reconnects: u64,
    /// The daemon's process id, while one is connected.
    pub daemon_pid: Option<u32>,
    /// Rows of images and arrays by who made them, and of those by why.
    pub decoders: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Samples that took longest to decode or in user code, the slowest first.
    pub slowest: Vec<SlowSample>,
    /// Waits of the consumer.
    pub wait: WaitReport,
}

/// Counters of a job's loaders, one after the other.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

#[derive(Default)]
pub(super) struct Counts {
    /// Copies and reconnects of closed loaders.
    pub(super) stats: Stats,
    pub(super) waits: Waits,
    /// Progress before the last reset.
    pub(super) before: Progress,
}

impl Counts {
    /// All that was taken and waited for; of rows those since the counts were last forgotten.
    pub(super) fn progress(&self) -> Progress {
        let Self { stats, waits, before } = self;
        let (mut waited_ns, more) = (before.waited_ns, waits.by_cause());
        waited_ns.iter_mut().zip(more).for_each(|(ns, more)| *ns += more);
        let mut each = before.waits.clone();
        each.add(waits.times());
        let ways = stats.decoders.iter().flat_map(|(by, reasons)| {
            reasons.iter().map(move |(why, rows)| ((*by).to_owned(), (*why).to_owned(), *rows))
        });
        Progress {
            batches: before.batches + stats.batches,
            samples: before.samples + stats.samples,
            bytes: Bytes {
                tier: before.bytes.tier + stats.tier_bytes,
                origin: before.bytes.origin + stats.origin_bytes,
            },
            waited_ns,
            waiting_ns: 0,
            decoded: ways.map(|(by, why, rows)| Decoded { by, why, rows }).collect(),
            waits: each,
            slowest: stats.slowest.clone(),
        }
    }
}

impl Tally {
    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
