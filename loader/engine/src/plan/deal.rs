//! One pass dealt to lanes, with every count known beforehand.
//!
//! The sample at a place is found by search, never by replaying earlier places. Only the
//! permuted shards and their starts in the row are kept: twelve bytes per shard.
//!
//! Shards stand in a row in permuted order, without empty ones. The row is cut into one run of
//! samples per lane, of lengths that differ by at most one. A shard on a border is cut.

use forebay_wire::message::Shuffle;

use super::lane::{Lane, Mixing};
use super::permute::{Key, permute};

/// Shards of a pass in a row.
#[derive(Debug)]
pub(super) struct Row {
    shards: Vec<u32>,
    /// First sample of each shard in the row, and at the end the row's length.
    starts: Vec<u64>,
}

impl Row {
    fn new(shuffle: Shuffle, key: Key, counts: &[u64]) -> Self {
        let filled = counts.iter().filter(|count| **count > 0).count();
        let mut row =
            Self { shards: Vec::with_capacity(filled), starts: Vec::with_capacity(filled + 1) };
        let mut start = 0;
        for shard in permuted(shuffle, key, u32::try_from(counts.len()).expect("checked")) {
            let count = counts[shard as usize];
            if count > 0 {
                row.shards.push(shard);
                row.starts.push(start);
                start += count;
            }
        }
        row.starts.push(start);
        row
    }

    fn len(&self) -> u64 {
        *self.starts.last().expect("the row holds at least its length")
    }

    /// Returns the place in the row of the shard that holds sample `at`.
    pub(super) fn index(&self, at: u64) -> u64 {
        (self.starts.partition_point(|start| *start <= at) - 1) as u64
    }

    /// Returns the first sample of the shard at place `index`.
    pub(super) fn start(&self, index: u64) -> u64 {
        self.starts[to_usize(index)]
    }

    pub(super) fn shard(&self, index: u64) -> u32 {
        self.shards[to_usize(index)]
    }
}

/// Returns shard numbers in the order of a pass.
pub(super) fn permuted(shuffle: Shuffle, key: Key, shards: u32) -> impl Iterator<Item = u32> {
    // No lane has this number, so the key of the shards differs from every lane's.
    let key = key.with(u64::MAX);
    (0..shards).map(move |i| match shuffle {
        Shuffle::None => i,
        Shuffle::Window | Shuffle::Global => {
            let to = permute(key, u64::from(i), u64::from(shards));
            u32::try_from(to).expect("a permutation of u32 stays in u32")
        }
    })
}

/// Converts a place in the row, which is bounded by memory, to `usize`.
fn to_usize(index: u64) -> usize {
    usize::try_from(index).expect("an index into memory")
}

/// A dealt pass.
#[derive(Debug)]
pub(super) struct Deal {
    row: Row,
    lanes: Vec<Lane>,
    /// First position of the pass in the epoch.
    before: u64,
}

impl Deal {
    /// Deals the pass that starts at position `before`, under the pass's `key`.
    pub(super) fn new(mixing: Mixing, lanes: u32, key: Key, counts: &[u64], before: u64) -> Self {
        let row = Row::new(mixing.shuffle, key, counts);
        let lanes = u64::from(lanes);
        let (each, longer) = (row.len() / lanes, row.len() % lanes);
        let mut start = 0;
        let lanes = (0..lanes)
            .map(|lane| {
                let len = each + u64::from(turn(lane, before, lanes) < longer);
                start += len;
                Lane::new(mixing, lane, key, start - len, len, &row)
            })
            .collect();
        Self { row, lanes, before }
    }

    /// Returns the sample at `position`; `None` outside the pass.
    pub(super) fn locate(&self, position: u64) -> Option<(u32, u64)> {
        let (lane, place) = self.place(position)?;
        let lane = &self.lanes[lane];
        (place < lane.len()).then(|| lane.locate(place, &self.row))
    }

    /// Returns the shards of one lane needed from `position` on, each with the first position that
    /// may need it.
    pub(super) fn upcoming(
        &self,
        lane: u32,
        position: u64,
    ) -> impl Iterator<Item = (u64, u32)> + '_ {
        let lanes = self.lanes.len() as u64;
        let offset = turn(u64::from(lane), self.before, lanes);
        // First place of this lane at or after the position.
        let place = position.saturating_sub(self.before + offset).div_ceil(lanes);
        self.lanes[lane as usize]
            .upcoming(place, &self.row)
            .map(move |(place, shard)| (self.before + offset + place * lanes, shard))
    }

    /// Returns the spans (first position, end, shard) in which one lane needs its shards; a shard
    /// comes once for each of its pieces.
    pub(super) fn spans(&self, lane: u32) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        let lanes = self.lanes.len() as u64;
        let first = self.before + turn(u64::from(lane), self.before, lanes);
        let pieces = self.lanes[lane as usize].spans(0, &self.row);
        pieces.filter(|(from, past, _)| from < past).map(move |(from, past, shard)| {
            (first + from * lanes, first + (past - 1) * lanes + 1, shard)
        })
    }

    fn place(&self, position: u64) -> Option<(usize, u64)> {
        let lanes = self.lanes.len() as u64;
        let place = position.checked_sub(self.before)? / lanes;
        Some((to_usize(position % lanes), place))
    }
}

/// Returns the offset of lane `lane` in each round of a pass that starts at `before`. The lane of a
/// position is position mod lanes in every pass, so a rank keeps its lanes.
fn turn(lane: u64, before: u64, lanes: u64) -> u64 {
    (lane + lanes - before % lanes) % lanes
}
