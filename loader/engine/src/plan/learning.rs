//! One pass whose counts are learnt on the way: a single lane that closes block after block.
//!
//! It gives the same order as [`super::deal`] with one lane, and never asks for a count
//! before the order needs it. Closed blocks are kept.

use std::collections::VecDeque;

use forebay_wire::message::Shuffle;

use super::lane::FIRST_BLOCK;
use super::permute::{Key, permute};
use super::sequence::Known;

/// Count that the lane needs before it can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) shard: u32,
    pub(super) at_least: u64,
}

#[derive(Debug)]
struct Block {
    start: u64,
    len: u64,
    /// (samples of the block before this piece, shard, first ordinal)
    pieces: Vec<(u64, u32, u64)>,
}

#[derive(Debug, Clone, Copy)]
enum Ramp {
    /// Blocks of this many samples, inside the first shard.
    Samples { size: u64, taken: u64 },
    /// Blocks of this many whole shards.
    Shards { count: u64 },
}

#[derive(Debug)]
pub(super) struct Learning {
    shuffle: Shuffle,
    /// Whole shards mixed at once.
    window: u64,
    key: Key,
    /// Shards in no block yet. Empty shards are dropped once their count is known.
    shards: VecDeque<u32>,
    /// Number of them, from the first, with known counts.
    learnt: usize,
    ramp: Ramp,
    blocks: Vec<Block>,
    len: u64,
}

impl Learning {
    pub(super) fn new(
        shuffle: Shuffle,
        window: u64,
        key: Key,
        shards: impl Iterator<Item = u32>,
    ) -> Self {
        Self {
            shuffle,
            window,
            key,
            shards: shards.collect(),
            learnt: 0,
            ramp: Ramp::Samples { size: FIRST_BLOCK, taken: 0 },
            blocks: Vec::new(),
            len: 0,
        }
    }

    /// Returns the sample at `place`: `Ok(None)` past the end, `Err` while too little is known.
    pub(super) fn locate(
        &mut self,
        place: u64,
        known: &dyn Fn(u32) -> Known,
    ) -> Result<Option<(u32, u64)>, Need> {
        while place >= self.len {
            if self.shuffle == Shuffle::None
                && let Some(shard) = self.shards.front().copied()
            {
                // In list order a sample is known before its shard's end is.
                let ordinal = place - self.len;
                let (Known::AtLeast(have) | Known::Exactly(have)) = known(shard);
                if ordinal < have {
                    return Ok(Some((shard, ordinal)));
                }
            }
            if !self.grow(place, known)? {
                return Ok(None);
            }
        }
        Ok(self.closed(place))
    }

    /// Returns the sample at `place`, if its block is closed.
    pub(super) fn closed(&self, place: u64) -> Option<(u32, u64)> {
        let at = self.blocks.partition_point(|block| block.start + block.len <= place);
        let block = self.blocks.get(at)?;
        let within = place - block.start;
        let drawn = match self.shuffle {
            Shuffle::None => within,
            Shuffle::Window | Shuffle::Global => {
                permute(self.key.with(at as u64), within, block.len)
            }
        };
        let piece = block.pieces.partition_point(|(before, ..)| *before <= drawn) - 1;
        let (before, shard, from) = block.pieces[piece];
        Some((shard, from + (drawn - before)))
    }

    /// Returns the number of samples known to be in the lane.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the shards needed from `place` on, each with a place not beyond its first: those of
    /// closed blocks, then those whose counts come next, then the rest.
    pub(super) fn upcoming(&self, place: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let at = self.blocks.partition_point(|block| block.start + block.len <= place);
        let blocked = self.blocks[at..].iter().flat_map(move |block| {
            let in_order = self.shuffle == Shuffle::None;
            block.pieces.iter().map(move |(before, shard, _)| {
                (if in_order { block.start + before } else { block.start }, *shard)
            })
        });
        let (learnt, next) = (self.shards.range(..self.learnt), self.shards.range(self.learnt..));
        blocked.chain(next.chain(learnt).map(|shard| (self.len, *shard)))
    }

    /// Closes one more block, on the way to `place`; false at the end.
    fn grow(&mut self, place: u64, known: &dyn Fn(u32) -> Known) -> Result<bool, Need> {
        while let Some(shard) = self.shards.front().copied()
            && known(shard) == Known::Exactly(0)
        {
            self.drop_front(1);
        }
        let Some(first) = self.shards.front().copied() else { return Ok(false) };
        match (self.shuffle, self.ramp) {
            (Shuffle::None, _) => self.close_shards(1, known, place - self.len + 1)?,
            (Shuffle::Global, _) => self.close_shards(u64::MAX, known, u64::MAX)?,
            (Shuffle::Window, Ramp::Samples { size, taken }) => {
                self.close_ramp(first, size, taken, known)?;
            }
            (Shuffle::Window, Ramp::Shards { count }) => {
                self.close_shards(count, known, u64::MAX)?;
                self.ramp = Ramp::Shards { count: (count * 2).min(self.window) };
            }
        }
        Ok(true)
    }

    /// Closes a block of `size` samples inside the first shard.
    fn close_ramp(
        &mut self,
        shard: u32,
        size: u64,
        taken: u64,
        known: &dyn Fn(u32) -> Known,
    ) -> Result<(), Need> {
        let len = match known(shard) {
            // A shard replaced by a shorter one meanwhile ends early.
            Known::Exactly(count) => size.min(count.saturating_sub(taken)),
            Known::AtLeast(have) if have < taken + size => {
                return Err(Need { shard, at_least: taken + size });
            }
            Known::AtLeast(_) => size,
        };
        self.close(vec![(0, shard, taken)], len);
        self.ramp = Ramp::Samples { size: size * 2, taken: taken + len };
        if known(shard) == Known::Exactly(taken + len) {
            self.drop_front(1);
            self.ramp = Ramp::Shards { count: 1 };
        }
        Ok(())
    }

    /// Closes a block of the next `count` non-empty shards, or of the remaining ones.
    fn close_shards(
        &mut self,
        count: u64,
        known: &dyn Fn(u32) -> Known,
        at_least: u64,
    ) -> Result<(), Need> {
        let mut pieces = Vec::new();
        let (mut len, mut taken) = (0, 0);
        for shard in &self.shards {
            if pieces.len() as u64 == count {
                break;
            }
            let Known::Exactly(have) = known(*shard) else {
                self.learnt = taken;
                return Err(Need { shard: *shard, at_least });
            };
            taken += 1;
            if have > 0 {
                pieces.push((len, *shard, 0));
                len += have;
            }
        }
        self.drop_front(taken);
        if len > 0 {
            self.close(pieces, len);
        }
        Ok(())
    }

    fn close(&mut self, pieces: Vec<(u64, u32, u64)>, len: u64) {
        self.blocks.push(Block { start: self.len, len, pieces });
        self.len += len;
    }

    fn drop_front(&mut self, shards: usize) {
        self.shards.drain(..shards);
        self.learnt = self.learnt.saturating_sub(shards);
    }
}
