//! Composition of one window into bins, from the lengths of its samples alone.
//!
//! Packed bins: the longest samples go first, each to the bin with the least tokens (Graham's LPT
//! rule), over as few bins as the budget allows. That fills bins as well as best-fit does and makes
//! them equal, which ranks that step together need more. Where samples are so long that it fails,
//! best-fit decides.
//!
//! Padded bins: samples by length, cut into runs of equal size. Neighbours by length pad little.
//!
//! Then bins are put into an order in which neighbours have nearly equal sizes, so that any number
//! of ranks finds equal ones at a step, and which is random otherwise.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use forebay_wire::message::BinRule;

use crate::plan::BATCH_MAX;
use crate::plan::permute::{Key, permute};

/// Bins beyond the fewest possible that are tried before best-fit decides, as a part of them: more
/// would fill bins worse than best-fit does.
const TRIES_PART: usize = 64;

/// Range of sizes within which bins are shuffled: the largest is this part larger than the
/// smallest. Half of the 5 % by which ranks of one step may differ.
const ALIKE_PART: u64 = 40;

/// A batch of one rank: samples by their places in the window, in that order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bin {
    /// Tokens with padding.
    pub(super) tokens: u64,
    /// Places.
    pub(super) samples: Vec<u32>,
}

impl Bin {
    fn new(tokens: u64, mut samples: Vec<u32>) -> Self {
        samples.sort_unstable();
        Self { tokens, samples }
    }
}

/// Order of the bins of a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Key of the shuffle.
    pub(super) key: Key,
    /// True if bins of one size are not shuffled.
    pub(super) keeps_order: bool,
    /// True if the smallest bins come first.
    pub(super) is_ascending: bool,
}

/// Composes the samples of these lengths into bins.
pub(super) fn compose(lengths: &[u32], rule: &BinRule, turn: Turn) -> Vec<Bin> {
    // A sample without tokens takes one, which bounds the samples of a bin.
    let length = |place: &u32| lengths[*place as usize].max(1);
    let mut places: Vec<u32> = (0..).take(lengths.len()).collect();
    places.sort_unstable_by_key(|place| (Reverse(length(place)), *place));
    let alone = places.partition_point(|place| length(place) > rule.budget);
    let rest = places.split_off(alone);
    let alone = places.iter().map(|place| {
        let width = if rule.is_packed { length(place) } else { width(length(place), rule) };
        Bin::new(u64::from(width), vec![*place])
    });
    let mut bins: Vec<Bin> = alone.collect();
    let sized: Vec<(u32, u32)> = rest.into_iter().map(|place| (length(&place), place)).collect();
    match rule.is_packed {
        true => bins.extend(packed(&sized, u64::from(rule.budget))),
        false => bins.extend(padded(&sized, rule)),
    }
    ordered(bins, turn)
}

/// Packs samples (length, place), the longest first, into bins of at most `budget` tokens.
fn packed(sized: &[(u32, u32)], budget: u64) -> Vec<Bin> {
    let sum: u64 = sized.iter().map(|(length, _)| u64::from(*length)).sum();
    let fewest = sum.div_ceil(budget) as usize;
    let tries = fewest..=fewest + fewest / TRIES_PART + 1;
    let evenly = tries.into_iter().find_map(|bins| evenly(sized, bins, budget));
    evenly.unwrap_or_else(|| {
        let best = best_fit(sized, budget);
        self::evenly(sized, best.len(), budget).unwrap_or(best)
    })
}

/// Distributes samples over this many bins, each to the one with the least tokens; None if one
/// exceeds the budget.
fn evenly(sized: &[(u32, u32)], bins: usize, budget: u64) -> Option<Vec<Bin>> {
    let mut made = vec![Vec::new(); bins];
    let mut least: BinaryHeap<_> = (0..bins).map(|bin| Reverse((0_u64, bin))).collect();
    for (length, place) in sized {
        let Reverse((tokens, bin)) = least.pop()?;
        let tokens = tokens + u64::from(*length);
        if tokens > budget || made[bin].len() == BATCH_MAX as usize {
            return None;
        }
        made[bin].push(*place);
        least.push(Reverse((tokens, bin)));
    }
    let tokens = least.into_iter().map(|Reverse((tokens, bin))| (tokens, bin));
    let bins = tokens.map(|(tokens, bin)| Bin::new(tokens, std::mem::take(&mut made[bin])));
    Some(bins.filter(|bin| !bin.samples.is_empty()).collect())
}

/// Puts each sample into the fullest bin that has room for it.
fn best_fit(sized: &[(u32, u32)], budget: u64) -> Vec<Bin> {
    let mut made: Vec<(u64, Vec<u32>)> = Vec::new();
    // Bins by their room.
    let mut rooms: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (length, place) in sized {
        let length = u64::from(*length);
        let found = rooms.range_mut(length..).next().and_then(|(room, bins)| {
            let bin = bins.pop()?;
            Some((*room, bin, bins.is_empty()))
        });
        let (room, bin) = match found {
            Some((room, bin, is_last)) => {
                if is_last {
                    rooms.remove(&room);
                }
                (room, bin)
            }
            None => {
                made.push((0, Vec::new()));
                (budget, made.len() - 1)
            }
        };
        made[bin].0 += length;
        made[bin].1.push(*place);
        if made[bin].1.len() < BATCH_MAX as usize {
            rooms.entry(room - length).or_default().push(bin);
        }
    }
    made.into_iter().map(|(tokens, samples)| Bin::new(tokens, samples)).collect()
}

/// Returns the width of rows whose longest has this length.
fn width(longest: u32, rule: &BinRule) -> u32 {
    let bucket = rule.buckets.partition_point(|width| *width < longest);
    rule.buckets.get(bucket).copied().unwrap_or(longest)
}

/// Cuts samples (length, place), the longest first, into bins of rows of one width.
fn padded(sized: &[(u32, u32)], rule: &BinRule) -> Vec<Bin> {
    let cut = |budget: u64| {
        let (mut cuts, mut from) = (Vec::new(), 0);
        while let Some((longest, _)) = sized.get(from) {
            let width = width(*longest, rule);
            let rows = (budget / u64::from(width)).clamp(1, u64::from(BATCH_MAX)) as usize;
            let mut end = sized.len().min(from + rows);
            if !rule.buckets.is_empty() {
                let own = &sized[from..end];
                end = from + own.partition_point(|(length, _)| self::width(*length, rule) == width);
            }
            cuts.push((width, from..end));
            from = end;
        }
        cuts
    };
    let budget = u64::from(rule.budget);
    let fewest = cut(budget).len();
    // The least budget that needs no more bins fills the last ones like the others.
    let (mut fails, mut fits) = (0, budget);
    while fits - fails > 1 {
        let middle = fails + (fits - fails) / 2;
        match cut(middle).len() <= fewest {
            true => fits = middle,
            false => fails = middle,
        }
    }
    let bins = cut(fits).into_iter().map(|(width, range)| {
        let rows = sized[range].iter().map(|(_, place)| *place).collect::<Vec<_>>();
        Bin::new(u64::from(width) * rows.len() as u64, rows)
    });
    bins.collect()
}

/// Puts bins in an order by size, in which those of nearly one size are shuffled, or come by their
/// first samples.
fn ordered(mut bins: Vec<Bin>, turn: Turn) -> Vec<Bin> {
    bins.sort_unstable_by_key(|bin| (Reverse(bin.tokens), bin.samples.first().copied()));
    let mut runs: Vec<Vec<Bin>> = Vec::new();
    for bin in bins {
        let alike = |run: &Vec<Bin>| {
            run.first().is_some_and(|one| bin.tokens + bin.tokens / ALIKE_PART >= one.tokens)
        };
        match runs.last_mut().filter(|run| alike(run)) {
            Some(run) => run.push(bin),
            None => runs.push(vec![bin]),
        }
    }
    if turn.is_ascending {
        runs.reverse();
    }
    let (mut ordered, mut first) = (Vec::new(), 0);
    for mut run in runs {
        let len = run.len() as u64;
        run.sort_unstable_by_key(|bin| bin.samples.first().copied());
        if !turn.keeps_order {
            let key = turn.key.with(first);
            let places = (0..len).map(|at| permute(key, at, len));
            let mut shuffled: Vec<_> = places.zip(run).collect();
            shuffled.sort_unstable_by_key(|(at, _)| *at);
            run = shuffled.into_iter().map(|(_, bin)| bin).collect();
        }
        first += len;
        ordered.extend(run);
    }
    ordered
}

#[cfg(test)]
pub(super) mod tests;
