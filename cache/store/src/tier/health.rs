//! Health of a device: when it is used, avoided, and trusted again.
//!
//! A device is judged by its observed behaviour. Three I/O errors within a minute make it
//! unstable: then it is only probed. Three bad probes in a row make it down, three good ones normal
//! again. A directory that is not the opened one is down at once. A probe is good if a write and a
//! read were answered by the device itself. A device that fails soon after it came back needs twice
//! as many good probes as the time before.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// I/O errors within [`WITHIN`] that make a device unstable: a single one may be a bad sector.
const ERRORS: usize = 3;

/// Time for which an I/O error counts.
const WITHIN: Duration = Duration::from_secs(60);

/// Probes in a row that change the condition: a single one may be luck, either way.
const PROBES: u32 = 3;

/// Time after which a device that came back is trusted as if it had never failed.
const STEADY: Duration = Duration::from_secs(600);

/// Largest number of times that the good probes are doubled: some minutes, at one a second.
const DOUBLED_MOST: u32 = 7;

/// Time for which a disk counts as full after it was: a probe of one block may fit where a shard
/// does not.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Condition of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// In use.
    Normal,
    /// In use, but its disk has no space or no inodes for what comes.
    Full,
    /// Takes no writes (a file system remounted read-only); it is read.
    ReadOnly,
    /// Fails: probed, and not used.
    Unstable,
    /// Fails the probes as well.
    Down,
}

impl Condition {
    /// Returns true if shards may come to the device.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::Normal | Self::Full)
    }
}

/// Observations of a device.
#[derive(Debug)]
pub(crate) struct Health(Mutex<Observations>);

#[derive(Debug)]
struct Observations {
    condition: Condition,
    errors: VecDeque<Instant>,
    good: u32,
    bad: u32,
    why: Option<String>,
    /// Last time at which the disk had no room, and the error.
    full: Option<(Instant, String)>,
    /// True from an unanswered call until the device is normal again.
    is_silent: bool,
    /// Last time at which it came back.
    back: Option<Instant>,
    /// Number of times in a row that it failed soon after it came back.
    relapses: u32,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Observations {
            condition: Condition::Normal,
            errors: VecDeque::with_capacity(ERRORS),
            good: 0,
            bad: 0,
            why: None,
            full: None,
            is_silent: false,
            back: None,
            relapses: 0,
        }))
    }

    pub(crate) fn condition(&self) -> Condition {
        self.lock().condition
    }

    /// Condition, and the reason for it, for reports. A full disk is in use.
    pub(crate) fn verdict(&self) -> (Condition, Option<String>) {
        let seen = self.lock();
        match (seen.condition, &seen.full) {
            (Condition::Normal, Some((_, why))) => (Condition::Full, Some(why.clone())),
            _ => (seen.condition, seen.why.clone()),
        }
    }

    /// Returns true if its disk had no room.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().full.is_some()
    }

    /// Notes that the disk has no room. Returns true if it had before.
    pub(crate) fn filled(&self, error: &Error, now: Instant) -> bool {
        self.lock().full.replace((now, error.to_string())).is_none()
    }

    /// Notes that the disk takes bytes. Returns true if it counted as full until now.
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        let mut seen = self.lock();
        let over = |(then, _): &mut (Instant, String)| now.duration_since(*then) >= FULL_FOR;
        seen.full.take_if(over).is_some()
    }

    /// Notes a failed operation. Returns the condition if it changed.
    pub(crate) fn failed(&self, error: &Error, now: Instant) -> Option<Condition> {
        let mut seen = self.lock();
        seen.errors.push_back(now);
        while seen.errors.front().is_some_and(|then| now.duration_since(*then) >= WITHIN) {
            seen.errors.pop_front();
        }
        // More errors do not matter.
        seen.errors.truncate(ERRORS);
        match seen.condition {
            Condition::Normal | Condition::ReadOnly if seen.errors.len() >= ERRORS => {
                seen.relapse(now);
                Some(seen.turn(Condition::Unstable, error))
            }
            _ => None,
        }
    }

    /// Notes a file system that takes no writes. Returns the condition if it changed.
    pub(crate) fn refused_writes(&self, error: &Error) -> Option<Condition> {
        let mut seen = self.lock();
        let news = seen.condition == Condition::Normal;
        news.then(|| seen.turn(Condition::ReadOnly, error))
    }

    /// Notes that the directory is gone or replaced. Returns the condition if it changed.
    pub(crate) fn vanished(&self, error: &Error, now: Instant) -> Option<Condition> {
        self.lock().goes_down(error, now)
    }

    /// Notes that the device does not answer. Returns the condition if it changed.
    pub(crate) fn silent(&self, error: &Error, now: Instant) -> Option<Condition> {
        let mut seen = self.lock();
        seen.is_silent = true;
        seen.goes_down(error, now)
    }

    /// Returns true if the device does not answer: no call on it must be begun.
    pub(crate) fn is_silent(&self) -> bool {
        self.lock().is_silent
    }

    /// Notes the result of a probe. Returns the condition if it changed.
    pub(crate) fn probed(&self, outcome: &Result<(), Error>, now: Instant) -> Option<Condition> {
        let mut seen = self.lock();
        match (outcome, seen.condition) {
            (_, Condition::Normal) => None,
            (Ok(()), _) => {
                (seen.good, seen.bad) = (seen.good + 1, 0);
                (seen.good >= PROBES << seen.relapses).then(|| {
                    *seen = Observations {
                        condition: Condition::Normal,
                        errors: VecDeque::with_capacity(ERRORS),
                        good: 0,
                        bad: 0,
                        why: None,
                        full: None,
                        is_silent: false,
                        back: Some(now),
                        relapses: seen.relapses,
                    };
                    Condition::Normal
                })
            }
            (Err(error), Condition::Unstable) => {
                (seen.good, seen.bad) = (0, seen.bad + 1);
                (seen.bad >= PROBES).then(|| seen.turn(Condition::Down, error))
            }
            (Err(_), Condition::Full | Condition::ReadOnly | Condition::Down) => {
                seen.good = 0;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Observations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observations {
    fn goes_down(&mut self, error: &Error, now: Instant) -> Option<Condition> {
        self.good = 0;
        self.why = Some(error.to_string());
        if self.condition == Condition::Down {
            return None;
        }
        if self.condition == Condition::Normal {
            self.relapse(now);
        }
        Some(self.turn(Condition::Down, error))
    }

    /// Counts a failure of a device that was in use, if it came soon after the last.
    fn relapse(&mut self, now: Instant) {
        let soon = self.back.is_some_and(|back| now.duration_since(back) < STEADY);
        self.relapses = if soon { (self.relapses + 1).min(DOUBLED_MOST) } else { 0 };
    }

    fn turn(&mut self, condition: Condition, why: &Error) -> Condition {
        self.condition = condition;
        self.why = Some(why.to_string());
        (self.good, self.bad) = (0, 0);
        condition
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    fn error() -> Error {
        Error::new(ErrorKind::Unavailable, "input/output error")
    }

    #[test]
    fn three_errors_in_a_minute_make_device_unstable() {
        let health = Health::new();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(health.failed(&error(), after(0)), None);
        assert_eq!(health.failed(&error(), after(30)), None);
        assert_eq!(health.failed(&error(), after(61)), None, "the first is forgotten");
        assert_eq!(health.failed(&error(), after(80)), Some(Condition::Unstable));
        assert_eq!(health.failed(&error(), after(81)), None, "told once");
        assert!(health.verdict().1.is_some_and(|why| why.contains("input/output")));
    }

    #[test]
    fn probes_change_the_condition() {
        let health = Health::new();
        for _ in 0..3 {
            health.failed(&error(), Instant::now());
        }
        let now = Instant::now();
        let good = || health.probed(&Ok(()), now);
        let bad = || health.probed(&Err(error()), now);
        assert_eq!([good(), good(), bad()], [None; 3]);
        assert_eq!([good(), bad(), bad()], [None; 3], "a good one in between counts");
        assert_eq!(bad(), Some(Condition::Down));
        assert_eq!([good(), good(), bad(), good(), good()], [None; 5]);
        assert_eq!(good(), Some(Condition::Normal));
        assert_eq!(health.verdict(), (Condition::Normal, None));
        assert_eq!(health.failed(&error(), Instant::now()), None, "it starts anew");
    }

    #[test]
    fn full_disk_is_in_use_and_shown() {
        let (health, start) = (Health::new(), Instant::now());
        assert!(health.filled(&error(), start));
        assert!(!health.filled(&error(), start), "told once");
        assert_eq!((health.condition(), health.verdict().0), (Condition::Normal, Condition::Full));
        assert!(!health.has_room(start));
        assert!(health.has_room(start + FULL_FOR));
        assert_eq!(health.verdict(), (Condition::Normal, None));
    }

    #[test]
    fn read_only_device_differs_from_failing_one() {
        let health = Health::new();
        assert_eq!(health.refused_writes(&error()), Some(Condition::ReadOnly));
        assert_eq!(health.refused_writes(&error()), None);
        let now = Instant::now();
        assert_eq!(health.probed(&Err(error()), now), None);
        assert_eq!(health.vanished(&error(), now), Some(Condition::Down));
        assert_eq!(health.vanished(&error(), now), None);
        for _ in 0..2 {
            health.probed(&Ok(()), now);
        }
        assert_eq!(health.probed(&Ok(()), now), Some(Condition::Normal));
    }

    /// A device that comes back and fails again is trusted later each time, until it was steady.
    #[test]
    fn relapses_double_the_good_probes() {
        let (health, mut now) = (Health::new(), Instant::now());
        let good_until_normal = |now| {
            let mut good = 1;
            while health.probed(&Ok(()), now).is_none() {
                good += 1;
            }
            good
        };
        for relapses in 0..DOUBLED_MOST + 3 {
            assert_eq!(health.silent(&error(), now), Some(Condition::Down));
            assert!(health.is_silent());
            // One that is bad in between starts the count anew.
            assert_eq!(health.probed(&Ok(()), now), None);
            assert_eq!(health.probed(&Err(error()), now), None);
            assert_eq!(good_until_normal(now), PROBES << relapses.min(DOUBLED_MOST));
            assert!(!health.is_silent());
            now += Duration::from_secs(10);
        }
        now += STEADY;
        for _ in 0..ERRORS {
            health.failed(&error(), now);
        }
        assert_eq!(health.condition(), Condition::Unstable);
        assert_eq!(good_until_normal(now), PROBES);
    }
}
