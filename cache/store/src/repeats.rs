//! Log lines that would repeat for each shard or attempt: one a minute, with a count.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two lines about the same thing.
const INTERVAL: Duration = Duration::from_secs(60);

/// Events that share a log line.
#[derive(Debug, Default)]
pub struct Repeats(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    /// Time of the last line.
    last: Option<Instant>,
    events: u64,
}

impl Repeats {
    /// Notes an event. Returns the number of events to log, if a line is due.
    #[must_use]
    pub fn note(&self, now: Instant) -> Option<u64> {
        let mut unlogged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unlogged.events += 1;
        unlogged.take(now)
    }

    /// Returns the number of events that wait for a line, if one is due.
    pub(crate) fn due(&self, now: Instant) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now)
    }
}

impl Unlogged {
    fn take(&mut self, now: Instant) -> Option<u64> {
        let is_early = self.last.is_some_and(|last| now.duration_since(last) < INTERVAL);
        if is_early || self.events == 0 {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_counts_all_events() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repeats.due(start), None);
        assert_eq!(repeats.note(start), Some(1), "the first is logged at once");
        for seconds in 0..59 {
            assert_eq!(repeats.note(after(seconds)), None);
        }
        assert_eq!(repeats.due(after(59)), None);
        assert_eq!(repeats.due(after(60)), Some(59));
        assert_eq!(repeats.due(after(200)), None);
        assert_eq!(repeats.note(after(200)), Some(1));
    }
}
