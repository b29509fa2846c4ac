//! Place of each field of each sample in a shard.
//!
//! Offsets are those of the origin's tar, which a tier keeps unchanged, so one index serves the
//! origin, every tier and every reader.

use std::ops::Range;

/// One tar member that is a sample's field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Field: an index into [`Index::fields`].
    pub field: u32,
    /// Start of its data in the tar, in bytes.
    pub offset: u64,
    /// Length of its data, in bytes; may be zero.
    pub len: u64,
    /// CRC32C of its data.
    pub crc32c: u32,
}

impl Member {
    /// One past its last byte in the tar.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// One sample: consecutive members with one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Key: the members' common path up to the base name's first dot.
    pub key: String,
    /// Start of its first member's data, in bytes.
    pub offset: u64,
    /// End of its last member's data, in bytes. A member that is a link lies elsewhere.
    pub end: u64,
    /// Members: a range of [`Index::members`], in the order of the tar, never empty.
    pub members: Range<u32>,
    /// Reason it is unusable, if it is; it keeps its position in the order.
    pub bad: Option<String>,
}

/// Every sample of one shard, in the order of the tar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// The names of all fields, each once, in the order of first appearance.
    pub fields: Vec<String>,
    /// The members of all samples, in the order of the tar.
    pub members: Vec<Member>,
    /// The samples.
    pub samples: Vec<Sample>,
}

impl Index {
    /// The number that stands for field `name` in [`Member::field`], if any sample has it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<u32> {
        let at = self.fields.iter().position(|have| have == name)?;
        u32::try_from(at).ok()
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = |text: &String| text.capacity();
        let reason = |sample: &Sample| sample.bad.as_ref().map_or(0, String::capacity);
        self.fields.capacity() * size_of::<String>()
            + self.fields.iter().map(texts).sum::<usize>()
            + self.members.capacity() * size_of::<Member>()
            + self.samples.capacity() * size_of::<Sample>()
            + self.samples.iter().map(|s| s.key.capacity() + reason(s)).sum::<usize>()
    }

    /// The members of `sample`, which must be of this index.
    #[must_use]
    pub fn members_of(&self, sample: &Sample) -> &[Member] {
        &self.members[sample.members.start as usize..sample.members.end as usize]
    }
}

/// Returns the members of a sample that a job requests, in the order of the tar: the first present
/// alternative of each field, or all. Returns true as well if each field has one. `names` are those
/// of all fields.
#[must_use]
pub fn wanted_members<'a>(
    names: &'a [String],
    members: &'a [Member],
    fields: Option<&[Vec<String>]>,
) -> (Vec<(&'a str, &'a Member)>, bool) {
    let named = |member: &'a Member| (names[member.field as usize].as_str(), member);
    let Some(fields) = fields else { return (members.iter().map(named).collect(), true) };
    let mut wanted: Vec<(&str, &Member)> = fields
        .iter()
        .filter_map(|alternatives| {
            alternatives
                .iter()
                .find_map(|name| members.iter().map(named).find(|(have, _)| have == name))
        })
        .collect();
    let complete = wanted.len() == fields.len();
    wanted.sort_by_key(|(_, member)| (member.offset, member.field));
    wanted.dedup_by_key(|(_, member)| member.field);
    (wanted, complete)
}
