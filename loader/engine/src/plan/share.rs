//! A rank's share: which positions of a global batch are its own.
//!
//! Where world | lanes | G every rank takes whole lanes (a node then reads only its lanes'
//! shards); else ranks take contiguous slices. Both cut the same global batch, so what all ranks
//! together read never depends on the choice.

use forebay_wire::message::{Order, Tail};

/// How global batches are dealt to one rank.
#[derive(Debug, Clone)]
pub struct Share {
    batch_size: u64,
    rank: u64,
    world: u64,
    lanes: u64,
    tail: Tail,
}

impl Share {
    /// The share of `order.rank`.
    #[must_use]
    pub fn new(order: &Order, lanes: u32) -> Self {
        Self {
            batch_size: u64::from(order.batch_size),
            rank: u64::from(order.rank),
            world: u64::from(order.world_size),
            lanes: u64::from(lanes),
            tail: order.tail,
        }
    }

    /// Samples in a global batch.
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        self.batch_size * self.world
    }

    /// Batches in an epoch of `total` samples: the same for every rank.
    #[must_use]
    pub fn batches(&self, total: u64) -> u64 {
        match self.tail {
            Tail::Drop => total / self.global_batch(),
            Tail::Even | Tail::Pad => total.div_ceil(self.global_batch()),
        }
    }

    /// Whether this rank reads lane `lane` in whole batches.
    #[must_use]
    pub fn owns(&self, lane: u32) -> bool {
        !self.by_lane() || self.lane_owner(u64::from(lane)) == self.rank
    }

    /// This rank's positions in batch `k`, each with whether it is valid (not padding).
    ///
    /// `total` is the epoch's length where known; without it the batch is taken as full, and the
    /// caller finds the end by asking for the samples.
    pub fn positions(
        &self,
        k: u64,
        total: Option<u64>,
    ) -> Box<dyn Iterator<Item = (u64, bool)> + Send + '_> {
        // Past what can be counted there is no sample either.
        let start = k.saturating_mul(self.global_batch());
        let end = start.saturating_add(self.global_batch());
        match total {
            Some(total) if total < end => Box::new(self.tail_positions(start, total).into_iter()),
            _ if self.by_lane() => Box::new(
                (start..end)
                    .filter(|position| self.lane_owner(position % self.lanes) == self.rank)
                    .map(|position| (position, true)),
            ),
            _ => {
                let from = start.saturating_add(self.rank * self.batch_size);
                let until = from.saturating_add(self.batch_size);
                Box::new((from..until).map(|position| (position, true)))
            }
        }
    }

    fn by_lane(&self) -> bool {
        self.world > 1
            && self.lanes.is_multiple_of(self.world)
            && self.global_batch().is_multiple_of(self.lanes)
    }

    /// Neighbouring lanes share a shard at most, and neighbouring ranks a node, most often.
    fn lane_owner(&self, lane: u64) -> u64 {
        lane / (self.lanes / self.world)
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
            // A rank with nothing repeats one sample, so that every rank steps equally often.
            _ => mine.max(1),
        };
        let mut repeat = (start..total).cycle();
        while (positions.len() as u64) < wanted {
            positions.extend(repeat.next().map(|position| (position, false)));
        }
        positions
    }
}
