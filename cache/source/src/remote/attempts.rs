//! Number and duration of retries.
//!
//! A request without progress fails after [`crate::Limits::retries`] attempts or
//! [`crate::Limits::retry_time`], whichever is first; progress resets the count. A pause follows
//! the store's `Retry-After` where it gave one, and never exceeds the time left.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use forebay_error::{Error, Result};

use super::link::{Blame, Link};
use crate::Limits;

/// The first pause; each further one is twice as long, and jitter adds up to as much again, so that
/// the parts that one fault broke do not come back at one moment.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts: a store that comes back is used again within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Bytes that count as progress: a store that sends less before each disconnect would keep a part
/// in flight for minutes.
const PROGRESS: u64 = 1 << 20;

/// Reason an attempt failed, and the prospect of another.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    pub(super) again: Again,
    /// Party that the failure is counted against, if it is no answer.
    pub(super) blame: Blame,
    /// Status of the reply, if one came.
    pub(super) status: Option<u16>,
}

/// Prospect of another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// The same.
    Never,
    /// Something better, after this pause if the store named one.
    Later(Option<Duration>),
    /// Something better with new credentials.
    Renewed,
    /// The same most likely, unless one reply was garbled on its way: once more, at once.
    Once,
}

impl Failed {
    pub(super) fn for_good(error: Error) -> Self {
        Self { error, again: Again::Never, blame: Blame::Object, status: None }
    }

    pub(super) fn for_now(error: Error) -> Self {
        Self { again: Again::Later(None), ..Self::for_good(error) }
    }
}

/// The attempts at one thing.
#[derive(Debug)]
pub(super) struct Attempts {
    limits: Limits,
    pauses: Option<ExponentialBackoff>,
    since: Instant,
    got: u64,
    renewed: bool,
    repeated: bool,
}

impl Attempts {
    pub(super) fn new(limits: &Limits) -> Self {
        let limits = limits.clone();
        Self {
            limits,
            pauses: None,
            since: Instant::now(),
            got: 0,
            renewed: false,
            repeated: false,
        }
    }

    /// Returns the time to give up.
    pub(super) fn deadline(&self) -> Instant {
        let since = if self.pauses.is_some() { self.since } else { Instant::now() };
        since + self.limits.retry_time
    }

    /// Notes bytes that came.
    pub(super) fn got(&mut self, bytes: usize) {
        self.got += bytes as u64;
        if self.got >= PROGRESS {
            (self.pauses, self.got) = (None, 0);
            (self.renewed, self.repeated) = (false, false);
        }
    }

    /// Waits until the next attempt at `link`, which counts it.
    ///
    /// # Errors
    /// The failure, if there is no further attempt.
    #[expect(clippy::disallowed_methods, reason = "a pause has no other condition than its end")]
    pub(super) async fn again(&mut self, failed: Failed, link: &Link) -> Result<()> {
        let error = failed.error.clone();
        let pause = self.next(failed)?;
        link.retried(&error);
        tracing::debug!(?pause, %error, "trying again");
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Returns the pause before the next attempt.
    fn next(&mut self, failed: Failed) -> Result<Duration> {
        let Failed { error, again, .. } = failed;
        let asked = match again {
            Again::Never => return Err(error),
            // Once: credentials that are refused when they are new are refused.
            Again::Renewed if self.renewed => return Err(error),
            Again::Renewed => {
                self.renewed = true;
                return Ok(Duration::ZERO);
            }
            Again::Once if self.repeated => return Err(error),
            Again::Once => {
                self.repeated = true;
                return Ok(Duration::ZERO);
            }
            Again::Later(asked) => asked,
        };
        self.got = 0;
        if self.pauses.is_none() {
            self.since = Instant::now();
        }
        let pauses = self.pauses.get_or_insert_with(|| {
            ExponentialBuilder::default()
                .with_min_delay(FIRST_PAUSE)
                .with_max_delay(LONGEST_PAUSE)
                .with_max_times(self.limits.retries)
                .with_jitter()
                .build()
        });
        let Some(pause) = pauses.next() else { return Err(error) };
        let pause = asked.map_or(pause, |asked| asked.max(pause));
        match self.since.elapsed().saturating_add(pause) > self.limits.retry_time {
            true => Err(match asked {
                Some(asked) => error.at("retry_after_seconds", asked.as_secs()),
                None => error,
            }),
            false => Ok(pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_error::ErrorKind;

    fn error() -> Error {
        Error::new(ErrorKind::Unavailable, "busy")
    }

    fn attempts(retries: usize) -> Attempts {
        Attempts::new(&Limits { retries, ..Limits::default() })
    }

    #[test]
    fn pauses_double_until_retries_end() {
        let mut attempts = attempts(4);
        let mut pauses = Vec::new();
        while let Ok(pause) = attempts.next(Failed::for_now(error())) {
            pauses.push(pause);
        }
        assert_eq!(pauses.len(), 4);
        for (n, pause) in pauses.iter().enumerate() {
            let base = FIRST_PAUSE * 2_u32.pow(n as u32);
            assert!((base..=2 * base).contains(pause), "{pauses:?}");
        }
    }

    #[test]
    fn retry_after_is_obeyed_within_the_time_limit() {
        let later = |seconds| {
            let again = Again::Later(Some(Duration::from_secs(seconds)));
            Failed { again, ..Failed::for_good(error()) }
        };
        assert_eq!(attempts(4).next(later(3)).unwrap(), Duration::from_secs(3));
        assert!(attempts(4).next(later(0)).unwrap() >= FIRST_PAUSE);
        let given_up = attempts(4).next(later(3600)).unwrap_err();
        assert_eq!(given_up.place("retry_after_seconds"), Some("3600"));
    }

    #[test]
    fn enough_progress_resets_the_retry_count() {
        let mut attempts = attempts(2);
        for _ in 0..10 {
            attempts.next(Failed::for_now(error())).unwrap();
            attempts.next(Failed::for_now(error())).unwrap();
            attempts.got(PROGRESS as usize);
        }
        for _ in 0..2 {
            attempts.next(Failed::for_now(error())).unwrap();
            attempts.got(PROGRESS as usize / 2);
        }
        assert!(attempts.next(Failed::for_now(error())).is_err());
    }

    #[test]
    fn renewed_credentials_are_tried_once() {
        let failed = |again| Failed { again, ..Failed::for_good(error()) };
        let renewed = || failed(Again::Renewed);
        let mut attempts = attempts(2);
        assert_eq!(attempts.next(renewed()).unwrap(), Duration::ZERO);
        assert!(attempts.next(renewed()).is_err());
        assert_eq!(attempts.next(failed(Again::Once)).unwrap(), Duration::ZERO);
        assert!(attempts.next(failed(Again::Once)).is_err());
        assert!(attempts.next(Failed::for_good(error())).is_err());
    }
}
