//! Time of an eviction decision by the number of shards.
//!
//! A decision is a miss on a full tier (a victim, its removal, a newcomer) with the hit between two
//! of them; an average over many, because some policies pay in bulk.

use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::{Evict, Newcomer, Slot};
use indicatif::ProgressBar;

use super::{grown, median, powers};
use crate::dice::Dice;
use crate::growth::Growth;

/// Policies that decide.
pub(super) const COUNT: usize = Evict::ALL.len();

/// Decisions timed in a round.
const STEPS: u32 = 100_000;

pub(super) fn growths(most: u64, growths: &mut Vec<Growth>, progress: &ProgressBar) -> Result<()> {
    Evict::ALL.into_iter().try_for_each(|evict| {
        let name = format!("policy {}: a decision", evict.name());
        grown(growths, (name, "shards"), powers(most), |shards| {
            progress.set_message(format!("policy {}: {shards} shards", evict.name()));
            progress.inc(1);
            median(|| decision_seconds(evict, shards, STEPS))
        })
    })
}

/// Seconds of one of `steps` decisions about so many shards.
///
/// # Errors
/// `Invalid` for more shards than a tier has slots.
pub fn decision_seconds(evict: Evict, shards: u64, steps: u32) -> Result<f64> {
    let too_many = |_| Error::new(ErrorKind::Invalid, "more shards than a tier can have");
    let count = Slot::try_from(shards).map_err(too_many)?;
    let mut policy = evict.policy();
    for slot in 0..count {
        policy.insert(newcomer(slot, slot.into()));
    }
    let mut dice = Dice::new(7);
    let begin = Instant::now();
    for step in 0..steps {
        let none = || Error::new(ErrorKind::Invalid, "a policy has nothing to evict");
        let victim = policy.victim(&mut |_| true).ok_or_else(none)?;
        policy.remove(victim, true);
        policy.insert(newcomer(victim, shards + u64::from(step)));
        // As random as a cache needs it, and the same in every run.
        policy.hit(Slot::try_from(dice.roll() % shards).map_err(too_many)?);
    }
    Ok(begin.elapsed().as_secs_f64() / f64::from(steps))
}

fn newcomer(slot: Slot, identity: u64) -> Newcomer {
    Newcomer { slot, identity, bytes: 500 << 20 }
}
