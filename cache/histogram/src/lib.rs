//! Durations: counts by bucket, taken where events happen.
//!
//! Counting costs two additions to memory, however many threads count. There is no lock, no
//! allocation and no failure, so that a read of a disk may be counted as well as a fetch of
//! minutes. A reader takes a copy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;

/// Upper ends of the buckets in nanoseconds: from what the page cache answers to what a trainer
/// gives up after. Steps of 2 to 2.5 tell a device that became half as fast; they are the same for
/// all, so that what a reader waited and what the device took can be laid over each other.
const BOUNDS: [u64; 20] = [
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    2_500 * US,
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    S,
    2_500 * MS,
    5 * S,
    10 * S,
    25 * S,
    60 * S,
    300 * S,
];

/// Those, and one for what takes longer.
const BUCKETS: usize = BOUNDS.len() + 1;

/// Times, counted as they come.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts what took so long.
    pub fn took(&self, time: Duration) {
        let ns = nanoseconds(time);
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts what began then and ends now.
    pub fn since(&self, began: Instant) {
        self.took(began.elapsed());
    }

    /// Returns the counts so far. A concurrent event may be in the counts and not yet in the sum.
    #[must_use]
    pub fn read(&self) -> Times {
        Times {
            counts: self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    // Half a millennium is long enough.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(ns: u64) -> usize {
    BOUNDS.partition_point(|bound| *bound < ns)
}

/// Times that were counted. What another process says they are may be anything: they are added up
/// without a wrap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Times {
    /// Counts what took so long, where nobody else counts.
    pub fn took(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Returns the number of events.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns their sum in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.sum_ns as f64 / S as f64
    }

    /// The upper end of each bucket in seconds, the last without end, and how many are in it and in
    /// none before it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let ends = BOUNDS.iter().map(|bound| *bound as f64 / S as f64);
        ends.chain([f64::INFINITY]).zip(self.counts)
    }

    /// These and those.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_are_inclusive_upper_limits() {
        let histogram = Histogram::default();
        for time in [0, 50 * US, 50 * US + 1, S, 300 * S, 300 * S + 1] {
            histogram.took(Duration::from_nanos(time));
        }
        let times = histogram.read();
        let filled: Vec<_> = times.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(50e-6, 2), (100e-6, 1), (1.0, 1), (300.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(times.count(), 6);
        assert!((times.seconds() - 601.000_100_002).abs() < 1e-6, "{}", times.seconds());
        let mut alone = Times::default();
        for time in [0, 50 * US, 50 * US + 1, S, 300 * S, 300 * S + 1] {
            alone.took(Duration::from_nanos(time));
        }
        assert_eq!(alone, times);
    }

    #[test]
    fn overflowing_counts_saturate() {
        let mut times = Times { counts: [u64::MAX; BUCKETS], sum_ns: u64::MAX };
        times.add(&times.clone());
        assert_eq!(times.count(), u64::MAX);
    }

    #[test]
    fn concurrent_threads_lose_no_count() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|n| histogram.took(Duration::from_micros(n))));
            }
        });
        let mut times = histogram.read();
        assert_eq!(times.count(), 40_000);
        assert!((times.seconds() - 4.0 * 49.995).abs() < 1e-6, "{}", times.seconds());
        times.add(&histogram.read());
        assert_eq!(times.count(), 80_000);
    }
}
