//! Slowest decodes of a batch: enough to name the samples that a trainer waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::column::SlowSample;

/// Slowest decodes kept of a batch: those of one screen.
const KEPT: usize = 8;

/// The slowest decodes so far, noted by all threads.
#[derive(Debug, Default)]
pub(super) struct Slowest {
    kept: Mutex<Vec<SlowSample>>,
    /// Shortest time kept once there are as many as are kept: others are dropped without the lock.
    floor_ns: AtomicU64,
}

impl Slowest {
    /// Notes how long a field of record `index` took.
    pub(super) fn note(&self, index: usize, field: &str, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if ns <= self.floor_ns.load(Ordering::Relaxed) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.partition_point(|other| other.ns >= ns);
        kept.insert(at, SlowSample { index, field: field.to_owned(), ns });
        kept.truncate(KEPT);
        if kept.len() == KEPT {
            self.floor_ns.store(kept[KEPT - 1].ns, Ordering::Relaxed);
        }
    }

    /// Returns them, the slowest first.
    pub(super) fn into_list(self) -> Vec<SlowSample> {
        self.kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_are_kept_in_order() {
        let slowest = Slowest::default();
        for number in 0..100_usize {
            // Each number below 100 once, in an order that is no order.
            let ms = number * 37 % 100;
            slowest.note(ms, "image", Duration::from_millis(ms as u64));
        }
        let found: Vec<_> = slowest.into_list().iter().map(|slow| slow.index).collect();
        assert_eq!(found, (92..100).rev().collect::<Vec<_>>());
    }
}
