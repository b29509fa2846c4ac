//! Circuit breaker of an endpoint, or of one folder of it.
//!
//! After [`BREAK_AFTER`] failures in a row only one caller probes, now and then; the result counts
//! for all. An endpoint fails if it cannot be connected to, a folder if the store says that it
//! cannot now. What fails for one object alone opens no breaker: others there may be well.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use forebay_error::Error;

/// Failures in a row that are no accident: more than the parts of one shard under way, which one
/// reset load balancer may break all at once.
const BREAK_AFTER: u32 = 12;

/// First pause without requests,
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// and at most: an endpoint that comes back is in use again within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// State from failures.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    open: Option<Open>,
    /// The last failure.
    last: Option<Error>,
    /// The object that failed first, and true if another did since.
    objects: Option<(u64, bool)>,
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
        Self { failures: 0, open: None, last: None, objects: None }
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

    /// It answered; true if it was taken to be down.
    pub(super) fn answered(&mut self) -> bool {
        let was_open = self.open.is_some();
        *self = Self::new();
        was_open
    }

    /// It failed for `object`, or for any if that is `None`; true if whoever waits must look again.
    pub(super) fn failed(
        &mut self,
        object: Option<u64>,
        error: &Error,
        probe: bool,
        now: Instant,
    ) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.last = Some(error.clone());
        let others = object.is_none_or(|object| {
            let (first, others) = self.objects.get_or_insert((object, false));
            *others |= *first != object;
            *others
        });
        match &mut self.open {
            Some(open) if probe => {
                open.probing = false;
                open.until = now + open.pauses.next().unwrap_or(LONGEST_PAUSE);
                true
            }
            None if self.failures >= BREAK_AFTER && others => {
                let mut pauses = ExponentialBuilder::default()
                    .with_min_delay(FIRST_PAUSE)
                    .with_max_delay(LONGEST_PAUSE)
                    .with_jitter()
                    .without_max_times()
                    .build();
                let until = now + pauses.next().unwrap_or(LONGEST_PAUSE);
                self.open = Some(Open { until, probing: false, pauses });
                true
            }
            // Asked before it opened.
            _ => false,
        }
    }

    /// Returns the last failure.
    pub(super) fn last(&self) -> Option<&Error> {
        self.last.as_ref()
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
    use forebay_error::ErrorKind;

    /// A failure that concerns every object.
    fn fail(breaker: &mut Breaker, probe: bool, now: Instant) -> bool {
        breaker.failed(None, &Error::new(ErrorKind::Unavailable, "refused"), probe, now)
    }

    #[test]
    fn breaker_opens_after_consecutive_failures_and_a_probe_closes() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..3 * BREAK_AFTER {
            fail(&mut breaker, false, now);
            breaker.answered();
        }
        assert_eq!(breaker.may(now), May::Ask);
        for _ in 1..BREAK_AFTER {
            assert!(!fail(&mut breaker, false, now));
        }
        assert!(fail(&mut breaker, false, now));
        let May::Wait { until: Some(until), failures: BREAK_AFTER } = breaker.may(now) else {
            panic!("it is open");
        };
        assert_eq!(breaker.may(until), May::Probe);
        assert!(matches!(breaker.may(until), May::Wait { until: None, .. }));
        assert!(fail(&mut breaker, true, until));
        let May::Wait { until: Some(later), .. } = breaker.may(until) else { panic!("still") };
        assert!(later > until);
        assert_eq!(breaker.may(later), May::Probe);
        assert!(breaker.answered());
        assert_eq!(breaker.may(later), May::Ask);
    }

    #[test]
    fn pauses_are_bounded_and_a_lost_probe_is_replaced() {
        let (mut breaker, mut now) = (Breaker::new(), Instant::now());
        for _ in 0..BREAK_AFTER {
            fail(&mut breaker, false, now);
        }
        for _ in 0..50 {
            let May::Wait { until: Some(until), .. } = breaker.may(now) else { panic!("open") };
            // Jitter adds up to as much again.
            assert!(until - now <= 2 * LONGEST_PAUSE, "{:?}", until - now);
            assert_eq!(breaker.may(until), May::Probe);
            breaker.gave_up();
            assert_eq!(breaker.may(until), May::Probe);
            fail(&mut breaker, true, until);
            now = until;
        }
    }

    #[test]
    fn one_object_alone_opens_no_breaker() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        let busy = Error::new(ErrorKind::Unavailable, "busy");
        for _ in 0..3 * BREAK_AFTER {
            assert!(!breaker.failed(Some(1), &busy, false, now));
        }
        assert_eq!(breaker.may(now), May::Ask);
        assert!(breaker.failed(Some(2), &busy, false, now), "another one fails as well");
        assert_eq!(breaker.last(), Some(&busy));
    }
}
