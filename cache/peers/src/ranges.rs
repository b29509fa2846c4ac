//! Reader of a reply with the bytes of several ranges, each behind its length and checksum.

use bytes::Buf;
use forebay_shard::checksum::crc32c;

use crate::message::RANGE_HEAD;

/// Reader of a reply, which comes in chunks of any size.
pub(crate) struct RangesReader<'a> {
    into: Vec<&'a mut [u8]>,
    /// Lengths of the ranges that are complete.
    lens: Vec<usize>,
    head: Vec<u8>,
    filled: usize,
}

impl<'a> RangesReader<'a> {
    /// Creates a reader that fills these slices in order, each as far as its range reaches.
    pub(crate) fn new(into: Vec<&'a mut [u8]>) -> Self {
        let lens = Vec::with_capacity(into.len());
        Self { into, lens, head: Vec::with_capacity(RANGE_HEAD), filled: 0 }
    }

    /// Takes a chunk of the reply.
    ///
    /// # Errors
    /// The flaw of the reply.
    pub(crate) fn feed(&mut self, mut chunk: &[u8]) -> Result<(), &'static str> {
        while !chunk.is_empty() {
            let more = "a node sent more than was asked for";
            let room = self.into.get_mut(self.lens.len()).ok_or(more)?;
            let missing = (RANGE_HEAD - self.head.len()).min(chunk.len());
            self.head.extend_from_slice(&chunk[..missing]);
            chunk = &chunk[missing..];
            if self.head.len() < RANGE_HEAD {
                continue;
            }
            let mut head = self.head.as_slice();
            let (len, sum) = (head.get_u32_le() as usize, head.get_u32_le());
            let room = room.get_mut(..len).ok_or(more)?;
            let taken = (len - self.filled).min(chunk.len());
            room[self.filled..self.filled + taken].copy_from_slice(&chunk[..taken]);
            chunk = &chunk[taken..];
            self.filled += taken;
            if self.filled == len {
                if crc32c(room) != sum {
                    return Err("bytes changed on the way from a node");
                }
                self.lens.push(len);
                self.head.clear();
                self.filled = 0;
            }
        }
        Ok(())
    }

    /// Ends the reply, and returns the length of each range.
    ///
    /// # Errors
    /// The flaw of the reply: it broke off.
    pub(crate) fn finish(self) -> Result<Vec<usize>, &'static str> {
        match self.lens.len() == self.into.len() {
            true => Ok(self.lens),
            false => Err("a node sent fewer ranges than were asked for"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(ranges: &[Vec<u8>]) -> Vec<u8> {
        let mut reply = Vec::new();
        for range in ranges {
            reply.extend_from_slice(&(range.len() as u32).to_le_bytes());
            reply.extend_from_slice(&crc32c(range).to_le_bytes());
            reply.extend_from_slice(range);
        }
        reply
    }

    fn read(reply: &[u8], chunk: usize, rooms: &mut [Vec<u8>]) -> Result<Vec<usize>, &'static str> {
        let mut reader = RangesReader::new(rooms.iter_mut().map(Vec::as_mut_slice).collect());
        reply.chunks(chunk).try_for_each(|chunk| reader.feed(chunk))?;
        reader.finish()
    }

    proptest! {
        /// Ranges come back whatever the chunks; a short one leaves the rest of its room.
        #[test]
        fn ranges_come_back_in_order(
            ranges in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8),
            spare in 0_usize..5, chunk in 1_usize..50,
        ) {
            let mut rooms: Vec<_> = ranges.iter().map(|range| vec![0; range.len() + spare]).collect();
            let lens = read(&reply(&ranges), chunk, &mut rooms);
            prop_assert_eq!(lens, Ok(ranges.iter().map(Vec::len).collect::<Vec<_>>()));
            for (room, range) in rooms.iter().zip(&ranges) {
                prop_assert_eq!(&room[..range.len()], &range[..]);
            }
        }

        /// A reply with a flipped bit, one that breaks off, and one with more are rejected.
        #[test]
        fn flawed_replies_are_rejected(
            ranges in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 1..8),
            at in any::<prop::sample::Index>(), bit in 0..8_u8, chunk in 1_usize..50,
        ) {
            let good = reply(&ranges);
            let rooms = || ranges.iter().map(|range| vec![0; range.len()]).collect::<Vec<_>>();
            let mut flipped = good.clone();
            flipped[at.index(good.len())] ^= 1 << bit;
            prop_assert!(read(&flipped, chunk, &mut rooms()).is_err());
            prop_assert!(read(&good[..at.index(good.len())], chunk, &mut rooms()).is_err());
            let more = [good.as_slice(), &[0]].concat();
            prop_assert!(read(&more, chunk, &mut rooms()).is_err());
        }
    }
}
