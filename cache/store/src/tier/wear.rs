//! Daily write allowance, for a drive's endurance.
//!
//! The allowance refills evenly over the day, so that a burst in the morning leaves some for
//! the afternoon. Shards that somebody waits for are written in any case and may overdraw it; all
//! others are not.

use std::time::{Duration, SystemTime};

/// Time in which the whole allowance refills.
const DAY: Duration = Duration::from_secs(86_400);

/// Daily allowance, and the rest of it; negative if overdrawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wear {
    per_day: f64,
    left: f64,
    at: SystemTime,
}

impl Wear {
    /// Creates a full allowance of `per_day` bytes.
    pub(crate) fn new(per_day: u64, now: SystemTime) -> Self {
        Self { per_day: per_day as f64, left: per_day as f64, at: now }
    }

    /// Resumes from the state of the last daemon: `left` bytes at the time `at`.
    pub(crate) fn resume(&mut self, left: i64, at: SystemTime, now: SystemTime) {
        (self.left, self.at) = ((left as f64).min(self.per_day), at.min(now));
        self.refill(now);
    }

    fn refill(&mut self, now: SystemTime) {
        // A clock that was set back adds nothing.
        let passed = now.duration_since(self.at).unwrap_or_default();
        let back = self.per_day * passed.as_secs_f64() / DAY.as_secs_f64();
        self.left = (self.left + back).min(self.per_day);
        self.at = now;
    }

    /// Returns true if `bytes` nobody waits for may be written.
    pub(crate) fn allows(&mut self, bytes: u64, now: SystemTime) -> bool {
        self.refill(now);
        bytes as f64 <= self.left
    }

    /// Takes written bytes from the allowance.
    pub(crate) fn spend(&mut self, bytes: u64, now: SystemTime) {
        self.refill(now);
        self.left -= bytes as f64;
    }

    /// Returns bytes that were not written.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.left = (self.left + bytes as f64).min(self.per_day);
    }

    /// Bytes left; negative if overdrawn.
    pub(crate) fn left(&mut self, now: SystemTime) -> i64 {
        self.refill(now);
        self.left as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_refills_evenly_up_to_a_day() {
        let start = SystemTime::UNIX_EPOCH + DAY;
        let hours = |hours: u64| start + Duration::from_secs(3600 * hours);
        let mut wear = Wear::new(2400, start);
        assert!(wear.allows(2400, start) && !wear.allows(2401, start));
        wear.spend(2400, start);
        assert!(!wear.allows(1, start));
        assert!(wear.allows(100, hours(1)) && !wear.allows(110, hours(1)));
        wear.spend(200, hours(1));
        assert_eq!(wear.left(hours(1)), -100, "overdrawn");
        assert_eq!(wear.left(start), -100, "a clock set back gives nothing");
        assert_eq!(wear.left(hours(100)), 2400);
    }

    #[test]
    fn allowance_resumes_after_restart() {
        let start = SystemTime::UNIX_EPOCH + DAY;
        let mut wear = Wear::new(2400, start);
        wear.resume(-1200, start, start + DAY / 2);
        assert_eq!(wear.left(start + DAY / 2), 0);
        wear.resume(9999, start + 9 * DAY, start);
        assert_eq!(wear.left(start), 2400, "a state from the future, or of a larger allowance");
    }
}
