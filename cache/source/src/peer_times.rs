//! Times in which a fetch waits for another node of the cluster, not for its origin.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Intervals kept: a wait of a batch has one or two.
const KEPT: usize = 8;

/// Pause between two requests that count as one interval: the asker takes the bytes of the first.
const PAUSE: Duration = Duration::from_millis(1);

/// Times in which another node was asked for a shard. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PeerTimes(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// Requests under way.
    running: u32,
    /// Start of the interval that lasts, or that may go on.
    since: Option<Instant>,
    /// Intervals that ended, the last one last.
    ended: VecDeque<(Instant, Instant)>,
}

/// A request to another node, until dropped.
#[derive(Debug)]
pub struct AtPeer(PeerTimes);

impl PeerTimes {
    /// Starts a request to another node.
    #[must_use]
    pub fn begin(&self) -> AtPeer {
        let now = Instant::now();
        let mut times = self.times();
        if times.running == 0 {
            let goes_on = |(_, end): &(Instant, Instant)| now.duration_since(*end) < PAUSE;
            let before = times.ended.pop_back_if(|last| goes_on(last));
            times.since = Some(before.map_or(now, |(start, _)| start));
        }
        times.running += 1;
        drop(times);
        AtPeer(self.clone())
    }

    /// Returns the time since `start` in which another node was asked.
    #[must_use]
    pub fn since(&self, start: Instant) -> Duration {
        let times = self.times();
        let now = Instant::now();
        let lasting = times.since.map(|since| (since, now));
        let all = times.ended.iter().copied().chain(lasting);
        all.map(|(from, to)| to.saturating_duration_since(from.max(start))).sum()
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtPeer {
    fn drop(&mut self) {
        let mut times = self.0.times();
        times.running -= 1;
        if times.running > 0 {
            return;
        }
        let Some(since) = times.since.take() else { return };
        if times.ended.len() == KEPT {
            times.ended.pop_front();
        }
        times.ended.push_back((since, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_requests_count_once() {
        let times = PeerTimes::default();
        let start = Instant::now();
        assert_eq!(times.since(start), Duration::ZERO);
        let (first, second) = (times.begin(), times.begin());
        drop(first);
        let lasts = times.since(start);
        assert!(lasts > Duration::ZERO && lasts <= start.elapsed());
        drop(second);
        let over = times.since(start);
        assert!(over >= lasts && over <= start.elapsed());
        assert_eq!(times.since(start), over, "nothing is asked any more");
        assert_eq!(times.since(Instant::now()), Duration::ZERO);
    }

    #[test]
    fn number_of_intervals_is_bounded() {
        let times = PeerTimes::default();
        let start = Instant::now();
        for _ in 0..10 * KEPT {
            drop(times.begin());
            // The next one is no continuation.
            let mut state = times.times();
            for (_, end) in &mut state.ended {
                *end -= 2 * PAUSE;
            }
        }
        assert!(times.times().ended.len() <= KEPT);
        assert!(times.since(start) <= start.elapsed());
    }
}
