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
//! All arithmetic is on whole numbers, and repeats after M positions. Shares may change with the
//! position ([`pace`], [`phases`]): the argument is the same with the samples that a stream is due
//! so far in the place of nm/M.

mod pace;
mod phases;
mod streams;
mod turns;

pub use forebay_wire::message::{Phase, Proportion};
pub use streams::{Mixed, Stream};
pub use turns::Mix;

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
    let divisor = parts.iter().copied().fold(0, turns::gcd).max(1);
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
