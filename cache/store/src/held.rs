//! Bytes of a shard that lie in memory and are copied when they are checked.
//!
//! The checksum of a block is taken while the block is copied: memory is read once for both.

use std::ops::Range;

use forebay_shard::checksum::{Crc32c, crc32c};
use forebay_uring::{Frozen, Span, copy_past_caches};

/// Bytes that are summed and then copied. The first-level cache holds them between; of 2 to 32 KiB
/// this is the fastest.
const BLOCK: usize = 8 << 10;

/// Least length of a region whose bytes are copied past the caches. Batches of such a slab are as
/// large as a core's share of the caches: others have come before these are read.
const PAST_CACHES: usize = 16 << 20;

/// Least length of bytes that are: fewer are summed and copied in no time.
const WORTH_STREAMING: usize = 4 << 10;

/// Bytes of a range, in memory of others.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    /// The range of the shard.
    range: Range<u64>,
    /// Memory with the bytes, in order, and their places in it.
    pieces: Vec<(Frozen, Range<usize>)>,
}

impl HeldBytes {
    /// Makes the bytes of a range out of pieces that follow each other.
    pub(crate) fn new(range: Range<u64>, pieces: Vec<(Frozen, Range<usize>)>) -> Self {
        Self { range, pieces }
    }

    /// Returns the range of the shard.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns the CRC32C of all bytes; none if not all are here.
    pub(crate) fn crc32c(&self) -> Option<u32> {
        let mut crc = Crc32c::new();
        let mut len = 0;
        for (memory, at) in &self.pieces {
            let piece = memory.get(at.clone())?;
            crc.update(piece);
            len += piece.len() as u64;
        }
        (len == self.range.end - self.range.start).then(|| crc.value())
    }

    /// Copies the bytes from `offset` of the shard on to `place` of the span. Returns their
    /// CRC32C; none if not all are here.
    pub(crate) fn copy(&self, offset: u64, span: &mut Span, place: Range<usize>) -> Option<u32> {
        let streams = span.region().len() >= PAST_CACHES && place.len() >= WORTH_STREAMING;
        let mut into = span.get_mut(place)?;
        let mut skip = usize::try_from(offset.checked_sub(self.range.start)?).ok()?;
        let mut crc = Crc32c::new();
        for (memory, at) in &self.pieces {
            let piece = memory.get(at.clone())?;
            let from = &piece[skip.min(piece.len())..];
            skip -= skip.min(piece.len());
            let from = &from[..from.len().min(into.len())];
            if from.len() == into.len() && !streams && crc.is_new() {
                into.copy_from_slice(from);
                return Some(crc32c(from));
            }
            let (now, rest) = into.split_at_mut(from.len());
            for (from, into) in from.chunks(BLOCK).zip(now.chunks_mut(BLOCK)) {
                crc.update(from);
                match streams {
                    true => copy_past_caches(from, into),
                    false => into.copy_from_slice(from),
                }
            }
            into = rest;
        }
        into.is_empty().then(|| crc.value())
    }
}

#[cfg(test)]
mod tests {
    use forebay_uring::{Arena, CHUNK, Region};

    use super::*;

    /// A span of zeros in a region of this length.
    fn span(region: usize, len: usize) -> Span {
        Arena::new(Region::create("held", region).unwrap()).try_lease(len).unwrap()
    }

    fn pieces(lengths: &[usize]) -> (Vec<u8>, HeldBytes) {
        let (mut all, mut pieces) = (Vec::new(), Vec::new());
        for (number, len) in lengths.iter().enumerate() {
            let mut memory = span(CHUNK, len + 5);
            let bytes: Vec<u8> = (0..*len).map(|at| (at * 31 + number) as u8).collect();
            memory[5..len + 5].copy_from_slice(&bytes);
            all.extend_from_slice(&bytes);
            pieces.push((memory.freeze(), 5..len + 5));
        }
        let range = 1000..1000 + all.len() as u64;
        (all, HeldBytes::new(range, pieces))
    }

    #[test]
    fn any_part_is_copied_and_summed() {
        let (all, held) = pieces(&[3, 70_000, 1, 20_000]);
        assert_eq!(held.crc32c(), Some(crc32c(&all)));
        for region in [CHUNK, PAST_CACHES] {
            let mut into = span(region, 100_000);
            for part in [0..1, 0..3, 2..5, 3..70_003, 1..90_000, 69_000..80_000, 0..90_004] {
                let (start, place) = (1000 + part.start as u64, 7..7 + part.len());
                let crc = held.copy(start, &mut into, place.clone());
                assert_eq!(crc, Some(crc32c(&all[part.clone()])), "{part:?}");
                assert!(into[place] == all[part.clone()], "{part:?}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_here_have_no_checksum() {
        let (_, held) = pieces(&[10, 10]);
        let mut into = span(CHUNK, 100);
        assert_eq!(held.copy(1015, &mut into, 0..6), None, "beyond the end");
        assert_eq!(held.copy(999, &mut into, 0..2), None, "before the start");
        assert_eq!(held.copy(1000, &mut into, 90..5000), None, "beyond the span");
        assert!(held.copy(1014, &mut into, 0..6).is_some());
    }
}
