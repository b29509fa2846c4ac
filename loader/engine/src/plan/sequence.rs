//! The global sequence of an epoch: lanes interleaved sample by sample, pass after pass.
//!
//! One rule: with counts known beforehand any position is found without what comes before it; where
//! they are learnt on the way, the sequence is the same, only played up to there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use forebay_wire::message::Order;

use super::deal::{Deal, permuted};
use super::lane::Mixing;
use super::learning::{Learning, Need};
use super::need::window_per_lane;
use super::permute::Key;

/// What is known of a shard's sample count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The shard is still being read and has this many samples or more.
    AtLeast(u64),
    /// The shard has this many samples.
    Exactly(u64),
}

/// The answer to "which sample is at this position?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Located {
    /// This one.
    Sample {
        /// The shard, as an index into the list.
        shard: u32,
        /// The sample's place in its shard.
        ordinal: u64,
    },
    /// Ask again once shard `shard` is known to hold `at_least` samples, or its exact count is.
    Need {
        /// The shard, as an index into the list.
        shard: u32,
        /// Samples that would do (or the exact count, whichever comes first).
        at_least: u64,
    },
    /// None: the epoch has `total` samples.
    End {
        /// Samples in the epoch over all ranks.
        total: u64,
    },
}

/// A shard that is needed from one position on, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The shard, as an index into the list.
    pub shard: u32,
    /// The first position that may need it.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Spans of an epoch that are told, at most: four million, as of a hundred thousand shards read forty times.
const SPANS_MAX: usize = 1 << 22;

/// Positions looked at for each shard that [`Sequence::upcoming`] may name, where it goes by
/// positions: enough to meet nine in ten of as many shards as there are when they come at random.
const LOOKS_PER_SHARD: u64 = 3;

/// One epoch's sequence. Ask in ascending order for speed; any order is right.
#[derive(Debug)]
pub struct Sequence {
    passes: Passes,
    epoch_samples: Option<u64>,
    form: Form,
}

/// What makes a pass, but for its number.
#[derive(Debug)]
struct Passes {
    mixing: Mixing,
    /// The key of the epoch, in which each pass has its own.
    key: Key,
    shards: u32,
    lanes: u32,
}

#[derive(Debug)]
enum Form {
    Dealt(Dealt),
    Learnt(Learnt),
}

/// Counts are known: a pass is found by division.
#[derive(Debug)]
struct Dealt {
    counts: Vec<u64>,
    total: u64,
    pass: u64,
    deal: Deal,
}

/// Counts are learnt: passes are played one after another.
#[derive(Debug)]
struct Learnt {
    pass: u64,
    /// Samples in the passes that are over.
    before: u64,
    lane: Learning,
}

impl Sequence {
    /// The sequence of `epoch` over `shards` shards dealt to `lanes` lanes: those that
    /// [`super::lanes`] gives for what [`super::check`] took.
    #[must_use]
    pub fn new(
        order: &Order,
        shards: u32,
        counts: Option<Vec<u64>>,
        lanes: u32,
        epoch: u64,
    ) -> Self {
        Self::with_key(order, shards, counts, lanes, Key::new(order.seed).with(epoch))
    }

    pub(super) fn with_key(
        order: &Order,
        shards: u32,
        counts: Option<Vec<u64>>,
        lanes: u32,
        key: Key,
    ) -> Self {
        let mixing = Mixing {
            shuffle: order.shuffle,
            window: window_per_lane(order.window, lanes),
            lanes: u64::from(lanes),
        };
        let passes = Passes { mixing, key, shards, lanes };
        let form = match counts {
            Some(counts) => {
                let deal = passes.deal(&counts, 0, 0);
                Form::Dealt(Dealt { total: counts.iter().sum(), counts, pass: 0, deal })
            }
            None => Form::Learnt(Learnt { pass: 0, before: 0, lane: passes.learn(0) }),
        };
        Self { passes, epoch_samples: order.epoch_samples, form }
    }

    /// Which sample is at `position`, `known` telling what is known of each shard where counts are
    /// not known beforehand.
    ///
    /// There, positions of earlier passes of a data set shorter than `epoch_samples` are found by
    /// starting over.
    pub fn locate(&mut self, position: u64, known: &dyn Fn(u32) -> Known) -> Located {
        if let Some(total) = self.epoch_samples
            && position >= total
        {
            return Located::End { total };
        }
        let again = self.epoch_samples.is_some();
        match &mut self.form {
            Form::Dealt(dealt) => dealt.locate(&self.passes, again, position),
            Form::Learnt(learnt) => learnt.locate(&self.passes, again, position, known),
        }
    }

    /// Samples in the epoch over all ranks, where counts are known beforehand.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.epoch_samples.or(match &self.form {
            Form::Dealt(dealt) => Some(dealt.total),
            Form::Learnt(_) => None,
        })
    }

    /// The lanes it is dealt to.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.passes.lanes
    }

    /// How many shards the lanes for which `mine` holds have open at once: those that the next batch
    /// may read of. All of them for a global shuffle.
    #[must_use]
    pub fn open(&self, mine: impl Fn(u32) -> bool) -> u64 {
        let own = (0..self.passes.lanes).filter(|lane| mine(*lane)).count() as u64;
        self.passes.mixing.open(own, self.passes.shards)
    }

    /// Shards in the order in which they are first needed from `position` on, without repeats, at
    /// most `limit` of them, of the lanes for which `mine` holds: those of the pass that was asked
    /// for last.
    ///
    /// Where more shards are open at once than `limit`, they come as the next samples need them.
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize, mine: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut seen = HashSet::new();
        self.needs(position, limit, mine)
            .map(|(_, shard)| shard)
            .filter(|shard| seen.insert(*shard))
            .take(limit)
            .collect()
    }

    /// The same with the position at which each is first needed, or from which on it may be;
    /// repeats are left in.
    pub(super) fn needs<'a>(
        &'a self,
        position: u64,
        limit: usize,
        mine: impl Fn(u32) -> bool + 'a,
    ) -> impl Iterator<Item = (u64, u32)> + 'a {
        let own: Vec<u32> = (0..self.passes.lanes).filter(|lane| mine(*lane)).collect();
        let open = self.passes.mixing.open(own.len() as u64, self.passes.shards);
        let looks = if open > limit as u64 { limit as u64 * LOOKS_PER_SHARD } else { 0 };
        let lanes = u64::from(self.passes.lanes);
        let soonest = (position..position.saturating_add(looks))
            .filter(move |position| mine(u32::try_from(position % lanes).expect("below lanes")))
            .map_while(|position| Some((position, self.at(position)?)));
        let mut heads: Vec<_> = own.into_iter().map(|lane| self.ahead(lane, position)).collect();
        let mut next: BinaryHeap<_> = heads
            .iter_mut()
            .enumerate()
            .filter_map(|(head, shards)| shards.next().map(|need| Reverse((need, head))))
            .collect();
        soonest.chain(std::iter::from_fn(move || {
            let Reverse((need, head)) = next.pop()?;
            next.extend(heads[head].next().map(|need| Reverse((need, head))));
            Some(need)
        }))
    }

    /// From where to where the lanes for which `mine` holds need shards; none where counts are learnt. Of an epoch of
    /// very many passes the first [`SPANS_MAX`].
    pub(super) fn spans(&self, mine: impl Fn(u32) -> bool) -> Option<Vec<Span>> {
        let Form::Dealt(Dealt { counts, total, .. }) = &self.form else { return None };
        let end = self.epoch_samples.unwrap_or(*total);
        let own: Vec<u32> = (0..self.passes.lanes).filter(|lane| mine(*lane)).collect();
        let mut spans = Vec::new();
        for pass in 0..end.checked_div(*total).map_or(0, |whole| whole + 1) {
            let before = pass * total;
            if before >= end || spans.len() >= SPANS_MAX {
                break;
            }
            let deal = self.passes.deal(counts, pass, before);
            let all = own.iter().flat_map(|lane| deal.spans(*lane));
            let inside = all.filter(|(start, ..)| *start < end);
            spans.extend(inside.map(|(start, past, shard)| Span {
                shard,
                start,
                end: past.min(end),
            }));
        }
        spans.sort_unstable_by_key(|span| (span.start, span.end, span.shard));
        Some(spans)
    }

    /// The shard at a position of the pass under way, if that is known.
    fn at(&self, position: u64) -> Option<u32> {
        let found = match &self.form {
            Form::Dealt(dealt) => dealt.deal.locate(position),
            Form::Learnt(learnt) => learnt.lane.closed(position.checked_sub(learnt.before)?),
        };
        found.map(|(shard, _)| shard)
    }

    /// The shards of a lane from `position` on, with the position from which each may be needed.
    fn ahead(&self, lane: u32, position: u64) -> Box<dyn Iterator<Item = (u64, u32)> + '_> {
        match &self.form {
            Form::Dealt(dealt) => Box::new(dealt.deal.upcoming(lane, position)),
            Form::Learnt(Learnt { before, lane, .. }) => {
                let needs = lane.upcoming(position.saturating_sub(*before));
                Box::new(needs.map(move |(place, shard)| (before + place, shard)))
            }
        }
    }
}

impl Passes {
    fn deal(&self, counts: &[u64], pass: u64, before: u64) -> Deal {
        Deal::new(self.mixing, self.lanes, self.key.with(pass), counts, before)
    }

    fn learn(&self, pass: u64) -> Learning {
        let key = self.key.with(pass);
        let order = permuted(self.mixing.shuffle, key, self.shards);
        // The key of the lane, as if it were dealt to: the first of one.
        Learning::new(self.mixing.shuffle, self.mixing.window, key.with(0), order)
    }
}

impl Dealt {
    fn locate(&mut self, passes: &Passes, again: bool, position: u64) -> Located {
        // An empty data set never fills an epoch, however often it is played.
        let Some(pass) = position.checked_div(self.total) else { return Located::End { total: 0 } };
        if pass > 0 && !again {
            return Located::End { total: self.total };
        }
        if pass != self.pass {
            self.deal = passes.deal(&self.counts, pass, pass * self.total);
            self.pass = pass;
        }
        let found = self.deal.locate(position);
        let (shard, ordinal) = found.expect("a pass has each position between two of its edges");
        Located::Sample { shard, ordinal }
    }
}

impl Learnt {
    fn locate(
        &mut self,
        passes: &Passes,
        again: bool,
        position: u64,
        known: &dyn Fn(u32) -> Known,
    ) -> Located {
        if position < self.before {
            *self = Self { pass: 0, before: 0, lane: passes.learn(0) };
        }
        loop {
            match self.lane.locate(position - self.before, known) {
                Ok(Some((shard, ordinal))) => return Located::Sample { shard, ordinal },
                Err(Need { shard, at_least }) => return Located::Need { shard, at_least },
                Ok(None) => {}
            }
            let over = self.before + self.lane.len();
            // Nor does one that turns out to be empty.
            if !again || self.lane.len() == 0 {
                return Located::End { total: over };
            }
            *self = Self { pass: self.pass + 1, before: over, lane: passes.learn(self.pass + 1) };
        }
    }
}
