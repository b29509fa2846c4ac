//! Number of concurrent requests beyond which a link gains nothing.
//!
//! The limit moves one step at a time, judged by the bytes that arrived. A step up stays only if it
//! brought clearly more, a step down only if it cost nothing; both are retried now and then, since
//! links change. Rounds without waiting requests say nothing about the link and do not count.

use std::time::{Duration, Instant};

/// Requests at once to begin with: a few parts of each shard, which fills 1 Gbit/s at 20 ms.
const FIRST: usize = 16;

/// Never less: one request's round trip must have another's bytes beside it.
const LEAST: usize = 2;

/// A round lasts at least so long, that scheduling and bursts even out,
const ROUND: Duration = Duration::from_millis(250);

/// and so many requests for each place, that each round has whole ones.
const REQUESTS_PER_PLACE: usize = 2;

/// A step up must bring this factor; rates of equal rounds differ by a few percent.
const CLEARLY_MORE: f64 = 1.05;

/// A step down may cost this factor.
const AS_MUCH: f64 = 0.98;

/// Rounds between two trials: a trial that fails costs one round a few percent.
const REST: u32 = 8;

/// Decay of the best rate per round: half of it in some 35 rounds, so that a slower link is not
/// measured by its past.
const FORGET: f64 = 0.98;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    None,
    Up { from: usize },
    Down { from: usize },
}

/// The limit of one endpoint.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    limit: usize,
    most: usize,
    trial: Trial,
    /// True if the next trial is upward, and the rounds until it.
    next_up: bool,
    rest: u32,
    /// Bytes per second of the last round that was no trial, and the best of late.
    last: f64,
    best: f64,
    round: Round,
}

#[derive(Debug)]
struct Round {
    since: Instant,
    bytes: u64,
    requests: usize,
    /// True if requests were waiting at all times.
    full: bool,
}

impl ConcurrencyLimit {
    /// At most `most` requests.
    pub(super) fn new(most: usize, now: Instant) -> Self {
        Self {
            limit: FIRST.min(most),
            most,
            trial: Trial::None,
            next_up: true,
            rest: 0,
            last: 0.0,
            best: 0.0,
            round: Round::new(now),
        }
    }

    /// At most so many requests from now on.
    pub(super) fn set_most(&mut self, most: usize) {
        let was_held_back = self.limit >= self.most;
        self.most = most;
        self.limit = self.limit.min(most);
        if was_held_back && self.limit < most {
            // A configured limit says nothing about the link: the search starts again.
            self.limit = FIRST.min(most).max(self.limit);
        }
        (self.trial, self.rest) = (Trial::None, 0);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Notes a request that ended with `bytes`, and whether somebody waits for its place; the new
    /// limit, if it changes.
    pub(super) fn landed(&mut self, bytes: u64, waited_for: bool, now: Instant) -> Option<usize> {
        self.round.bytes += bytes;
        self.round.requests += 1;
        self.round.full &= waited_for;
        let elapsed = now.duration_since(self.round.since);
        if elapsed < ROUND || self.round.requests < REQUESTS_PER_PLACE * self.limit {
            return None;
        }
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let before = self.limit;
        if round.full {
            self.judge(round.bytes as f64 / elapsed.as_secs_f64());
        } else if let Trial::Up { from } | Trial::Down { from } = self.trial {
            // Nobody wanted what was tried: it stays unknown.
            (self.limit, self.trial) = (from, Trial::None);
        }
        (self.limit != before).then_some(self.limit)
    }

    fn judge(&mut self, rate: f64) {
        self.best = (self.best * FORGET).max(rate);
        match self.trial {
            Trial::Up { from } if rate < self.last * CLEARLY_MORE => self.give_up(from),
            Trial::Down { from } if rate < self.best * AS_MUCH => self.give_up(from),
            Trial::Up { .. } | Trial::Down { .. } => {
                // It is better there: on in the same direction.
                (self.trial, self.last, self.rest) = (Trial::None, rate, 0);
                self.try_next();
            }
            Trial::None => {
                self.last = rate;
                match self.rest {
                    0 => self.try_next(),
                    _ => self.rest -= 1,
                }
            }
        }
    }

    fn give_up(&mut self, from: usize) {
        (self.limit, self.trial, self.rest) = (from, Trial::None, REST);
        self.next_up = !self.next_up;
    }

    fn try_next(&mut self) {
        let from = self.limit;
        let step = (from / 4).max(1);
        let (limit, trial) = match self.next_up {
            true => ((from + step).min(self.most), Trial::Up { from }),
            false => (from.saturating_sub(step).max(LEAST.min(self.most)), Trial::Down { from }),
        };
        if limit == from {
            (self.next_up, self.rest) = (!self.next_up, REST);
        } else {
            (self.limit, self.trial) = (limit, trial);
        }
    }
}

impl Round {
    fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0, requests: 0, full: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = 4 << 20;

    /// A link of `rate` bytes a second, of which one request takes at most `each`.
    struct Link {
        rate: f64,
        each: f64,
        now: Instant,
        noise: u64,
    }

    impl Link {
        /// Runs `rounds` requests for each place, with rates off by up to `spread` either way.
        fn run(&mut self, concurrency: &mut ConcurrencyLimit, requests: usize, spread: f64) {
            for _ in 0..requests {
                let rate = (concurrency.limit() as f64 * self.each).min(self.rate);
                self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let random = (self.noise >> 33) as f64 / f64::from(1_u32 << 31) * 2.0 - 1.0;
                let took = PART as f64 / (rate * (1.0 + spread * random));
                self.now += Duration::from_secs_f64(took);
                concurrency.landed(PART, true, self.now);
            }
        }
    }

    fn link(rate: f64, each: f64) -> (Link, ConcurrencyLimit) {
        let now = Instant::now();
        (Link { rate, each, now, noise: 1 }, ConcurrencyLimit::new(64, now))
    }

    #[test]
    fn fast_link_gets_a_high_limit() {
        let (mut link, mut concurrency) = link(1.25e9, 25e6);
        link.run(&mut concurrency, 20_000, 0.0);
        assert!((45..=64).contains(&concurrency.limit()), "{}", concurrency.limit());
        link.run(&mut concurrency, 20_000, 0.3);
        assert!((40..=64).contains(&concurrency.limit()), "{}", concurrency.limit());
    }

    #[test]
    fn slow_link_keeps_a_low_limit() {
        let (mut link, mut concurrency) = link(1.25e8, 30e6);
        link.run(&mut concurrency, 20_000, 0.0);
        assert!((4..=8).contains(&concurrency.limit()), "{}", concurrency.limit());
        link.run(&mut concurrency, 20_000, 0.3);
        assert!((4..=16).contains(&concurrency.limit()), "{}", concurrency.limit());
    }

    #[test]
    fn limit_rises_with_the_links_rate() {
        let (mut link, mut concurrency) = link(1.25e8, 30e6);
        link.run(&mut concurrency, 10_000, 0.0);
        link.rate = 1.25e9;
        link.run(&mut concurrency, 40_000, 0.0);
        assert!(concurrency.limit() >= 35, "{}", concurrency.limit());
    }

    #[test]
    fn replies_without_waiting_requests_leave_the_limit_unchanged() {
        let now = Instant::now();
        let mut concurrency = ConcurrencyLimit::new(64, now);
        for n in 0..10_000 {
            concurrency.landed(PART, false, now + Duration::from_millis(n));
        }
        assert_eq!(concurrency.limit(), FIRST);
        assert_eq!(ConcurrencyLimit::new(3, now).limit(), 3);
    }
}
