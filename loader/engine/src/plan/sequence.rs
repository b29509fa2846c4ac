//! The global sequence of an epoch: lanes interleaved sample by sample, pass after pass.

use forebay_wire::message::{Order, Shuffle};

use super::lane::{Lane, Mix, Need, Piece};
use super::permute::{Key, permute};

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

/// One epoch's sequence. Ask in ascending order for speed; any order is right.
#[derive(Debug)]
pub struct Sequence {
    order: Order,
    shards: u32,
    counts: Option<Vec<u64>>,
    lanes: u32,
    epoch: u64,
    /// Samples in the passes that are over, and the pass that is under way.
    before: u64,
    pass: u64,
    current: Vec<Lane>,
}

impl Sequence {
    /// The sequence of `epoch` over `shards` shards dealt to `lanes` lanes.
    #[must_use]
    pub fn new(
        order: &Order,
        shards: u32,
        counts: Option<Vec<u64>>,
        lanes: u32,
        epoch: u64,
    ) -> Self {
        let mut sequence = Self {
            order: order.clone(),
            shards,
            counts,
            lanes,
            epoch,
            before: 0,
            pass: 0,
            current: Vec::new(),
        };
        sequence.current = sequence.deal();
        sequence
    }

    /// Which sample is at `position`, `known` telling what is known of each shard.
    ///
    /// Positions of earlier passes of a data set shorter than `epoch_samples` are found by
    /// starting over; an epoch is walked forward in practice.
    pub fn locate(&mut self, position: u64, known: &dyn Fn(u32) -> Known) -> Located {
        if let Some(total) = self.order.epoch_samples
            && position >= total
        {
            return Located::End { total };
        }
        if position < self.before {
            (self.before, self.pass) = (0, 0);
            self.current = self.deal();
        }
        let lanes = u64::from(self.lanes);
        loop {
            let place = position - self.before;
            let lane = usize::try_from(place % lanes).expect("lanes fit in u32");
            match self.current[lane].locate(place / lanes, known) {
                Ok(Some((shard, ordinal))) => return Located::Sample { shard, ordinal },
                Err(Need { shard, at_least }) => return Located::Need { shard, at_least },
                Ok(None) => {}
            }
            let pass_len = self.pass_len();
            let over = self.before + pass_len;
            // An empty data set never fills an epoch, however often it is played.
            if self.order.epoch_samples.is_none() || pass_len == 0 {
                return Located::End { total: over };
            }
            self.before = over;
            self.pass += 1;
            self.current = self.deal();
        }
    }

    /// Samples in the epoch over all ranks, where counts are known beforehand.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.order.epoch_samples.or_else(|| self.counts.as_ref().map(|counts| counts.iter().sum()))
    }

    /// Shards in the order in which they are first needed from `position` on, without repeats, at
    /// most `limit` of them, of the lanes for which `mine` holds.
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize, mine: impl Fn(u32) -> bool) -> Vec<u32> {
        let lanes = u64::from(self.lanes);
        let place = position.saturating_sub(self.before) / lanes;
        let mut heads: Vec<_> = (0..self.lanes)
            .filter(|lane| mine(*lane))
            .map(|lane| self.current[lane as usize].upcoming(place).peekable())
            .collect();
        let mut seen = std::collections::HashSet::new();
        let mut found = Vec::new();
        while found.len() < limit {
            let next = heads
                .iter_mut()
                .filter_map(|head| head.peek().map(|(place, _)| *place).map(|place| (place, head)))
                .min_by_key(|(place, _)| *place);
            let Some((_, head)) = next else { break };
            if let Some((_, shard)) = head.next()
                && seen.insert(shard)
            {
                found.push(shard);
            }
        }
        found
    }

    fn pass_len(&self) -> u64 {
        match &self.counts {
            Some(counts) => counts.iter().sum(),
            None => self.current.iter().map(Lane::len).sum(),
        }
    }

    /// Deals the permuted shards of a pass to the lanes, at sample counts that differ by at most
    /// one; a shard on a border is cut.
    fn deal(&self) -> Vec<Lane> {
        let key = Key::new(self.order.seed).with(self.epoch).with(self.pass);
        let shards = (0..self.shards).map(|i| match self.order.shuffle {
            Shuffle::None => i,
            Shuffle::Window | Shuffle::Global => {
                let to = permute(key.with(u64::MAX), u64::from(i), u64::from(self.shards));
                u32::try_from(to).expect("a permutation of u32 stays in u32")
            }
        });
        let lanes = u64::from(self.lanes);
        let window = u64::from(self.order.window).div_ceil(lanes);
        let mix = |lane: u64| Mix {
            shuffle: self.order.shuffle,
            window,
            stagger: lane * window / lanes,
            key: key.with(lane),
        };
        let Some(counts) = &self.counts else {
            let pieces = shards.map(|shard| Piece { shard, from: 0, len: None });
            return vec![Lane::new(mix(0), pieces)];
        };
        let mut rest = shards.map(|shard| (shard, 0, counts[shard as usize])).peekable();
        let total: u64 = counts.iter().sum();
        (0..lanes)
            .map(|lane| {
                let mut want = total / lanes + u64::from(lane < total % lanes);
                let mut pieces = Vec::new();
                while want > 0 {
                    let Some((shard, from, left)) = rest.peek_mut() else { break };
                    // An empty shard is a piece too: it counts in a window, as it does where
                    // counts are learnt on the way.
                    let len = want.min(*left);
                    pieces.push(Piece { shard: *shard, from: *from, len: Some(len) });
                    (*from, *left, want) = (*from + len, *left - len, want - len);
                    if *left == 0 {
                        rest.next();
                    }
                }
                Lane::new(mix(lane), pieces)
            })
            .collect()
    }
}
