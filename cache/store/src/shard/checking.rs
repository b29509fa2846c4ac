//! Checks of shards in memory: trainers read them where they lie, without a check of their own.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Member;

use super::{Body, Shard};

/// Work on a member beside its bytes, as bytes that are summed in that time.
const PER_MEMBER: u64 = 1 << 10;

/// Place up to which a shard is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CheckedUpTo {
    /// Number of the next sample, and of its next member.
    sample: usize,
    member: usize,
}

impl Shard {
    /// Compares members of a shard in memory with their checksums, from a place on, until as much
    /// work as that of `limit` bytes is done. Each link is one more comparison: it may name bytes
    /// of no other member. Returns the place, none at the end of the shard, and the work. Blocks.
    ///
    /// # Errors
    /// `Corrupt` for bytes that differ, with their offset.
    pub(crate) fn check_in_memory(
        &self,
        mut from: CheckedUpTo,
        limit: u64,
    ) -> Result<(Option<CheckedUpTo>, u64)> {
        let Body::Memory(blocks) = &self.body else { return Ok((None, 0)) };
        let mut work = 0;
        loop {
            // Held for the look-up only: the indexer of an arriving shard waits for it.
            let members: Vec<Member> = {
                let index = self.index();
                let Some(sample) = index.sample(from.sample) else { return Ok((None, work)) };
                index.members_of(&sample)
            };
            for (number, member) in members.into_iter().enumerate().skip(from.member) {
                if work > limit {
                    return Ok((Some(CheckedUpTo { member: number, ..from }), work));
                }
                work += PER_MEMBER;
                let held = blocks.held(&(member.offset..member.end()));
                if held.is_none_or(|held| held.crc32c() != Some(member.crc32c)) {
                    let what = "a member in memory differs from the bytes of the origin";
                    return Err(Error::new(ErrorKind::Corrupt, what)
                        .at("url", &self.url)
                        .at("offset", member.offset));
                }
                work += member.len;
            }
            (from.sample, from.member) = (from.sample + 1, 0);
        }
    }
}
