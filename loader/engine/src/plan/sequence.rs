//! Global sequence of an epoch: lanes interleaved sample by sample, pass after pass.
//!
//! With counts known beforehand any position is found without earlier ones; with learnt
//! counts the sequence is the same, but played up to there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use forebay_wire::message::Order;

use super::deal::{Deal, permuted};
use super::lane::Mixing;
use super::learning::{Learning, Need};
use super::need::window_per_lane;
use super::permute::Key;

/// Knowledge of a shard's sample count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The shard is still being read and has at least this many samples.
    AtLeast(u64),
    /// The shard has this many samples.
    Exactly(u64),
}

/// Answer to a query for the sample at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Located {
    /// A sample.
    Sample {
        /// The shard, as an index into the list.
        shard: u32,
        /// The sample's place in its shard.
        ordinal: u64,
    },
    /// Unknown: ask again once shard `shard` is known to hold `at_least` samples, or its exact
    /// count is known.
    Need {
        /// The shard, as an index into the list.
        shard: u32,
        /// Number of samples that suffices (or the exact count, whichever comes first).
        at_least: u64,
    },
    /// Past the end: the epoch has `total` samples.
    End {
        /// Samples in the epoch over all ranks.
        total: u64,
    },
}

/// Positions between which a shard is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The shard, as an index into the list.
    pub shard: u32,
    /// The first position that may need it.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Largest number of spans returned of an epoch: four million, as for a hundred thousand shards
/// read forty times.
const SPANS_MAX: usize = 1 << 22;

/// Positions examined per shard that [`Sequence::upcoming`] may return, where it goes by positions:
/// enough to meet nine in ten of as many shards when they come at random.
const LOOKS_PER_SHARD: u64 = 3;

/// Sequence of one epoch. Ascending queries are fastest; any order of queries is right.
#[derive(Debug)]
pub struct Sequence {
    passes: Passes,
    epoch_samples: Option<u64>,
    form: Form,
}

/// Parameters of a pass, except its number.
#[derive(Debug)]
struct Passes {
    mixing: Mixing,
    /// Key of the epoch, from which each pass derives its own.
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
    /// Samples in finished passes.
    before: u64,
    lane: Learning,
}

impl Sequence {
    /// Makes the sequence of `epoch` over `shards` shards dealt to `lanes` lanes: those that
    /// [`super::lanes`] gives for an order that passed [`super::check`].
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

    /// Returns the sample at `position`; `known` gives the knowledge of each shard's count if
    /// counts are not known beforehand.
    ///
    /// In that case, positions in earlier passes of a data set shorter than `epoch_samples` are
    /// found by starting over.
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

    /// Returns the samples in the epoch over all ranks, if counts are known beforehand.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.epoch_samples.or(match &self.form {
            Form::Dealt(dealt) => Some(dealt.total),
            Form::Learnt(_) => None,
        })
    }

    /// Returns the number of lanes.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.passes.lanes
    }

    /// Returns the number of shards that the lanes selected by `mine` have open at once, which the
    /// next batch may read. All of them for a global shuffle.
    #[must_use]
    pub fn open(&self, mine: impl Fn(u32) -> bool) -> u64 {
        let own = (0..self.passes.lanes).filter(|lane| mine(*lane)).count() as u64;
        self.passes.mixing.open(own, self.passes.shards)
    }

    /// Returns the shards in the order of their first need from `position` on, without repeats, at
    /// most `limit`, of the lanes selected by `mine`, in the pass queried last.
    ///
    /// If more shards than `limit` are open at once, they come in the order of the next samples.
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize, mine: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut seen = HashSet::new();
        self.needs(position, limit, mine)
            .map(|(_, shard)| shard)
            .filter(|shard| seen.insert(*shard))
            .take(limit)
            .collect()
    }

    /// Returns the same with the first position that needs, or may need, each shard; with repeats.
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

    /// Returns the spans in which the lanes selected by `mine` need shards; none if counts are
    /// learnt. Of an epoch of very many passes the first [`SPANS_MAX`].
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

    /// Returns the shard at a position of the current pass, if known.
    fn at(&self, position: u64) -> Option<u32> {
        let found = match &self.form {
            Form::Dealt(dealt) => dealt.deal.locate(position),
            Form::Learnt(learnt) => learnt.lane.closed(position.checked_sub(learnt.before)?),
        };
        found.map(|(shard, _)| shard)
    }

    /// Returns the shards of a lane from `position` on, each with the position from which it may be
    /// needed.
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
        // The key of the first of one lane, as if shards were dealt.
        Learning::new(self.mixing.shuffle, self.mixing.window, key.with(0), order)
    }
}

impl Dealt {
    fn locate(&mut self, passes: &Passes, again: bool, position: u64) -> Located {
        // An empty data set never fills an epoch, however often it repeats.
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
            // The same for one that turns out to be empty.
            if !again || self.lane.len() == 0 {
                return Located::End { total: over };
            }
            *self = Self { pass: self.pass + 1, before: over, lane: passes.learn(self.pass + 1) };
        }
    }
}
