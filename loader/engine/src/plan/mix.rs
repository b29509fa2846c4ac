//! Stream and sample of each position of a mixture.
//!
//! After any number of positions each stream has had its exact share of them to within one
//! sample. So sample n of a stream that has m of every M positions comes after position ⌊nM/m⌋
//! begins and before position ⌈(n+1)M/m⌉ does. Among the streams that may come, the one with the
//! earliest deadline does, and at a tie the first in the list. Unit jobs with whole releases and
//! feasible deadlines are met this way (Baruah and others 1996, "Proportionate progress"); these
//! are feasible, since giving each stream its share of every instant would meet them. The simpler
//! rule of the largest deficit is not within one sample for more than two streams.
//!
//! All arithmetic is on whole numbers, and repeats after M positions.

mod streams;

pub use forebay_wire::message::Proportion;
pub use streams::{Mixed, Stream};

use forebay_error::{Error, ErrorKind, Result};

use super::SAMPLES_MAX;

/// Largest period of a mixture by weights: other shares are rounded to multiples of its reciprocal.
/// A jump takes as many steps as the rarest stream has positions between two samples, so at most
/// this many: some ten milliseconds.
const WEIGHT_PARTS: u64 = 1_000_000;

/// Decimals of weights that are taken exactly: as many as `WEIGHT_PARTS` resolves.
const WEIGHT_DECIMALS: u32 = 6;

/// Bound on the error of a decimal stored as a binary fraction, after scaling.
const DECIMAL_ERROR: f64 = 1e-6;

/// Returns the samples of each stream per period, from weights.
///
/// Weights of up to six decimals whose sum is at most a million of their unit are exact; others
/// become millionths of their sum, with the rounding distributed so that the sum stays the same.
///
/// # Errors
/// `Invalid` for a weight that is not a positive number, or below a millionth of the sum.
pub fn weights(weights: &[f64]) -> Result<Vec<u64>> {
    let invalid =
        |message: String, advice: &str| Err(Error::new(ErrorKind::Invalid, message).advise(advice));
    if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
        return invalid(
            format!("weight {weight} is not a positive number"),
            "give numbers above 0",
        );
    }
    let exact = (0..=WEIGHT_DECIMALS).find_map(|decimals| as_whole(weights, decimals));
    let parts = exact.unwrap_or_else(|| rounded(weights));
    match parts.iter().position(|part| *part == 0) {
        Some(stream) => invalid(
            format!("weight {} is below a millionth of all weights", weights[stream]),
            "raise it, or leave the stream out",
        ),
        None => Ok(parts),
    }
}

/// Returns the weights in units of 10^−decimals, if that makes them whole and few enough.
fn as_whole(weights: &[f64], decimals: u32) -> Option<Vec<u64>> {
    let unit = f64::from(10_u32.pow(decimals));
    let mut parts = Vec::with_capacity(weights.len());
    for weight in weights {
        let scaled = weight * unit;
        if (scaled - scaled.round()).abs() > DECIMAL_ERROR || scaled > u64::MAX as f64 {
            return None;
        }
        parts.push(scaled.round() as u64);
    }
    let divisor = parts.iter().copied().fold(0, gcd).max(1);
    parts.iter_mut().for_each(|part| *part /= divisor);
    let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part))?;
    (sum <= WEIGHT_PARTS && !parts.contains(&0)).then_some(parts)
}

/// Returns the weights as shares of `WEIGHT_PARTS`; the remainder goes to those that lost most by
/// rounding down.
fn rounded(weights: &[f64]) -> Vec<u64> {
    // Divides by the largest weight first: the sum of finite numbers may be infinite.
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let sum: f64 = weights.iter().map(|weight| weight / largest).sum();
    let exact = weights.iter().map(|weight| weight / largest / sum * WEIGHT_PARTS as f64);
    let exact: Vec<f64> = exact.collect();
    let mut parts: Vec<u64> = exact.iter().map(|share| *share as u64).collect();
    let mut by_loss: Vec<usize> = (0..parts.len()).collect();
    by_loss.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()));
    let left = WEIGHT_PARTS.saturating_sub(parts.iter().sum());
    for stream in by_loss.into_iter().cycle().take(usize::try_from(left).unwrap_or(0)) {
        parts[stream] += 1;
    }
    parts
}

/// Returns the samples of each stream per epoch: `samples · repeat`, rounded to the nearest whole
/// number.
///
/// # Errors
/// `Invalid` for a repeat that is not a positive number or leaves a stream no sample, or more
/// samples than an epoch may have.
pub fn repeats(streams: &[(u64, f64)]) -> Result<Vec<u64>> {
    let invalid =
        |message: String, advice: &str| Err(Error::new(ErrorKind::Invalid, message).advise(advice));
    let mut parts = Vec::with_capacity(streams.len());
    for (samples, repeat) in streams {
        if !(repeat.is_finite() && *repeat > 0.0) {
            return invalid(
                format!("repeat {repeat} is not a positive number"),
                "give one above 0",
            );
        }
        let part = (*samples as f64 * repeat).round();
        if part < 1.0 {
            let message = format!("{repeat} times {samples} samples gives no sample");
            return invalid(message, "raise repeat, or leave the stream out");
        }
        if part > SAMPLES_MAX as f64 {
            let message = format!("{repeat} times {samples} samples exceed {SAMPLES_MAX}");
            return invalid(message, "lower repeat");
        }
        parts.push(part as u64);
    }
    Ok(parts)
}

/// A position in a mixture. Ascending queries are fastest; any order of queries is right.
#[derive(Debug, Clone)]
pub struct Mix {
    streams: Vec<Due>,
    /// Positions after which everything repeats.
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
    /// Samples in a period.
    part: u64,
    /// Positions from one sample to the next: the whole positions, and the remainder in parts.
    step: u64,
    over: u64,
    /// Samples so far in this period.
    taken: u64,
    /// First position of the next sample: the whole positions, and the remainder.
    release: u64,
    excess: u64,
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
        let streams: Vec<Due> = parts.iter().map(|part| Due::new(part / divisor, period)).collect();
        let rarest = streams.iter().map(|due| due.part).min().unwrap_or(1);
        let widest = period.div_ceil(rarest) + 1;
        Ok(Self { streams, period, widest, periods: 0, at: 0 })
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

    /// Returns the positions that `samples` samples of `stream` span.
    fn distance(&self, stream: usize, samples: u64) -> u64 {
        let part = self.streams[stream].part;
        let distance = u128::from(samples) * u128::from(self.period) / u128::from(part);
        u64::try_from(distance).unwrap_or(u64::MAX)
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
            let period = self.period;
            self.streams.iter_mut().for_each(|due| due.set(0, period));
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
        let period = self.period;
        self.at = at;
        let mut left = at;
        for due in &mut self.streams {
            due.set(share(at, due.part, period), period);
            left -= due.taken;
        }
        let sure: Vec<u64> = self.streams.iter().map(|due| due.taken).collect();
        let doubt = self.streams.iter().map(|due| due.release).filter(|release| *release < at);
        let Some(from) = doubt.min().filter(|_| left > 0) else { return };
        for due in &mut self.streams {
            let released = u128::from(from) * u128::from(due.part);
            let taken = released.div_ceil(u128::from(period));
            due.set(u64::try_from(taken).expect("a part of the period"), period);
        }
        for at in from..at {
            if let Some(stream) = self.pick(at) {
                self.streams[stream].take();
            }
        }
        let mut early: Vec<(u64, usize)> = Vec::new();
        for (stream, due) in self.streams.iter_mut().enumerate() {
            let came = due.taken > sure[stream];
            due.set(sure[stream], period);
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
    fn new(part: u64, period: u64) -> Self {
        let (step, over) = (period / part, period % part);
        let mut due = Self { part, step, over, taken: 0, release: 0, excess: 0, deadline: 0 };
        due.set(0, period);
        due
    }

    fn set(&mut self, taken: u64, period: u64) {
        let release = u128::from(taken) * u128::from(period);
        let part = u128::from(self.part);
        self.taken = taken;
        self.release = u64::try_from(release / part).expect("not past the period");
        self.excess = u64::try_from(release % part).expect("below part");
        self.deadline = self.deadline();
    }

    fn take(&mut self) {
        (self.release, self.excess) = self.next();
        self.taken += 1;
        self.deadline = self.deadline();
    }

    /// Returns the release of the sample after the next.
    fn next(&self) -> (u64, u64) {
        let excess = self.excess + self.over;
        match excess.checked_sub(self.part) {
            Some(excess) => (self.release + self.step + 1, excess),
            None => (self.release + self.step, excess),
        }
    }

    fn deadline(&self) -> u64 {
        let (release, excess) = self.next();
        release + u64::from(excess > 0)
    }
}

/// Returns `⌊of · part / parts⌋`.
fn share(of: u64, part: u64, parts: u64) -> u64 {
    let share = u128::from(of) * u128::from(part) / u128::from(parts);
    u64::try_from(share).expect("part is not above parts")
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
