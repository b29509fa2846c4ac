//! Scale: how what Forebay does grows with samples, shards and jobs.
//!
//! All that is measured is made here, so that sizes nobody has lying about can be; and a size
//! stands for a figure's growth, not for a figure of a real data set.

mod jobs;
mod plan;
mod policy;
mod start;

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_error::Result;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::growth::{Growth, Point};
use crate::interrupt;
use crate::machine::Machine;
use crate::spread::Spread;
pub use policy::decision_seconds;
pub use start::lay;

/// Rounds of each figure; the median is told.
const ROUNDS: usize = 3;

/// Largest sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Samples of the largest plan.
    pub samples: u64,
    /// Shards that a policy decides about.
    pub shards: u64,
    /// Shards in the directory of the largest start.
    pub cached: u64,
    /// Jobs of one daemon.
    pub jobs: u64,
}

/// Folder and program of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// A folder is made there, and removed.
    pub directory: &'a Path,
    /// The command that runs Forebay's command line, without arguments.
    pub launcher: &'a [OsString],
}

/// Results.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Machine of the measurement.
    pub machine: Machine,
    /// One entry per figure.
    pub growths: Vec<Growth>,
}

impl Report {
    /// Measures all of it. What was found before something failed stays, a figure's smaller sizes
    /// as well.
    ///
    /// # Errors
    /// The error of the disk or of a daemon.
    pub fn measure(
        &mut self,
        limits: Limits,
        setup: Setup<'_>,
        progress: &ProgressBar,
    ) -> Result<()> {
        let sizes = [limits.samples, limits.cached].map(|most| powers(most).len());
        let policies = powers(limits.shards).len() * policy::COUNT;
        progress.set_length(
            (sizes.iter().sum::<usize>() + policies + doubles(limits.jobs).len()) as u64,
        );
        let growths = &mut self.growths;
        plan::growths(limits.samples, growths, progress)?;
        policy::growths(limits.shards, growths, progress)?;
        start::growths(limits.cached, setup, growths, progress)?;
        jobs::growth(limits.jobs, setup, growths, progress)
    }
}

/// A figure's points at sizes that ascend, as far as it came to.
fn grown(
    growths: &mut Vec<Growth>,
    (name, size): (String, &'static str),
    sizes: Vec<u64>,
    mut value: impl FnMut(u64) -> Result<f64>,
) -> Result<()> {
    let mut points = Vec::new();
    let ended = sizes.into_iter().try_for_each(|size| {
        points.push(Point { size, value: value(size)? });
        Ok(())
    });
    if !points.is_empty() {
        growths.push(Growth::in_seconds(name, size, points));
    }
    ended
}

/// The median of this figure's rounds.
fn median(mut round: impl FnMut() -> Result<f64>) -> Result<f64> {
    let rounds = (0..ROUNDS).map(|_| {
        interrupt::check()?;
        round()
    });
    Ok(Spread::of(rounds.collect::<Result<Vec<_>>>()?).median)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        self.growths.iter().try_for_each(|growth| write!(f, "\n{growth}"))
    }
}

/// Powers of ten up to `most`, and `most` itself.
fn powers(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(10));
    let mut sizes: Vec<u64> = powers.take_while(|power| *power < most).collect();
    sizes.push(most);
    sizes
}

/// Powers of two up to `most`, and `most` itself.
fn doubles(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(2));
    let mut sizes: Vec<u64> = powers.take_while(|power| *power < most).collect();
    sizes.push(most);
    sizes
}

/// Runs `work`; returns its duration and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let done = work();
    (begin.elapsed(), done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_to_the_limit() {
        assert_eq!(powers(1), [1]);
        assert_eq!(powers(1000), [1, 10, 100, 1000]);
        assert_eq!(powers(2500), [1, 10, 100, 1000, 2500]);
        assert_eq!(doubles(64), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(doubles(6), [1, 2, 4, 6]);
        assert_eq!(powers(u64::MAX).last(), Some(&u64::MAX));
    }
}
