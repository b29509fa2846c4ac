//! One lane: a run of samples out of the row of all shards, in blocks that are permuted exactly.
//!
//! Blocks have a closed form, so a lane of any length is a few numbers.
//!
//! ```text
//!   samples of the row     │ a: cut by the border │  b  │  c  │ …  │  z: cut by the border │
//!   pieces of the lane     │ head of a │    b     │  c  │  …  │  z  │ rest of a │
//!   blocks                 │64│128│256…│    1     │  2 shards  │  4 shards  │ W − s │ W │ W │ …
//! ```
//! **Blocks ramp**: 64, 128, 256 … samples of the first piece, then 1, 2, 4 … pieces, up to the
//! window of W, so that the first batch of a cold epoch needs little. The ramp is part of the
//! order, cached or not.
//!
//! **Edges are staggered**, so that lanes do not all change shards at once: the edges of lane l of
//! L come l/L of a window earlier than lane 0's. Of l·W/L pieces the whole ones are left out of the
//! first full window. The fraction is cut from the end of the first piece, and this rest is played
//! as the lane's last piece. So a lane of W = 1 is staggered too, and every window still mixes
//! whole pieces: only the first shard is in two pieces. Its rest is needed at the same time as the
//! end of the lane before, which is of the same shard if their border cuts it. A cache that keeps
//! no shard for a whole epoch therefore fetches L − 1 shards twice, and one more for each pair of
//! neighbouring lanes on two nodes.
//!
//! In list order a lane is one run; a global shuffle is one block.

use forebay_wire::message::Shuffle;

use super::deal::Row;
use super::permute::{Key, permute};

/// Samples in the first block: small enough for a first batch after a fraction of a shard.
pub(super) const FIRST_BLOCK: u64 = 64;

/// Mixing parameters of lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mixing {
    pub(super) shuffle: Shuffle,
    /// Whole shards mixed at once in one lane.
    pub(super) window: u64,
    /// Lanes over which edges are staggered.
    pub(super) lanes: u64,
}

impl Mixing {
    /// Returns the shards that `lanes` lanes have open at once, out of `shards`.
    pub(super) fn open(self, lanes: u64, shards: u32) -> u64 {
        match self.shuffle {
            Shuffle::None => lanes,
            Shuffle::Window => lanes * self.window,
            Shuffle::Global => u64::from(shards),
        }
        .min(u64::from(shards))
    }
}

/// Samples that are mixed with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    number: u64,
    /// Range of its pieces.
    pieces: (u64, u64),
    /// Range of its places in the lane.
    places: (u64, u64),
}

#[derive(Debug)]
pub(super) struct Lane {
    shuffle: Shuffle,
    key: Key,
    window: u64,
    /// Pieces missing from the first full window.
    short: u64,
    /// Start in the row.
    start: u64,
    len: u64,
    /// Place of its first shard in the row.
    first: u64,
    shards: u64,
    /// Samples of the first piece.
    head: u64,
    rest: u64,
}

impl Lane {
    /// Makes lane `lane` of a pass with `key`: `len` samples of `row` from `start` on.
    pub(super) fn new(
        mixing: Mixing,
        lane: u64,
        key: Key,
        start: u64,
        len: u64,
        row: &Row,
    ) -> Self {
        let (first, shards, front) = match len.checked_sub(1) {
            None => (0, 0, 0),
            Some(last) => {
                let (first, last) = (row.index(start), row.index(start + last));
                (first, last - first + 1, (row.start(first + 1) - start).min(len))
            }
        };
        let early = match mixing.shuffle {
            Shuffle::Window => lane * mixing.window,
            Shuffle::None | Shuffle::Global => 0,
        };
        let rest = share_of(front, early % mixing.lanes, mixing.lanes);
        Self {
            shuffle: mixing.shuffle,
            key: key.with(lane),
            window: mixing.window,
            short: early / mixing.lanes,
            start,
            len,
            first,
            shards,
            head: front - rest,
            rest,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns shard and ordinal of the sample at `place`, which must be in the lane.
    pub(super) fn locate(&self, place: u64, row: &Row) -> (u32, u64) {
        let at = match self.shuffle {
            Shuffle::None => place,
            Shuffle::Window | Shuffle::Global => {
                let Block { number, places: (from, past), .. } = self.block(place, row);
                from + permute(self.key.with(number), place - from, past - from)
            }
        };
        let at = self.in_row(at);
        let index = row.index(at);
        (row.shard(index), at - row.start(index))
    }

    /// Returns the shards needed from `place` on, each with the first place that may need it.
    pub(super) fn upcoming<'a>(
        &'a self,
        place: u64,
        row: &'a Row,
    ) -> impl Iterator<Item = (u64, u32)> + 'a {
        let first = match self.shuffle {
            _ if place >= self.len => self.pieces(),
            Shuffle::None => self.piece(place, row),
            Shuffle::Window | Shuffle::Global => self.block(place, row).pieces.0,
        };
        self.spans(first, row).map(|(from, _, shard)| (from, shard))
    }

    /// Returns its pieces from `piece` on: the first place that may need each, its end, and its
    /// shard.
    pub(super) fn spans<'a>(
        &'a self,
        piece: u64,
        row: &'a Row,
    ) -> impl Iterator<Item = (u64, u64, u32)> + 'a {
        (piece..self.pieces()).map(move |piece| {
            let (from, past) = match self.shuffle {
                Shuffle::Window if piece > 0 => {
                    let (_, from, past) = self.window_around(piece);
                    (from, past.min(self.pieces()))
                }
                Shuffle::Window | Shuffle::None => (piece, piece + 1),
                Shuffle::Global => (0, self.pieces()),
            };
            // A piece past the shards is the rest of the first.
            let index = self.first + piece % self.shards;
            (self.place(from, row), self.place(past, row), row.shard(index))
        })
    }

    /// Returns the number of pieces, including the rest of the first shard.
    fn pieces(&self) -> u64 {
        self.shards + u64::from(self.rest > 0)
    }

    /// Returns the sample of the row at this unpermuted place.
    fn in_row(&self, place: u64) -> u64 {
        self.start
            + if place < self.head {
                place
            } else if place < self.len - self.rest {
                place + self.rest
            } else {
                place - (self.len - self.rest) + self.head
            }
    }

    /// Returns the piece that holds this unpermuted place.
    fn piece(&self, place: u64, row: &Row) -> u64 {
        if place >= self.len - self.rest {
            return self.shards;
        }
        row.index(self.in_row(place)) - self.first
    }

    /// Returns the first place of a piece; for one past the last, the lane's end.
    fn place(&self, piece: u64, row: &Row) -> u64 {
        if piece == 0 {
            0
        } else if piece < self.shards {
            row.start(self.first + piece) - self.start - self.rest
        } else if piece == self.shards {
            self.len - self.rest
        } else {
            self.len
        }
    }

    fn block(&self, place: u64, row: &Row) -> Block {
        if self.shuffle == Shuffle::Global {
            return Block { number: 0, pieces: (0, self.pieces()), places: (0, self.len) };
        }
        if place < self.head {
            let number = ramp_block(place);
            let past = ramp_start(number + 1).min(self.head);
            return Block { number, pieces: (0, 1), places: (ramp_start(number), past) };
        }
        let (number, from, past) = self.window_around(self.piece(place, row));
        let past = past.min(self.pieces());
        Block {
            number: ramp_block(self.head - 1) + 1 + number,
            pieces: (from, past),
            places: (self.place(from, row), self.place(past, row)),
        }
    }

    /// Returns the block after the first piece that holds `piece`: its number, its first piece and
    /// its end.
    fn window_around(&self, piece: u64) -> (u64, u64, u64) {
        // Blocks of 1, 2, 4 … pieces start at pieces 1, 2, 4 …; the first one as large as the
        // window is the first full window.
        let full = self.window.next_power_of_two();
        let doublings = u64::from(full.ilog2());
        if piece < full {
            let number = u64::from(piece.ilog2());
            return (number, 1 << number, 2 << number);
        }
        let first = self.window - self.short;
        match (piece - full).checked_sub(first) {
            None => (doublings, full, full + first),
            Some(beyond) => {
                let number = beyond / self.window;
                let from = full + first + number * self.window;
                (doublings + 1 + number, from, from + self.window)
            }
        }
    }
}

/// Returns the block of 64, 128, 256 … samples that holds sample `at` of the first piece.
fn ramp_block(at: u64) -> u64 {
    u64::from((at / FIRST_BLOCK + 1).ilog2())
}

/// Returns the first sample of such a block.
fn ramp_start(number: u64) -> u64 {
    FIRST_BLOCK * ((1 << number) - 1)
}

/// Returns `of · part / parts` without overflow on the way.
fn share_of(of: u64, part: u64, parts: u64) -> u64 {
    let share = u128::from(of) * u128::from(part) / u128::from(parts);
    u64::try_from(share).expect("part is below parts")
}
