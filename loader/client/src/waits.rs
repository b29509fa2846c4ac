//! Waiting time of a trainer by cause: every nanosecond of a wait has one cause.
//!
//! A batch comes with the time intervals of its stages. A wait is split along them: the part during
//! which the origin was waited for belongs to `origin`, and so on. The rest is split along the
//! intervals in which a device still worked on earlier batches, which held their slots. Time in
//! which nothing was busy belongs to `ring_empty` (messages in transit, or no slot). The parts sum
//! to the wait by construction.
//!
//! A batch is in one place at a time, so its stages follow one another. If two overlap all the
//! same, as those of two shards that are waited for at once, the one that began first has the time
//! until it ends: had it been shorter, the other would have been the reason. So no nanosecond is
//! counted twice.

use std::ops::Range;
use std::time::Duration;

use forebay_histogram::Times;
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
    times: Times,
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
        Self { by_cause: [0; Cause::ALL.len()], each, times: Times::default() }
    }
}

impl Waits {
    /// Books a wait for a batch worked on in `stages`, behind others that a device worked on during
    /// `device`; to what.
    pub fn book(
        &mut self,
        wait: Range<u64>,
        stages: &[Stage],
        device: &[Range<u64>],
    ) -> Vec<Stage> {
        let wait_ns = wait.end.saturating_sub(wait.start);
        self.each.saturating_record(wait_ns.max(1));
        self.times.took(Duration::from_nanos(wait_ns));
        let parts = cut(wait, stages, device);
        for part in &parts {
            self.by_cause[part.cause as usize] += part.end_ns - part.start_ns;
        }
        parts
    }

    /// The waits' nanoseconds, cause by cause, in the order of [`Cause::ALL`].
    pub(crate) fn by_cause(&self) -> [u64; Cause::ALL.len()] {
        self.by_cause
    }

    /// Returns the waits by bucket.
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Sum of all waits in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.by_cause.iter().sum()
    }

    /// The same in seconds, with percentiles.
    #[must_use]
    pub fn report(&self) -> WaitReport {
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
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

/// A wait for a batch worked on in `stages`, behind others that a device worked on during `device`,
/// cut along them: every nanosecond is in one part.
pub(crate) fn cut(wait: Range<u64>, stages: &[Stage], device: &[Range<u64>]) -> Vec<Stage> {
    let busy = device.iter().map(|busy| Stage {
        cause: Cause::H2d,
        start_ns: busy.start,
        end_ns: busy.end,
    });
    let (mut parts, gaps) = along(wait, stages.to_vec());
    for gap in gaps {
        let (more, idle) = along(gap, busy.clone().collect());
        parts.extend(more);
        parts.extend(idle.into_iter().map(|Range { start, end }| Stage {
            cause: Cause::RingEmpty,
            start_ns: start,
            end_ns: end,
        }));
    }
    parts.sort_by_key(|part| part.start_ns);
    parts
}

/// Returns the parts of `wait` that `stages` cover, and the rest. Of two overlapping stages the
/// first one has the time.
fn along(wait: Range<u64>, mut stages: Vec<Stage>) -> (Vec<Stage>, Vec<Range<u64>>) {
    stages.sort_by_key(|stage| stage.start_ns);
    let (mut parts, mut gaps, mut covered) = (Vec::new(), Vec::new(), wait.start);
    for Stage { cause, start_ns, end_ns } in stages {
        let (from, until) = (start_ns.max(covered), end_ns.min(wait.end));
        if until > from {
            parts.push(Stage { cause, start_ns: from, end_ns: until });
            gaps.push(covered..from);
            covered = until;
        }
    }
    gaps.push(covered..wait.end.max(covered));
    gaps.retain(|gap| gap.end > gap.start);
    (parts, gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(cause: Cause, start_ns: u64, end_ns: u64) -> Stage {
        Stage { cause, start_ns, end_ns }
    }

    #[test]
    fn causes_sum_to_the_wait() {
        let mut waits = Waits::default();
        let stages = [
            stage(Cause::Origin, 50, 150),
            stage(Cause::TierRead, 150, 170),
            stage(Cause::Decode, 160, 180),
            stage(Cause::Decode, 190, 500),
        ];
        waits.book(100..200, &stages, &[]);
        let get = |cause: Cause| waits.by_cause[cause as usize];
        assert_eq!(get(Cause::Origin), 50);
        assert_eq!(get(Cause::TierRead), 20);
        assert_eq!(get(Cause::Decode), 10 + 10);
        assert_eq!(get(Cause::RingEmpty), 10);
        assert_eq!(waits.total_ns(), 100);
    }

    #[test]
    fn work_before_the_wait_is_charged_to_ring_empty() {
        let mut waits = Waits::default();
        waits.book(100..130, &[stage(Cause::Origin, 0, 100), stage(Cause::Decode, 200, 300)], &[]);
        assert_eq!(waits.by_cause[Cause::RingEmpty as usize], 30);
        assert_eq!(waits.total_ns(), 30);
        waits.book(200..200, &[], &[]);
        assert_eq!((waits.total_ns(), waits.report().count), (30, 2));
    }

    /// A device busy with earlier batches is an upstream stage, too; the batch's own stages go
    /// first. A device that is still busy has no end.
    #[test]
    fn wait_behind_a_busy_device_is_charged_to_h2d() {
        let mut waits = Waits::default();
        let own = [stage(Cause::TierRead, 140, 150), stage(Cause::Decode, 155, 160)];
        let device = [0..120, 110..145, 158..u64::MAX];
        waits.book(100..200, &own, &device);
        let get = |cause: Cause| waits.by_cause[cause as usize];
        assert_eq!(get(Cause::TierRead), 10);
        assert_eq!(get(Cause::Decode), 5);
        assert_eq!(get(Cause::H2d), 40 + 40);
        assert_eq!(get(Cause::RingEmpty), 5);
        assert_eq!(waits.total_ns(), 100);
    }
}
