//! A rank's share: its positions of a global batch.
//!
//! All ranks together read exactly the positions of the global batch, however it is cut.
//! Where world | lanes | G every rank takes whole lanes, so a node reads only its lanes' shards;
//! else ranks take contiguous slices. A run begins at any position, its *base*: batch k is
//! positions base + kG … base + (k+1)G − 1. By lanes that stays even, because the lane of a
//! position is position mod lanes in every pass, so any G positions in a row hold G / lanes of each
//! lane.

use std::ops::Range;

use forebay_wire::message::{Order, Tail};

/// Distribution of global batches to one rank.
#[derive(Debug, Clone)]
pub struct Share {
    batch_size: u64,
    rank: u64,
    world: u64,
    lanes: u64,
    tail: Tail,
    base: u64,
}

impl Share {
    /// Makes the share of `order.rank` in a run that begins at position `base` of the epoch.
    ///
    /// `lanes` are those of the shared sequence; 1 if no single deal covers it, as in a mixture.
    #[must_use]
    pub fn new(order: &Order, lanes: u32, base: u64) -> Self {
        Self {
            batch_size: u64::from(order.batch_size),
            rank: u64::from(order.rank),
            world: u64::from(order.world_size),
            lanes: u64::from(lanes),
            tail: order.tail,
            base,
        }
    }

    /// Returns the number of samples in a global batch.
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        self.batch_size * self.world
    }

    /// Returns the position after batch `k` of the run for all ranks, if the epoch does not end
    /// before.
    #[must_use]
    pub fn after(&self, k: u64) -> u64 {
        let batches = k.saturating_add(1).saturating_mul(self.global_batch());
        self.base.saturating_add(batches)
    }

    /// Returns the batches from the base to the end of an epoch of `total` samples: the same for
    /// every rank.
    #[must_use]
    pub fn batches(&self, total: u64) -> u64 {
        let left = total.saturating_sub(self.base);
        match self.tail {
            Tail::Drop => left / self.global_batch(),
            Tail::Even | Tail::Pad => left.div_ceil(self.global_batch()),
        }
    }

    /// True if this rank reads lane `lane` in whole batches.
    #[must_use]
    pub fn owns(&self, lane: u32) -> bool {
        !self.takes_whole_lanes() || self.own_lanes().contains(&u64::from(lane))
    }

    /// Returns this rank's positions in batch `k` of the run, each with its validity (false for
    /// padding).
    ///
    /// `total` is the epoch's length if known; without it the batch is assumed full, and the caller
    /// finds the end by asking for the samples.
    pub fn positions(
        &self,
        k: u64,
        total: Option<u64>,
    ) -> Box<dyn Iterator<Item = (u64, bool)> + Send + '_> {
        // Positions beyond the countable range hold no sample either.
        let start = self.base.saturating_add(k.saturating_mul(self.global_batch()));
        let end = start.saturating_add(self.global_batch());
        match total {
            Some(total) if total < end => Box::new(self.tail_positions(start, total).into_iter()),
            _ if self.takes_whole_lanes() => {
                // Round by round over all lanes: the first and last rounds may be cut.
                let (own, lanes) = (self.own_lanes(), self.lanes);
                let rounds = start / lanes..=end.saturating_sub(1) / lanes;
                let mine = rounds.flat_map(move |round| {
                    own.clone().map(move |lane| (round * lanes).saturating_add(lane))
                });
                let inside = mine.filter(move |position| (start..end).contains(position));
                Box::new(inside.map(|position| (position, true)))
            }
            _ => {
                let from = start.saturating_add(self.rank * self.batch_size);
                let until = from.saturating_add(self.batch_size);
                Box::new((from..until).map(|position| (position, true)))
            }
        }
    }

    /// Returns true if each rank takes whole lanes, and false if it takes slices of all of them.
    #[must_use]
    pub fn takes_whole_lanes(&self) -> bool {
        self.world > 1
            && self.lanes.is_multiple_of(self.world)
            && self.global_batch().is_multiple_of(self.lanes)
    }

    /// Returns consecutive lanes: neighbouring lanes share at most a shard, and neighbouring ranks
    /// usually share a node.
    fn own_lanes(&self) -> Range<u64> {
        let each = self.lanes / self.world;
        self.rank * each..(self.rank + 1) * each
    }

    fn tail_positions(&self, start: u64, total: u64) -> Vec<(u64, bool)> {
        let left = total.saturating_sub(start);
        if left == 0 || self.tail == Tail::Drop {
            return Vec::new();
        }
        let (each, longer) = (left / self.world, left % self.world);
        let mine = each + u64::from(self.rank < longer);
        let from = start + self.rank * each + self.rank.min(longer);
        let mut positions: Vec<_> = (from..from + mine).map(|position| (position, true)).collect();
        let wanted = match self.tail {
            Tail::Pad => self.batch_size,
            // A rank with nothing repeats one sample, so that every rank has the same number of
            // steps.
            _ => mine.max(1),
        };
        let mut repeat = (start..total).cycle();
        while (positions.len() as u64) < wanted {
            positions.extend(repeat.next().map(|position| (position, false)));
        }
        positions
    }
}
