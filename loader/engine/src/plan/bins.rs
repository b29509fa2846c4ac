//! Bins: the order of an epoch, cut into batches by tokens.
//!
//! The order is cut into windows of a fixed number of samples, and each window is composed into
//! bins by itself. So bins depend on the order and the rule alone, never on world or rank: step k
//! takes the next bins of the sequence, one for each rank.
//!
//! ```text
//!   order    0 ………………… │ lookahead ………… │ 2 · lookahead …… total
//!   bins     b0 b1 … bk │ b0 b1 … bm    │ …
//!   position start + number of bins taken of the window
//! ```
//! A window has no more bins than samples, so one number says how far an epoch came, in any world.

mod compose;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Binning, Order, Shuffle, Tail};

use super::permute::Key;
use super::{BATCH_MAX, Epoch, Known, Located};
use compose::{Bin, Turn, compose};

/// Separates the keys of bins from those of passes and streams.
const BINS: u64 = u64::MAX - 1;

/// Samples whose lengths a job may have: they take 4 bytes each in the memory of the daemon, and up
/// to 3 in a message, which must be below [`forebay_wire::frame::MAX_FRAME`].
pub const LENGTHS_MAX: usize = 1 << 26;

/// Samples that are composed together, at most: as many as a batch may have.
const LOOKAHEAD_MAX: u32 = BATCH_MAX;

/// Widths of padded rows, at most: each is a shape that a model is compiled for.
const BUCKETS_MAX: usize = 1024;

/// A rule and the lengths of the samples that a job reads.
#[derive(Debug)]
pub struct Lengths {
    binning: Arc<Binning>,
    counts: Vec<u64>,
    /// Place of the first sample of each shard in `lengths`.
    firsts: Vec<u64>,
}

impl Lengths {
    /// Takes the lengths of samples of shards with these counts.
    ///
    /// # Errors
    /// `Invalid` for a rule that makes no sense, and for lengths of another job.
    pub fn new(binning: Arc<Binning>, counts: Option<&[u64]>) -> Result<Self> {
        let Binning { rule, lengths } = &*binning;
        let invalid = |what: &str, option: &str, advice: &str| {
            Err(Error::new(ErrorKind::Invalid, what).at("option", option).advise(advice))
        };
        if rule.budget == 0 {
            return invalid("budget is 0", "budget", "give the tokens of a batch");
        }
        if !(1..=LOOKAHEAD_MAX).contains(&rule.lookahead) {
            let advice = "give 1 to 1048576 samples";
            return invalid("lookahead is out of range", "lookahead", advice);
        }
        let ascend = rule.buckets.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend || rule.buckets.len() > BUCKETS_MAX || rule.buckets.first() == Some(&0) {
            let advice = "give at most 1024 ascending widths above 0";
            return invalid("buckets are no ascending widths", "buckets", advice);
        }
        let Some(counts) = counts else {
            let advice = "give manifest= with a member index";
            return invalid("batches by tokens need sample counts", "manifest", advice);
        };
        let mut next = 0_u64;
        let firsts = counts.iter().map(|count| {
            let first = next;
            next = next.saturating_add(*count);
            first
        });
        let firsts = firsts.collect();
        if next != lengths.len() as u64 || lengths.len() > LENGTHS_MAX {
            let error = Error::new(ErrorKind::Invalid, "the lengths are not those of the samples");
            return Err(error
                .at("samples", next)
                .at("lengths", lengths.len())
                .at("limit", LENGTHS_MAX)
                .advise("give one length for each sample, and no more samples than the limit"));
        }
        Ok(Self { counts: counts.to_vec(), firsts, binning })
    }

    /// Returns the tokens of a sample: that number `nth` of those of its shard that the job reads.
    #[must_use]
    pub fn of(&self, shard: u32, nth: u64) -> u32 {
        self.binning.lengths[(self.firsts[shard as usize] + nth) as usize]
    }

    /// Returns the number of samples that are composed together.
    #[must_use]
    pub fn lookahead(&self) -> u64 {
        u64::from(self.binning.rule.lookahead)
    }
}

/// Bins of one epoch.
#[derive(Debug)]
pub struct Bins {
    epoch: Epoch,
    total: u64,
    lengths: Arc<Lengths>,
    key: Key,
    /// True if bins of equal size come in the order of their first samples.
    keeps_order: bool,
    /// The window composed last.
    composed: Option<(u64, Vec<Bin>)>,
    /// Number of bins of the windows composed so far.
    counts: HashMap<u64, u64>,
    /// The window found last, for a base: its number, and the bins between.
    found: Option<(u64, u64, u64)>,
}

/// Distribution of bins to one rank.
#[derive(Debug, Clone, Copy)]
pub struct Taker {
    /// Rank, below `world`.
    pub rank: u64,
    /// Ranks that share the epoch.
    pub world: u64,
    /// Treatment of the last step.
    pub tail: Tail,
}

/// A batch of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Positions of its samples, with their validity (false for padding).
    pub samples: Vec<(u64, bool)>,
    /// First sample of the order that a later batch may still need.
    pub behind: u64,
}

impl Taker {
    /// Returns the part of a rank.
    #[must_use]
    pub fn of(order: &Order) -> Self {
        let Order { rank, world_size, tail, .. } = order;
        Self { rank: u64::from(*rank), world: u64::from(*world_size), tail: *tail }
    }
}

impl Bins {
    /// Cuts epoch `number` of an order whose sample counts are known.
    ///
    /// # Errors
    /// `Invalid` for an epoch of unknown length.
    pub fn new(epoch: Epoch, lengths: Arc<Lengths>, order: &Order, number: u64) -> Result<Self> {
        let Some(total) = epoch.total() else {
            let error = Error::new(ErrorKind::Invalid, "batches by tokens need sample counts");
            return Err(error.advise("give manifest= with a member index"));
        };
        let key = Key::new(order.seed).with(number).with(BINS);
        let keeps_order = order.shuffle == Shuffle::None;
        let (counts, composed, found) = Default::default();
        Ok(Self { epoch, total, lengths, key, keeps_order, composed, counts, found })
    }

    /// Returns the number of windows. The last one has the rest as well, so that it is none of a
    /// few samples.
    fn windows(&self) -> u64 {
        (self.total / self.lengths.lookahead()).max(1)
    }

    /// Returns the window of a position, and the bins of it that are taken there.
    fn place(&self, position: u64) -> (u64, u64) {
        let lookahead = self.lengths.lookahead();
        let window = (position / lookahead).min(self.windows() - 1);
        (window, position - window * lookahead)
    }

    /// Returns the positions of a window.
    fn span(&self, window: u64) -> Range<u64> {
        let lookahead = self.lengths.lookahead();
        let end = if window + 1 == self.windows() { self.total } else { (window + 1) * lookahead };
        window * lookahead..end
    }

    /// Returns the bins of a window.
    fn of(&mut self, window: u64) -> &[Bin] {
        if self.composed.as_ref().is_none_or(|(number, _)| *number != window) {
            let span = self.span(window);
            let counts = &self.lengths.counts;
            let known = |shard: u32| Known::Exactly(counts[shard as usize]);
            // A stream that turns out to be empty ends the epoch early.
            let lengths = span.clone().map_while(|at| match self.epoch.locate(at, &known) {
                Located::Sample { shard, ordinal } => Some(self.lengths.of(shard, ordinal)),
                Located::Need { .. } | Located::End { .. } => None,
            });
            let lengths: Vec<u32> = lengths.collect();
            let turn = Turn {
                key: self.key.with(window),
                keeps_order: self.keeps_order,
                // Every other window begins with the sizes with which the one before ended.
                is_ascending: window % 2 == 1,
            };
            let bins = compose(&lengths, &self.lengths.binning.rule, turn);
            self.counts.insert(window, bins.len() as u64);
            self.composed = Some((window, bins));
        }
        self.composed.as_ref().map_or(&[], |(_, bins)| bins)
    }

    fn count(&mut self, window: u64) -> u64 {
        match self.counts.get(&window) {
            Some(count) => *count,
            None => self.of(window).len() as u64,
        }
    }

    /// Returns the window and the place in it of bin `number` from position `base` on; None past
    /// the end. Windows in between are composed once to count their bins.
    fn find(&mut self, base: u64, number: u64) -> Option<(u64, u64)> {
        let (first, taken) = self.place(base);
        let number = number.checked_add(taken)?;
        let (mut window, mut before) = match self.found {
            Some((of, window, before)) if of == base && before <= number => (window, before),
            _ => (first, 0),
        };
        while window < self.windows() {
            let count = self.count(window);
            self.found = Some((base, window, before));
            // A base beyond the bins of its window is the start of the next.
            let end = if window == first { count.max(taken) } else { before + count };
            if number < before + count {
                return Some((window, number - before));
            }
            (window, before) = (window + 1, end);
        }
        None
    }

    /// Returns the position after `number` bins from position `base` on, the epoch's length at
    /// most.
    pub fn after(&mut self, base: u64, number: u64) -> u64 {
        match self.find(base, number) {
            Some((window, taken)) => self.span(window).start + taken,
            None => self.total,
        }
    }

    /// Returns the number of bins from position `base` to the end.
    pub fn left(&mut self, base: u64) -> u64 {
        let (first, taken) = self.place(base);
        let rest = self.count(first).saturating_sub(taken);
        (first + 1..self.windows()).fold(rest, |sum, window| sum + self.count(window))
    }

    /// Returns the number of steps from position `base` to the end, the same for every rank.
    pub fn steps(&mut self, base: u64, taker: Taker) -> u64 {
        let left = self.left(base);
        match taker.tail {
            Tail::Drop => left / taker.world,
            Tail::Even | Tail::Pad => left.div_ceil(taker.world),
        }
    }

    /// Returns true if an epoch is over before step `step` from position `base` on. It composes no
    /// window behind that step's.
    pub fn is_over(&mut self, base: u64, step: u64, taker: Taker) -> bool {
        let needed = if taker.tail == Tail::Drop { taker.world - 1 } else { 0 };
        let last = step.checked_mul(taker.world).and_then(|first| first.checked_add(needed));
        last.is_none_or(|last| self.find(base, last).is_none())
    }

    /// Returns the batch that a rank takes at step `step` from position `base` on; None past the
    /// last.
    pub fn take(&mut self, base: u64, step: u64, taker: Taker) -> Option<Taken> {
        let Taker { rank, world, tail } = taker;
        let first = step.checked_mul(world)?;
        // In the order of the bins, so that each window is composed once.
        let (window, _) = self.find(base, first)?;
        let behind = self.span(window).start;
        let own = self.find(base, first.checked_add(rank)?);
        let own = own.map(|(window, place)| self.positions(window, place));
        let is_whole = self.find(base, first.checked_add(world - 1)?).is_some();
        match (own, tail) {
            (_, Tail::Drop) if !is_whole => None,
            (Some(positions), _) => {
                let samples = positions.into_iter().map(|position| (position, true)).collect();
                Some(Taken { samples, behind })
            }
            (None, _) => {
                // The epoch ends in this step: a rank without a bin repeats one of another.
                let there = (0..rank).take_while(|at| self.find(base, first + at).is_some());
                let there = there.count().max(1) as u64;
                let (window, place) = self.find(base, first + rank % there)?;
                let mut positions = self.positions(window, place);
                if tail != Tail::Pad {
                    positions.truncate(1);
                }
                let samples = positions.into_iter().map(|position| (position, false)).collect();
                Some(Taken { samples, behind })
            }
        }
    }

    /// Returns the positions of the samples of a bin.
    fn positions(&mut self, window: u64, place: u64) -> Vec<u64> {
        let start = self.span(window).start;
        let bin = &self.of(window)[place as usize];
        bin.samples.iter().map(|sample| start + u64::from(*sample)).collect()
    }

    /// Returns the number of samples that are composed together.
    #[must_use]
    pub fn lookahead(&self) -> u64 {
        self.lengths.lookahead()
    }

    /// Returns the end of the samples that are composed together with those at position `base`:
    /// if bins of them are taken already, no sample before it may change.
    pub fn horizon(&mut self, base: u64) -> u64 {
        let at = self.after(base, 0);
        let (window, taken) = self.place(at);
        let span = self.span(window);
        if taken == 0 { span.start } else { span.end }
    }

    /// Returns the samples of the epoch over all ranks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests;
