//! One lane: a run of shard pieces cut into blocks, each block permuted exactly.
//!
//! Blocks ramp (64, 128, 256 … samples of the first shard, then 1, 2, 4 … shards, up to the
//! window W) so that the first batch of a cold epoch needs little; the first full window is cut
//! short by a different amount per lane, so that lanes do not all change shards at once. The ramp
//! is part of the order whether anything is cached or not.

use std::collections::VecDeque;

use super::permute::{Key, permute};
use super::sequence::Known;
use forebay_wire::message::Shuffle;

/// Samples in the first block: small enough that a first batch comes after a fraction of a shard.
const FIRST_BLOCK: u64 = 64;

/// A piece of a shard that belongs to a lane. `len` is `None` while the shard's count is unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) shard: u32,
    pub(super) from: u64,
    pub(super) len: Option<u64>,
}

/// What a lane needs before it can say more.
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
    /// Blocks of this many samples, inside the first piece.
    Samples { size: u64, taken: u64 },
    /// Blocks of this many whole pieces.
    Pieces { count: u64 },
}

/// How a lane mixes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mix {
    pub(super) shuffle: Shuffle,
    /// Whole shards mixed at once in this lane.
    pub(super) window: u64,
    /// Pieces the first full window is short of.
    pub(super) stagger: u64,
    pub(super) key: Key,
}

#[derive(Debug)]
pub(super) struct Lane {
    mix: Mix,
    pieces: VecDeque<Piece>,
    ramp: Ramp,
    staggered: bool,
    blocks: Vec<Block>,
    len: u64,
}

impl Lane {
    pub(super) fn new(mix: Mix, pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self {
            mix,
            pieces: pieces.into_iter().collect(),
            ramp: Ramp::Samples { size: FIRST_BLOCK, taken: 0 },
            staggered: mix.stagger == 0,
            blocks: Vec::new(),
            len: 0,
        }
    }

    /// The sample at `place`: `Ok(None)` past the lane's end, `Err` while too little is known.
    pub(super) fn locate(
        &mut self,
        place: u64,
        known: &dyn Fn(u32) -> Known,
    ) -> Result<Option<(u32, u64)>, Need> {
        while place >= self.len {
            if self.mix.shuffle == Shuffle::None
                && let Some(piece) = self.pieces.front()
            {
                // In list order a sample is known before its shard's end is.
                let ordinal = place - self.len;
                let have = match known(piece.shard) {
                    Known::AtLeast(have) | Known::Exactly(have) => have - piece.from,
                };
                if ordinal < piece.len.unwrap_or(have) && ordinal < have {
                    return Ok(Some((piece.shard, piece.from + ordinal)));
                }
            }
            if !self.grow(place, known)? {
                return Ok(None);
            }
        }
        let at = self.blocks.partition_point(|block| block.start + block.len <= place);
        let block = &self.blocks[at];
        let within = place - block.start;
        let drawn = match self.mix.shuffle {
            Shuffle::None => within,
            Shuffle::Window | Shuffle::Global => {
                permute(self.mix.key.with(at as u64), within, block.len)
            }
        };
        let piece = block.pieces.partition_point(|(before, ..)| *before <= drawn) - 1;
        let (before, shard, from) = block.pieces[piece];
        Ok(Some((shard, from + (drawn - before))))
    }

    /// Samples known to be in the lane so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The shards of the blocks from `place` on, as (first place that may need it, shard); pieces
    /// not yet in a block follow in order.
    pub(super) fn upcoming(&self, place: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let at = self.blocks.partition_point(|block| block.start + block.len <= place);
        let blocked = self.blocks[at..].iter().flat_map(move |block| {
            let in_order = self.mix.shuffle == Shuffle::None;
            block.pieces.iter().map(move |(before, shard, _)| {
                (if in_order { block.start + before } else { block.start }, *shard)
            })
        });
        let unblocked = self.pieces.iter().scan(self.len, |place, piece| {
            let first = *place;
            *place += piece.len.unwrap_or(1);
            Some((first, piece.shard))
        });
        blocked.chain(unblocked)
    }

    /// Closes one more block; false at the lane's end. `place` is the one being looked for.
    fn grow(&mut self, place: u64, known: &dyn Fn(u32) -> Known) -> Result<bool, Need> {
        while let Some(front) = self.pieces.front()
            && resolved(*front, known) == Some(0)
        {
            self.pieces.pop_front();
            self.ramp = self.after_first_piece();
        }
        let Some(first) = self.pieces.front().copied() else { return Ok(false) };
        match (self.mix.shuffle, self.ramp) {
            (Shuffle::None, _) => {
                let at_least = first.from + (place - self.len) + 1;
                self.close_pieces(1, known, at_least)?;
            }
            (Shuffle::Global, _) => self.close_pieces(u64::MAX, known, u64::MAX)?,
            (Shuffle::Window, Ramp::Samples { size, taken }) => {
                self.close_ramp(first, size, taken, known)?;
            }
            (Shuffle::Window, Ramp::Pieces { count }) => {
                let full = count >= self.mix.window;
                let short = if full && !self.staggered { self.mix.stagger } else { 0 };
                self.close_pieces(count - short, known, u64::MAX)?;
                self.staggered |= full;
                self.ramp = Ramp::Pieces { count: (count * 2).min(self.mix.window) };
            }
        }
        Ok(true)
    }

    /// A block of `size` samples inside the first piece.
    fn close_ramp(
        &mut self,
        first: Piece,
        size: u64,
        taken: u64,
        known: &dyn Fn(u32) -> Known,
    ) -> Result<(), Need> {
        let start = first.from + taken;
        let len = match resolved(first, known) {
            // A shard replaced by a shorter one under way ends early.
            Some(len) => size.min(len.saturating_sub(taken)),
            None => match known(first.shard) {
                Known::AtLeast(have) if have < start + size => {
                    return Err(Need { shard: first.shard, at_least: start + size });
                }
                _ => size,
            },
        };
        self.close(vec![(0, first.shard, start)], len);
        self.ramp = Ramp::Samples { size: size * 2, taken: taken + len };
        if resolved(first, known) == Some(taken + len) {
            self.pieces.pop_front();
            self.ramp = self.after_first_piece();
        }
        Ok(())
    }

    /// A block of the next `count` pieces, or of what is left.
    fn close_pieces(
        &mut self,
        count: u64,
        known: &dyn Fn(u32) -> Known,
        at_least: u64,
    ) -> Result<(), Need> {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.pieces.len());
        let mut pieces = Vec::with_capacity(count);
        let mut len = 0;
        for piece in self.pieces.range(..count) {
            let Some(have) = resolved(*piece, known) else {
                return Err(Need { shard: piece.shard, at_least });
            };
            if have > 0 {
                pieces.push((len, piece.shard, piece.from));
                len += have;
            }
        }
        self.pieces.drain(..count);
        if len > 0 {
            self.close(pieces, len);
        }
        Ok(())
    }

    fn close(&mut self, pieces: Vec<(u64, u32, u64)>, len: u64) {
        self.blocks.push(Block { start: self.len, len, pieces });
        self.len += len;
    }

    fn after_first_piece(&self) -> Ramp {
        match self.ramp {
            Ramp::Samples { .. } => Ramp::Pieces { count: 1 },
            pieces @ Ramp::Pieces { .. } => pieces,
        }
    }
}

/// A piece's samples, if that is known.
fn resolved(piece: Piece, known: &dyn Fn(u32) -> Known) -> Option<u64> {
    piece.len.or_else(|| match known(piece.shard) {
        Known::Exactly(count) => Some(count.saturating_sub(piece.from)),
        Known::AtLeast(_) => None,
    })
}
