//! Excerpts: some members of a shard as a tar of their own.
//!
//! A tier keeps an excerpt as it keeps any shard: the same fill, index, checksums and commit. Rule:
//! an excerpt is a function of the places of its members alone, so two jobs that want the same
//! members share one.
//!
//! Members lie in the order of the shard, behind headers of one block each. Their names are numbers
//! (`00000007.0` is the first member of the seventh sample): keys and fields of a shard can repeat
//! once samples between them are left out, and no reader needs them here.

use std::ops::Range;

use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use crate::index::Member;

/// Tar's unit: headers are one, and data fills whole ones.
const BLOCK: u64 = 512;

/// Bytes behind the last member: two blocks of zeros, as tar ends.
const END_BYTES: u64 = 2 * BLOCK;

/// Access rights in headers, which nobody reads.
const MODE: u32 = 0o644;

/// One member of an excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// Number of its sample among those of the excerpt, and its own number there.
    number: (u32, u32),
    /// Start of its data in the excerpt.
    at: u64,
    /// Start in the shard.
    from: u64,
    len: u64,
}

impl Entry {
    /// Bytes in the excerpt, without header and padding.
    fn data(&self) -> Range<u64> {
        self.at..self.at + self.len
    }

    /// Returns the header.
    fn header(&self) -> [u8; BLOCK as usize] {
        let mut header = Header::new_gnu();
        let (sample, member) = self.number;
        header.set_path(format!("{sample:08}.{member}")).expect("a short relative name");
        header.set_mode(MODE);
        header.set_size(self.len);
        header.set_entry_type(EntryType::Regular);
        header.set_cksum();
        *header.as_bytes()
    }
}

/// Consecutive bytes of a shard that are read by one request, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcerptRequest {
    /// Bytes of the excerpt that come with it, headers and padding between its members included.
    pub into: Range<u64>,
    /// Bytes of the shard.
    pub from: Range<u64>,
    /// Each member or its part: bytes of the excerpt, and their start in the shard.
    pub pieces: Vec<(Range<u64>, u64)>,
}

/// Layout of an excerpt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    entries: Vec<Entry>,
    samples: u32,
    end: u64,
}

impl Excerpt {
    /// Digits of [`Excerpt::hash`].
    pub const HASH_DIGITS: usize = 32;

    /// Adds the wanted members of the next sample, and returns their places in the excerpt. Empty
    /// members have no bytes and are left out, and so are samples without others; they keep the
    /// place that they are given here. None if the excerpt overflows.
    #[must_use]
    pub fn add(&mut self, members: &[Member]) -> Option<Vec<Member>> {
        let mut placed = Vec::with_capacity(members.len());
        let mut count = 0;
        for member in members {
            if member.len == 0 {
                placed.push(Member { offset: self.end, ..*member });
                continue;
            }
            let at = self.end.checked_add(BLOCK)?;
            let end = at.checked_add(member.len)?.checked_next_multiple_of(BLOCK)?;
            let number = (self.samples, count);
            self.entries.push(Entry { number, at, from: member.offset, len: member.len });
            placed.push(Member { offset: at, ..*member });
            (self.end, count) = (end, count + 1);
        }
        self.samples = self.samples.checked_add(u32::from(count > 0))?;
        Some(placed)
    }

    /// Samples that have bytes here.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples.into()
    }

    /// Length of the tar.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end + END_BYTES
    }

    /// Returns true if no sample has bytes here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The identity: 32 hex digits over the places of all members in the shard.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(b"forebay excerpt 1");
        for Entry { number, from, len, .. } in &self.entries {
            sha.update(number.0.to_le_bytes());
            sha.update(from.to_le_bytes());
            sha.update(len.to_le_bytes());
        }
        let bytes = sha.finalize();
        bytes.iter().take(Self::HASH_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the requests that bring `range` of the excerpt. Members with at most `gap` unneeded
    /// bytes of the shard between them share one.
    #[must_use]
    pub fn requests(&self, range: &Range<u64>, gap: u64) -> Vec<ExcerptRequest> {
        let mut requests: Vec<ExcerptRequest> = Vec::new();
        for entry in self.within(range) {
            let data = entry.data();
            let into = data.start.max(range.start)..data.end.min(range.end);
            if into.is_empty() {
                continue;
            }
            let start = entry.from + (into.start - data.start);
            let end = start + (into.end - into.start);
            match requests.last_mut() {
                // Members of a shard do not overlap, except links, which have a request of their
                // own.
                Some(last) if start >= last.from.end && start - last.from.end <= gap => {
                    last.from.end = end;
                    last.into.end = into.end;
                    last.pieces.push((into, start));
                }
                _ => requests.push(ExcerptRequest {
                    into: into.clone(),
                    from: start..end,
                    pieces: vec![(into, start)],
                }),
            }
        }
        requests
    }

    /// Returns the bytes of the shard that are read for all of it, and the number of requests.
    #[must_use]
    pub fn cost(&self, gap: u64) -> (u64, u64) {
        let requests = self.requests(&(0..self.end), gap);
        let bytes = requests.iter().map(|request| request.from.end - request.from.start).sum();
        (bytes, requests.len() as u64)
    }

    /// Fills `into` with the excerpt's bytes from `at` on as if all data were zeros: headers,
    /// padding and the end.
    pub fn frame(&self, at: u64, into: &mut [u8]) {
        into.fill(0);
        let range = at..at + into.len() as u64;
        for entry in self.within(&(range.start..range.end.saturating_add(BLOCK))) {
            let start = entry.at - BLOCK;
            let cut = start.max(range.start)..entry.at.min(range.end);
            if cut.is_empty() {
                continue;
            }
            // Both lie in a slice: within its length.
            let header = &entry.header()[(cut.start - start) as usize..(cut.end - start) as usize];
            let to = (cut.start - range.start) as usize;
            into[to..to + header.len()].copy_from_slice(header);
        }
    }

    /// Entries whose data reach into a range, or end before it by less than a header.
    fn within(&self, range: &Range<u64>) -> &[Entry] {
        let first = self.entries.partition_point(|entry| entry.data().end <= range.start);
        let end = self.entries.partition_point(|entry| entry.at < range.end);
        &self.entries[first.min(end)..end]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::checksum::crc32c;
    use crate::{Indexer, Plain};

    /// Members of samples of a shard: gaps before each, and lengths.
    fn members(shape: &[Vec<(u64, u64)>]) -> (Vec<Vec<Member>>, u64) {
        let mut at = 0;
        let mut member = |&(gap, len): &(u64, u64)| {
            let offset = at + BLOCK + gap;
            at = offset + len;
            Member { field: 0, offset, len, crc32c: 0 }
        };
        let all = shape.iter().map(|sample| sample.iter().map(&mut member).collect());
        (all.collect(), at)
    }

    /// The excerpt's bytes in parts, as a fill asks for them.
    fn bytes(
        excerpt: &Excerpt,
        shard: &[u8],
        part: u64,
        gap: u64,
    ) -> (Vec<u8>, Vec<ExcerptRequest>) {
        let (mut all, mut requests) = (Vec::new(), Vec::new());
        for start in (0..excerpt.len()).step_by(part as usize) {
            let range = start..(start + part).min(excerpt.len());
            let mut bytes = vec![1; (range.end - range.start) as usize];
            excerpt.frame(start, &mut bytes);
            for request in excerpt.requests(&range, gap) {
                for (into, from) in &request.pieces {
                    let len = (into.end - into.start) as usize;
                    let to = (into.start - start) as usize;
                    let from = *from as usize;
                    bytes[to..to + len].copy_from_slice(&shard[from..from + len]);
                }
                requests.push(request);
            }
            all.extend(bytes);
        }
        (all, requests)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// An excerpt is a whole tar with the members' bytes where they were said to be, however
        /// it is cut into parts.
        #[test]
        fn excerpt_is_a_tar_of_its_members(
            shape in prop::collection::vec(
                prop::collection::vec((0_u64..3000, 0_u64..2500), 0..4), 0..12),
            part in 1_u64..6000, gap in 0_u64..4000,
        ) {
            let (members, len) = members(&shape);
            let shard: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            let mut excerpt = Excerpt::default();
            let placed: Vec<_> =
                members.iter().map(|sample| excerpt.add(sample).unwrap()).collect();
            let (tar, requests) = bytes(&excerpt, &shard, part, gap);
            prop_assert_eq!(tar.len() as u64, excerpt.len());
            let mut there = Vec::new();
            for (member, at) in members.iter().flatten().zip(placed.iter().flatten()) {
                prop_assert_eq!(member.len, at.len);
                let (from, to) = (member.offset as usize, at.offset as usize);
                let len = member.len as usize;
                prop_assert_eq!(&tar[to..to + len], &shard[from..from + len]);
                if len > 0 {
                    there.push((at.offset, at.len, crc32c(&shard[from..from + len])));
                }
            }
            let index = Indexer::new(Plain::new(Cursor::new(&tar)), tar.len() as u64).finish().unwrap();
            prop_assert_eq!(index.samples.len() as u64, excerpt.samples());
            prop_assert!(index.samples.iter().all(|sample| sample.bad.is_none()));
            let found: Vec<_> =
                index.members.iter().map(|one| (one.offset, one.len, one.crc32c)).collect();
            prop_assert_eq!(found, there);
            for request in requests {
                prop_assert!(request.from.end <= len && !request.from.is_empty());
                for pair in request.pieces.windows(2) {
                    let between = pair[1].1 - (pair[0].1 + (pair[0].0.end - pair[0].0.start));
                    prop_assert!(between <= gap);
                }
            }
        }
    }

    #[test]
    fn excerpts_of_other_members_have_other_hashes() {
        let hash = |shape: &[Vec<(u64, u64)>]| {
            let mut excerpt = Excerpt::default();
            members(shape).0.iter().for_each(|sample| drop(excerpt.add(sample)));
            excerpt.hash()
        };
        let base = hash(&[vec![(0, 5), (0, 7)], vec![(0, 9)]]);
        assert_eq!(base.len(), Excerpt::HASH_DIGITS);
        assert_eq!(base, hash(&[vec![(0, 5), (0, 7)], vec![], vec![(0, 9)]]));
        for other in [
            &[vec![(0, 5)], vec![(0, 7)], vec![(0, 9)]][..],
            &[vec![(0, 5), (0, 7)], vec![(1, 9)]],
            &[vec![(0, 5), (0, 7)], vec![(0, 8)]],
            &[vec![(0, 5), (0, 7)]],
        ] {
            assert_ne!(base, hash(other), "{other:?}");
        }
    }

    #[test]
    fn overflowing_excerpt_is_none() {
        let mut excerpt = Excerpt::default();
        let huge = Member { field: 0, offset: 0, len: u64::MAX - 100, crc32c: 0 };
        assert!(excerpt.add(&[huge]).is_none());
    }
}
