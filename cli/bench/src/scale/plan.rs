//! Time to find samples in an epoch's order, by their number.

use std::hint::black_box;

use forebay_engine::plan::{self, Known, Located, Sequence};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::Order;
use indicatif::ProgressBar;

use super::{ROUNDS, powers, timed};
use crate::growth::{Growth, Point};
use crate::interrupt;
use crate::spread::Spread;

/// Samples of a shard, as many data sets have them.
const SHARD: u64 = 1000;

/// Fewer samples than this have no order worth measuring.
const FEWEST: u64 = 1000;

/// Positions looked up one after another: so many that a clock's tick is nothing.
const IN_A_ROW: u64 = 1 << 16;

/// Measures the look-up of a job that begins in mid-epoch, and of each sample after it.
pub(super) fn growths(most: u64, growths: &mut Vec<Growth>, progress: &ProgressBar) -> Result<()> {
    let (mut resume, mut next) = (Vec::new(), Vec::new());
    let ended = powers(most).into_iter().try_for_each(|samples| {
        progress.set_message(format!("plan: {samples} samples"));
        progress.inc(1);
        if samples < FEWEST.min(most) {
            return Ok(());
        }
        let (mut resumes, mut nexts) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            interrupt::check()?;
            let (begun, row) = look_up(samples)?;
            resumes.push(begun);
            nexts.push(row);
        }
        for (points, rounds) in [(&mut resume, resumes), (&mut next, nexts)] {
            points.push(Point { size: samples, value: Spread::of(rounds).median });
        }
        Ok(())
    });
    if !resume.is_empty() {
        growths.push(Growth::in_seconds("plan: resume in mid-epoch", "samples", resume));
        growths.push(Growth::in_seconds("plan: the next sample", "samples", next));
    }
    ended
}

/// Seconds to a position in a mixed epoch of so many samples, and from there to each after it.
fn look_up(samples: u64) -> Result<(f64, f64)> {
    let order = Order::shuffled(64, 1, 256);
    let mut counts = vec![SHARD; usize::try_from(samples / SHARD).unwrap_or(usize::MAX)];
    if !samples.is_multiple_of(SHARD) {
        counts.push(samples % SHARD);
    }
    let too_many = |_| Error::new(ErrorKind::Invalid, "more shards than a job may have");
    let shards = u32::try_from(counts.len()).map_err(too_many)?;
    let lanes = plan::lanes(&order, shards, true)?;
    let known = |_| Known::AtLeast(0);
    // Past the middle.
    let at = samples / 5 * 3;
    let (begun, (mut sequence, found)) = timed(|| {
        let mut sequence = Sequence::new(&order, shards, Some(counts), lanes, 0);
        let found = matches!(sequence.locate(at, &known), Located::Sample { .. });
        (sequence, found)
    });
    if !found {
        return Err(Error::new(ErrorKind::Invalid, "a plan does not know its own samples"));
    }
    let row = at..(at + IN_A_ROW).min(samples);
    let positions = (row.end - row.start).max(1) as f64;
    let (took, ()) = timed(|| {
        for position in row {
            black_box(sequence.locate(position, &known));
        }
    });
    Ok((begun.as_secs_f64(), took.as_secs_f64() / positions))
}
