//! Where a trainer's waiting time went: every nanosecond of a wait is booked to one cause.
//!
//! A batch comes with the stretches of time in which stages worked on it. A wait is cut along them:
//! the part of the wait during which the origin was waited for belongs to `origin`, and so on; what
//! no stage covers belongs to `ring_empty` (messages under way, or nothing upstream at all). The
//! parts sum to the wait by construction.

use forebay_wire::message::{Cause, Stage};
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// Waits longer than this are recorded as this: beyond an hour the digits do not matter.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Waits of an epoch, by cause.
#[derive(Debug, Clone)]
pub struct Waits {
    by_cause: [u64; Cause::ALL.len()],
    each: Histogram<u64>,
}

/// [`Waits`] in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WaitReport {
    /// Waits counted.
    pub count: u64,
    /// Their sum.
    pub total_seconds: f64,
    /// The sum again, cause by cause, as (name, seconds); an object in JSON.
    #[serde(serialize_with = "as_object")]
    pub by_cause: Vec<(&'static str, f64)>,
    /// Half of the waits were shorter.
    pub p50_seconds: f64,
    /// 95 % of the waits were shorter.
    pub p95_seconds: f64,
    /// 99 % of the waits were shorter.
    pub p99_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
}

fn as_object<S: Serializer>(
    by_cause: &[(&'static str, f64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(by_cause.iter().copied())
}

impl Default for Waits {
    fn default() -> Self {
        let each = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant, valid bounds");
        Self { by_cause: [0; Cause::ALL.len()], each }
    }
}

impl Waits {
    /// Books the wait from `start_ns` to `end_ns` for a batch worked on in `stages`.
    pub fn book(&mut self, start_ns: u64, end_ns: u64, stages: &[Stage]) {
        let wait = end_ns.saturating_sub(start_ns);
        self.each.saturating_record(wait.max(1));
        for part in cut(start_ns, end_ns, stages) {
            self.by_cause[part.cause as usize] += part.end_ns - part.start_ns;
        }
    }

    /// The waits' nanoseconds, cause by cause, in the order of [`Cause::ALL`].
    pub(crate) fn by_cause(&self) -> [u64; Cause::ALL.len()] {
        self.by_cause
    }

    /// Sum of all waits in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.by_cause.iter().sum()
    }

    /// The same in seconds, with percentiles.
    #[must_use]
    pub fn report(&self) -> WaitReport {
        let seconds = |ns: u64| std::time::Duration::from_nanos(ns).as_secs_f64();
        let at = |quantile: f64| match self.each.is_empty() {
            true => 0.0,
            false => seconds(self.each.value_at_quantile(quantile)),
        };
        WaitReport {
            count: self.each.len(),
            total_seconds: seconds(self.total_ns()),
            by_cause: Cause::ALL
                .iter()
                .map(|cause| (cause.name(), seconds(self.by_cause[*cause as usize])))
                .collect(),
            p50_seconds: at(0.50),
            p95_seconds: at(0.95),
            p99_seconds: at(0.99),
            max_seconds: if self.each.is_empty() { 0.0 } else { seconds(self.each.max()) },
        }
    }
}

/// The time from `start_ns` to `end_ns`, cut along the stages in it: every nanosecond in one part.
pub(crate) fn cut(start_ns: u64, end_ns: u64, stages: &[Stage]) -> Vec<Stage> {
    let mut covered = start_ns;
    let mut stages = stages.to_vec();
    stages.sort_by_key(|stage| stage.start_ns);
    let mut parts = Vec::with_capacity(2 * stages.len() + 1);
    let mut add = |cause, start_ns, end_ns| {
        if end_ns > start_ns {
            parts.push(Stage { cause, start_ns, end_ns });
        }
    };
    for stage in stages {
        // Overlapping stages are cut, so that no nanosecond is booked twice.
        let from = stage.start_ns.max(covered);
        let until = stage.end_ns.min(end_ns);
        if until > from {
            add(Cause::RingEmpty, covered, from);
            add(stage.cause, from, until);
            covered = until;
        }
    }
    add(Cause::RingEmpty, covered, end_ns);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(cause: Cause, start_ns: u64, end_ns: u64) -> Stage {
        Stage { cause, start_ns, end_ns }
    }

    #[test]
    fn the_parts_sum_to_the_wait() {
        let mut waits = Waits::default();
        let stages = [
            stage(Cause::Origin, 50, 150),
            stage(Cause::TierRead, 150, 170),
            stage(Cause::Decode, 160, 180),
            stage(Cause::Decode, 190, 500),
        ];
        waits.book(100, 200, &stages);
        let get = |cause: Cause| waits.by_cause[cause as usize];
        assert_eq!(get(Cause::Origin), 50);
        assert_eq!(get(Cause::TierRead), 20);
        assert_eq!(get(Cause::Decode), 10 + 10);
        assert_eq!(get(Cause::RingEmpty), 10);
        assert_eq!(waits.total_ns(), 100);
    }

    #[test]
    fn work_done_before_the_wait_is_nobodys_fault() {
        let mut waits = Waits::default();
        waits.book(100, 130, &[stage(Cause::Origin, 0, 100), stage(Cause::Decode, 200, 300)]);
        assert_eq!(waits.by_cause[Cause::RingEmpty as usize], 30);
        assert_eq!(waits.total_ns(), 30);
        waits.book(200, 200, &[]);
        assert_eq!((waits.total_ns(), waits.report().count), (30, 2));
    }
}
