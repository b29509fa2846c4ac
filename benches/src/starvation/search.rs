//! How many accelerators a node can feed, found by trying.
//!
//! One accelerator that is `speed` times as fast asks for as much as `speed` of them do. The greatest speed
//! at which its AU_ideal stays at the target is looked for by bisection, and played once more, for longer.

use forebay_error::Result;
use serde::Serialize;

/// The AU at which MLPerf Storage calls an accelerator fed (ResNet-50, U-Net 3D).
pub const TARGET: f64 = 0.90;

/// Bisection ends when what is left to search is this share of the speed: less than runs differ.
const RESOLUTION: f64 = 0.01;

/// Trials at most while searching: more halvings than [`RESOLUTION`] needs from a range of 1 to 1.
const TRIALS_MAX: usize = 12;

/// The last word is a trial that is so many times as long.
const CONFIRM: f64 = 3.0;

/// A speed that was not confirmed is lowered to this share of it, so often.
const YIELD: (f64, usize) = (0.97, 8);

/// Noise can make a trial better than what was found without any limit, by this factor at most.
const HEADROOM: f64 = 1.1;

/// One speed, tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trial {
    /// Accelerators' worth of batches that were asked for; `None`: as fast as they come.
    pub speed: Option<f64>,
    /// Share of the time in which the accelerators computed.
    pub au_ideal: f64,
    /// Samples taken a second.
    pub samples_per_second: f64,
    /// Samples taken.
    pub samples: u64,
    /// Seconds that counted.
    pub seconds: f64,
    /// Bytes that came from origins meanwhile: not zero means that the link was tried, too.
    pub fetched_bytes: u64,
}

/// What a node sustains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held {
    /// The AU that had to be held.
    pub target: f64,
    /// Sustained samples a second over those that one accelerator of nominal speed takes.
    pub accelerators: f64,
    /// The speed at which this was.
    pub speed: f64,
    /// AU_ideal there.
    pub au_ideal: f64,
    /// Samples a second there.
    pub samples_per_second: f64,
    /// Samples a second where nobody computes.
    pub unlimited_samples_per_second: f64,
    /// All trials, in order; the last is the one that counts.
    pub trials: Vec<Trial>,
}

/// Finds the greatest speed that is held; `nominal` is what an accelerator takes at speed 1, in samples a
/// second, and `trial` plays at a speed (`None`: without a limit), so many times as long as usual.
///
/// # Errors
/// What `trial` fails with.
pub(super) fn search(
    nominal: f64,
    target: f64,
    mut trial: impl FnMut(Option<f64>, f64) -> Result<Trial>,
) -> Result<Held> {
    let unlimited = trial(None, 1.0)?;
    let unlimited_samples_per_second = unlimited.samples_per_second;
    let mut trials = vec![unlimited];
    // Without noise the answer lies between where the node is never late and where it is late by the target.
    let rate = unlimited_samples_per_second / nominal;
    let (mut low, mut high) = (0.0, HEADROOM * rate / target);
    let mut speed = rate;
    while high - low > RESOLUTION * high && trials.len() < TRIALS_MAX {
        let tried = trial(Some(speed), 1.0)?;
        match tried.au_ideal >= target {
            true => low = speed,
            false => high = speed,
        }
        trials.push(tried);
        speed = f64::midpoint(low, high);
    }
    speed = if low > 0.0 { low } else { high };
    let (share, times) = YIELD;
    for _ in 0..times {
        let tried = trial(Some(speed), CONFIRM)?;
        let is_held = tried.au_ideal >= target;
        trials.push(tried);
        if is_held {
            break;
        }
        speed *= share;
    }
    let last = trials.last().cloned().unwrap_or_default();
    Ok(Held {
        target,
        accelerators: last.samples_per_second / nominal,
        speed: last.speed.unwrap_or_default(),
        au_ideal: last.au_ideal,
        samples_per_second: last.samples_per_second,
        unlimited_samples_per_second,
        trials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that gives `rate` samples a second at most to accelerators that take 1,000 each.
    fn node(rate: f64) -> impl FnMut(Option<f64>, f64) -> Result<Trial> {
        move |speed, factor| {
            let au_ideal = speed.map_or(0.0, |speed| (rate / (1000.0 * speed)).min(1.0));
            let samples_per_second = speed.map_or(rate, |speed| 1000.0 * speed * au_ideal);
            Ok(Trial { speed, au_ideal, samples_per_second, seconds: factor, ..Trial::default() })
        }
    }

    #[test]
    fn what_a_node_can_do_is_found() {
        for rate in [3.0, 740.0, 1000.0, 52_000.0] {
            let held = search(1000.0, TARGET, node(rate)).unwrap();
            // Late by a tenth, so that all of the rate is taken.
            let speed = rate / 1000.0 / TARGET;
            assert!(held.speed <= speed && held.speed >= 0.98 * speed, "{rate}: {held:?}");
            assert!(held.au_ideal >= TARGET, "{held:?}");
            assert!((held.accelerators - rate / 1000.0).abs() <= 0.02 * rate / 1000.0, "{held:?}");
            let last = held.trials.last().unwrap();
            assert_eq!((last.seconds, held.trials[0].speed), (CONFIRM, None));
            assert!(held.trials.len() <= TRIALS_MAX + 1, "{held:?}");
        }
    }

    /// What held once by luck is not the answer.
    #[test]
    fn what_does_not_hold_for_longer_is_not_called_held() {
        let mut lucky = node(2000.0);
        let mut strict = node(1900.0);
        let held = search(1000.0, TARGET, |speed, factor| match factor > 1.0 {
            true => strict(speed, factor),
            false => lucky(speed, factor),
        });
        let held = held.unwrap();
        assert!(held.speed <= 1.9 / TARGET && held.speed >= 0.94 * 1.9 / TARGET, "{held:?}");
        assert!(held.au_ideal >= TARGET, "{held:?}");
    }
}
