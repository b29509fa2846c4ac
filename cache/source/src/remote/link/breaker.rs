//! Circuit breaker of an endpoint.
//!
//! After [`BREAK_AFTER`] failures without an answer only one caller probes, now and then; the
//! result counts for all. An endpoint that answers with an error is not down.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Failures in a row that are no accident: more than the parts of one shard under way, which one
/// reset load balancer may break all at once.
const BREAK_AFTER: u32 = 12;

/// First pause without requests,
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// and at most: an endpoint that comes back is in use again within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// State from an endpoint's failures.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    open: Option<Open>,
    /// Times it opened.
    pub(super) opened: u64,
}

#[derive(Debug)]
struct Open {
    until: Instant,
    probing: bool,
    pauses: ExponentialBackoff,
}

/// Permission to send a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    /// As usual.
    Ask,
    /// Alone, for all.
    Probe,
    /// Not before then, or before the probe has its answer.
    Wait { until: Option<Instant>, failures: u32 },
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self { failures: 0, open: None, opened: 0 }
    }

    pub(super) fn may(&mut self, now: Instant) -> May {
        let failures = self.failures;
        match &mut self.open {
            None => May::Ask,
            Some(open) if open.probing => May::Wait { until: None, failures },
            Some(open) if now < open.until => May::Wait { until: Some(open.until), failures },
            Some(open) => {
                open.probing = true;
                May::Probe
            }
        }
    }

    /// The endpoint answered; true if it was taken to be down.
    pub(super) fn answered(&mut self) -> bool {
        self.failures = 0;
        self.open.take().is_some()
    }

    /// It did not; true if whoever waits must look again.
    pub(super) fn failed(&mut self, probe: bool, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        match &mut self.open {
            Some(open) if probe => {
                open.probing = false;
                open.until = now + open.pauses.next().unwrap_or(LONGEST_PAUSE);
                true
            }
            None if self.failures >= BREAK_AFTER => {
                let mut pauses = ExponentialBuilder::default()
                    .with_min_delay(FIRST_PAUSE)
                    .with_max_delay(LONGEST_PAUSE)
                    .with_jitter()
                    .without_max_times()
                    .build();
                let until = now + pauses.next().unwrap_or(LONGEST_PAUSE);
                self.open = Some(Open { until, probing: false, pauses });
                self.opened += 1;
                true
            }
            // Asked before it opened.
            _ => false,
        }
    }

    /// The prober left without an answer.
    pub(super) fn gave_up(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = false;
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaker_opens_after_consecutive_failures_and_a_probe_closes() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..3 * BREAK_AFTER {
            breaker.failed(false, now);
            breaker.answered();
        }
        assert_eq!(breaker.may(now), May::Ask);
        for _ in 1..BREAK_AFTER {
            assert!(!breaker.failed(false, now));
        }
        assert!(breaker.failed(false, now));
        let May::Wait { until: Some(until), failures: BREAK_AFTER } = breaker.may(now) else {
            panic!("it is open");
        };
        assert_eq!(breaker.may(until), May::Probe);
        assert!(matches!(breaker.may(until), May::Wait { until: None, .. }));
        assert!(breaker.failed(true, until));
        let May::Wait { until: Some(later), .. } = breaker.may(until) else { panic!("still") };
        assert!(later > until);
        assert_eq!(breaker.may(later), May::Probe);
        assert!(breaker.answered());
        assert_eq!(breaker.may(later), May::Ask);
        assert_eq!(breaker.opened, 1);
    }

    #[test]
    fn pauses_are_bounded_and_a_lost_probe_is_replaced() {
        let (mut breaker, mut now) = (Breaker::new(), Instant::now());
        for _ in 0..BREAK_AFTER {
            breaker.failed(false, now);
        }
        for _ in 0..50 {
            let May::Wait { until: Some(until), .. } = breaker.may(now) else { panic!("open") };
            // Jitter adds up to as much again.
            assert!(until - now <= 2 * LONGEST_PAUSE, "{:?}", until - now);
            assert_eq!(breaker.may(until), May::Probe);
            breaker.gave_up();
            assert_eq!(breaker.may(until), May::Probe);
            breaker.failed(true, until);
            now = until;
        }
    }
}
