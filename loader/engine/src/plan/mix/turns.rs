//! Streams that take turns by their shares of the positions.

use forebay_error::{Error, ErrorKind, Result};

use super::pace::Pace;
use crate::plan::SAMPLES_MAX;

/// A position in a mixture. Ascending queries are fastest; any order of queries is right.
#[derive(Debug, Clone)]
pub struct Mix {
    streams: Vec<Due>,
    /// Positions after which everything repeats; `u64::MAX` for a glide, which does not.
    period: u64,
    /// Positions a sample may lie in, for the stream with the most.
    widest: u64,
    /// Finished periods.
    periods: u64,
    at: u64,
}

/// A stream and its next sample.
#[derive(Debug, Clone)]
struct Due {
    pace: Pace,
    /// Samples in a period; 0 in a glide.
    part: u64,
    /// Samples so far in this period.
    taken: u64,
    /// First position of the next sample.
    release: u64,
    /// Position before which the sample comes.
    deadline: u64,
}

impl Mix {
    /// Makes a mixture in which each stream has its part of every period.
    ///
    /// # Errors
    /// `Invalid` for no parts, a part of 0, or a larger sum than an epoch has samples.
    pub fn new(parts: &[u64]) -> Result<Self> {
        let divisor = parts.iter().copied().fold(0, gcd);
        let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
        let Some(sum @ 1..=SAMPLES_MAX) = sum else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a mixture has too few or too many samples",
            )
            .advise("give streams of 1 to 2^48 samples in all"));
        };
        if parts.contains(&0) {
            return Err(Error::new(ErrorKind::Invalid, "a stream has no part of its mixture")
                .advise("leave it out"));
        }
        let period = sum / divisor;
        let parts = parts.iter().map(|part| part / divisor);
        let streams: Vec<Due> =
            parts.map(|part| Due::new(Pace::Even { part, period }, part)).collect();
        let rarest = streams.iter().map(|due| due.part).min().unwrap_or(1);
        let widest = period.div_ceil(rarest) + 1;
        Ok(Self { streams, period, widest, periods: 0, at: 0 })
    }

    /// Makes a mixture of `len` positions in which each share changes evenly from the first to the
    /// second; both are of `parts`.
    pub(super) fn gliding(shares: impl Iterator<Item = (u32, u32)>, parts: u32, len: u64) -> Self {
        let due = |(first, last)| Due::new(Pace::Glide { first, last, parts, len }, 0);
        let streams = shares.map(due).collect();
        // Nearer positions are walked to, as in a mixture with one such part.
        Self { streams, period: u64::MAX, widest: parts.into(), periods: 0, at: 0 }
    }

    /// Returns the stream at `position`, and the number of its sample there.
    pub fn at(&mut self, position: u64) -> (usize, u64) {
        self.seek(position);
        let stream = self.pick(self.at).expect("the shares of all streams fill every position");
        let due = &self.streams[stream];
        (stream, self.periods * due.part + due.taken)
    }

    /// Returns the number of samples of each stream before `position`.
    pub fn before(&mut self, position: u64) -> Vec<u64> {
        self.seek(position);
        self.streams.iter().map(|due| self.periods * due.part + due.taken).collect()
    }

    /// Returns the first position that a sample of a stream may have.
    pub(super) fn release(&self, stream: usize, sample: u64) -> u64 {
        let due = &self.streams[stream];
        match due.pace {
            Pace::Even { part, .. } => {
                let (periods, sample) = (sample / part, sample % part);
                self.period.saturating_mul(periods).saturating_add(due.pace.release(sample))
            }
            Pace::Glide { .. } => due.pace.release(sample),
        }
    }

    fn seek(&mut self, position: u64) {
        let (periods, at) = (position / self.period, position % self.period);
        let ahead = match periods.checked_sub(self.periods) {
            Some(0) => at.checked_sub(self.at),
            Some(1) => Some(at + (self.period - self.at)),
            _ => None,
        };
        match ahead {
            Some(ahead) if ahead <= self.widest => (0..ahead).for_each(|_| self.step()),
            _ => {
                self.periods = periods;
                self.jump(at);
            }
        }
    }

    /// Advances to the next position.
    fn step(&mut self) {
        let stream = self.pick(self.at).expect("the shares of all streams fill every position");
        self.streams[stream].take();
        self.at += 1;
        if self.at == self.period {
            (self.periods, self.at) = (self.periods + 1, 0);
            self.streams.iter_mut().for_each(|due| due.set(0));
        }
    }

    /// Returns the stream whose next sample comes at `at`, if one may come.
    fn pick(&self, at: u64) -> Option<usize> {
        let ready = self.streams.iter().enumerate().filter(|(_, due)| due.release <= at);
        ready.min_by_key(|(_, due)| due.deadline).map(|(stream, _)| stream)
    }

    /// Jumps to a position of this period without replaying earlier ones.
    ///
    /// Before it come, of each stream, all samples whose deadline is not past it, and no sample
    /// that may only come later: at most one sample per stream is in doubt. As many of these come
    /// as positions remain: those with the earliest deadlines among all sets that their releases
    /// allow, as in any queue of fixed priorities. Releases forbid a set only through positions
    /// after the earliest release of a sample in doubt; samples released before it change nothing
    /// there. So the queue is replayed from there, without those.
    fn jump(&mut self, at: u64) {
        self.at = at;
        let mut left = at;
        for due in &mut self.streams {
            due.set(due.pace.finished(at));
            left -= due.taken;
        }
        let sure: Vec<u64> = self.streams.iter().map(|due| due.taken).collect();
        let doubt = self.streams.iter().map(|due| due.release).filter(|release| *release < at);
        let Some(from) = doubt.min().filter(|_| left > 0) else { return };
        self.streams.iter_mut().for_each(|due| due.set(due.pace.begun(from)));
        for at in from..at {
            if let Some(stream) = self.pick(at) {
                self.streams[stream].take();
            }
        }
        let mut early: Vec<(u64, usize)> = Vec::new();
        for (stream, due) in self.streams.iter_mut().enumerate() {
            let came = due.taken > sure[stream];
            due.set(sure[stream]);
            if came {
                early.push((due.deadline, stream));
            }
        }
        early.sort_unstable();
        for (_, stream) in early.into_iter().take(usize::try_from(left).expect("below streams")) {
            self.streams[stream].take();
        }
    }
}

impl Due {
    fn new(pace: Pace, part: u64) -> Self {
        let mut due = Self { pace, part, taken: 0, release: 0, deadline: 0 };
        due.set(0);
        due
    }

    fn set(&mut self, taken: u64) {
        self.taken = taken;
        self.release = self.pace.release(taken);
        self.deadline = self.pace.deadline(taken);
    }

    fn take(&mut self) {
        self.set(self.taken + 1);
    }
}

pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
