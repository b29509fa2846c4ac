//! Search for the number of accelerators a node can feed.
//!
//! One accelerator that is `speed` times as fast asks for as much as `speed` of them do. Bisection
//! finds the greatest speed at which its AU_ideal stays at the target; then longer trials decide.
//!
//! A number that longer trials do not confirm is not reported.

use forebay_error::Result;
use serde::Serialize;

/// The AU at which MLPerf Storage calls an accelerator fed (ResNet-50, U-Net 3D).
pub const TARGET: f64 = 0.90;

/// Bisection ends when what is left to search is this share of the speed: less than runs differ.
const RESOLUTION: f64 = 0.01;

/// Trials at most while searching: more halvings than [`RESOLUTION`] needs from a range of 1 to 1.
const TRIALS_MAX: usize = 12;

/// The last word have trials that are so many times as long, this many at most.
const CONFIRM: (f64, usize) = (3.0, 8);

/// A longer trial whose AU is so far above the target has found too slow an accelerator: runs
/// differ by less.
const SLACK: f64 = 0.02;

/// The speed that is tried next is this much below the one at which AU would be the target's, so
/// that noise does not decide.
const BELOW: f64 = 0.99;

/// A speed that did not hold is lowered to this share of it at least, whatever its AU: one trial
/// may have been disturbed.
const LOWEST: f64 = 0.5;

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

/// Number of accelerators a node sustains.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held {
    /// The AU that had to be held.
    pub target: f64,
    /// Sustained samples a second over those that one accelerator of nominal speed takes; `None` if
    /// no longer trial bore a speed out.
    pub accelerators: Option<f64>,
    /// The speed at which this was; else the last that was tried.
    pub speed: f64,
    /// AU_ideal there.
    pub au_ideal: f64,
    /// Samples a second there.
    pub samples_per_second: f64,
    /// Samples a second where nobody computes.
    pub unlimited_samples_per_second: f64,
    /// All trials, in order.
    pub trials: Vec<Trial>,
    /// True if it ended early: the node may then feed more than `accelerators`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
}

/// Finds the greatest speed that is held. `nominal` is the rate of an accelerator at speed 1, in
/// samples a second. `trial` plays at a speed (`None`: without a limit), so many times as long as
/// usual.
///
/// Returns the results of the trials played, and the error of a failed one.
pub(super) fn search(
    nominal: f64,
    target: f64,
    trial: impl FnMut(Option<f64>, f64) -> Result<Trial>,
) -> (Option<Held>, Result<()>) {
    let (mut trials, mut confirmed) = (Vec::new(), Confirmed::default());
    let ended = seek((nominal, target), trial, &mut trials, &mut confirmed);
    let Some(unlimited) = trials.first() else { return (None, ended) };
    let unlimited_samples_per_second = unlimited.samples_per_second;
    let is_held = confirmed.held.is_some();
    let told = confirmed.held.or_else(|| trials.last().cloned()).unwrap_or_default();
    let held = Held {
        target,
        accelerators: is_held.then(|| told.samples_per_second / nominal),
        speed: told.speed.unwrap_or_default(),
        au_ideal: told.au_ideal,
        samples_per_second: told.samples_per_second,
        unlimited_samples_per_second,
        trials,
        cut_off: ended.is_err(),
    };
    (Some(held), ended)
}

fn seek(
    (nominal, target): (f64, f64),
    mut trial: impl FnMut(Option<f64>, f64) -> Result<Trial>,
    trials: &mut Vec<Trial>,
    confirmed: &mut Confirmed,
) -> Result<()> {
    let unlimited = trial(None, 1.0)?;
    // Without noise the answer lies between where the node is never late and where it is late by
    // the target.
    let rate = unlimited.samples_per_second / nominal;
    trials.push(unlimited);
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
    let (longer, times) = CONFIRM;
    for _ in 0..times {
        let tried = trial(Some(speed), longer)?;
        let next = confirmed.next(&tried, target);
        trials.push(tried);
        match next {
            Some(next) => speed = next,
            None => break,
        }
    }
    Ok(())
}

/// Results of longer trials so far.
#[derive(Default)]
struct Confirmed {
    /// The fastest that held.
    held: Option<Trial>,
    /// The slowest that did not.
    failed: Option<f64>,
}

impl Confirmed {
    /// Takes a trial in; which speed to try next, if there is more to be found out.
    fn next(&mut self, tried: &Trial, target: f64) -> Option<f64> {
        let speed = tried.speed?;
        // AU falls as the speed rises once the node is late, so speed times AU stays.
        let aim = tried.au_ideal / target * BELOW;
        if tried.au_ideal < target {
            self.failed = Some(self.failed.map_or(speed, |failed| failed.min(speed)));
            let Some(held) = self.held.as_ref().and_then(|held| held.speed) else {
                return Some(speed * aim.max(LOWEST));
            };
            return between(held, speed);
        }
        self.held = Some(tried.clone());
        match self.failed {
            _ if tried.au_ideal <= target + SLACK => None,
            Some(failed) => between(speed, failed).map(|middle| middle.min(speed * aim)),
            None => Some(speed * aim),
        }
    }
}

/// A speed between one that held and one that did not, unless they are as close as the search
/// looks.
fn between(held: f64, failed: f64) -> Option<f64> {
    (failed - held > RESOLUTION * failed).then(|| f64::midpoint(held, failed))
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
    fn search_finds_the_nodes_rate() {
        for rate in [3.0, 740.0, 1000.0, 52_000.0] {
            let held = search(1000.0, TARGET, node(rate)).0.unwrap();
            // Late by a tenth, so that all of the rate is taken.
            let speed = rate / 1000.0 / TARGET;
            assert!(held.speed <= speed && held.speed >= 0.98 * speed, "{rate}: {held:?}");
            assert!(held.au_ideal >= TARGET, "{held:?}");
            let fed = held.accelerators.unwrap();
            assert!((fed - rate / 1000.0).abs() <= 0.02 * rate / 1000.0, "{held:?}");
            let last = held.trials.last().unwrap();
            assert_eq!((last.seconds, held.trials[0].speed), (CONFIRM.0, None));
            assert!(held.trials.len() <= TRIALS_MAX + 1, "{held:?}");
        }
    }

    /// A lucky short trial is not the answer.
    #[test]
    fn search_discards_a_speed_that_fails_a_longer_trial() {
        let mut lucky = node(2000.0);
        let mut strict = node(1900.0);
        let held = search(1000.0, TARGET, |speed, factor| match factor > 1.0 {
            true => strict(speed, factor),
            false => lucky(speed, factor),
        });
        let held = held.0.unwrap();
        assert!(held.speed <= 1.9 / TARGET && held.speed >= 0.94 * 1.9 / TARGET, "{held:?}");
        assert!(held.au_ideal >= TARGET && held.accelerators.is_some(), "{held:?}");
    }

    /// Disturbed short trials do not lower the result.
    #[test]
    fn search_raises_a_speed_that_holds_easily() {
        let mut disturbed = node(1000.0);
        let mut strict = node(1500.0);
        let held = search(1000.0, TARGET, |speed, factor| match factor > 1.0 {
            true => strict(speed, factor),
            false => disturbed(speed, factor),
        });
        let held = held.0.unwrap();
        assert!(held.speed >= 0.97 * 1.5 / TARGET && held.au_ideal >= TARGET, "{held:?}");
        assert!((held.accelerators.unwrap() - 1.5).abs() < 0.02, "{held:?}");
    }

    /// The speed confirmed before stays.
    #[test]
    fn failed_raise_keeps_the_confirmed_speed() {
        let mut searched = node(1000.0);
        let held = search(1000.0, TARGET, |speed, factor| {
            let mut trial = searched(speed, factor)?;
            if factor > 1.0 {
                let is_slow = speed.is_none_or(|speed| speed < 1.2);
                trial.au_ideal = if is_slow { 1.0 } else { 0.5 };
            }
            Ok(trial)
        });
        let held = held.0.unwrap();
        assert!(held.speed < 1.2 && held.speed >= 1.2 * 0.97, "{held:?}");
        assert!(held.au_ideal >= TARGET && held.accelerators.is_some(), "{held:?}");
        assert!(held.trials.last().unwrap().speed.unwrap() >= held.speed, "{held:?}");
    }

    #[test]
    fn search_without_a_confirmed_speed_has_no_figure() {
        let mut node = node(1000.0);
        let held = search(1000.0, TARGET, |speed, factor| {
            let mut trial = node(speed, factor)?;
            trial.au_ideal *= if factor > 1.0 { 0.5 } else { 1.0 };
            Ok(trial)
        });
        let mut held = held.0.unwrap();
        let longer = held.trials.iter().filter(|trial| trial.seconds > 1.0).count();
        assert_eq!((held.accelerators, longer), (None, CONFIRM.1));
        assert_eq!(Some(held.speed), held.trials.last().unwrap().speed);
        let text = held.to_string();
        assert!(text.contains("not confirmed") && !text.contains("feeds "), "{text}");
        held.accelerators = Some(1.0);
        assert!(held.to_string().contains("this node feeds 1.00 such accelerators"));
    }

    /// A figure needs a longer trial that confirms it.
    #[test]
    fn interrupted_search_reports_its_trials() {
        let cut_off = |at: usize| {
            let (mut node, mut played) = (node(1000.0), 0);
            search(1000.0, TARGET, move |speed, factor| {
                played += 1;
                match played > at {
                    true => Err(forebay_error::Error::new(forebay_error::ErrorKind::Closed, "cut")),
                    false => node(speed, factor),
                }
            })
        };
        let (none, ended) = cut_off(0);
        assert!(none.is_none() && ended.is_err());
        let (held, ended) = cut_off(3);
        let held = held.unwrap();
        assert_eq!((held.trials.len(), held.accelerators, held.cut_off), (3, None, true));
        assert!(ended.is_err() && held.to_string().contains("cut off"), "{held}");
    }
}
