//! An index while it rests in memory, as small as what it says: 8 bytes a sample, 10 a member, and
//! the keys' own text.
//!
//! Nothing is lost. What the small form cannot say (a member of 4 GiB, a sample that does
//! not begin on a tar block) keeps the plain one.
//!
//! | of | kept | why that is enough |
//! |---|---|---|
//! | a sample | the tar block of its first member's data (`u32`), its first member (`u32`) | data begins on blocks of 512 bytes; its members are consecutive |
//! | a member | length (`u32`), CRC32C (`u32`), field (`u16`) | it begins one header behind the end of the one before, rounded up to a block; the rare other is listed |
//! | a key | its length and text, and every 16th one's place | a key is found by passing over 15 at most |

use crate::index::{Index, Member, Sample};

/// Tar's unit: headers are one, data begins on one.
const BLOCK: u64 = 512;

/// A key's place is kept for every so many: passing over 15 keys takes less time than a cache miss.
const KEYS_PER_MARK: usize = 16;

/// An index that does not grow any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    fields: Vec<String>,
    /// Block of each sample's first member, and that member.
    samples: Vec<(u32, u32)>,
    lens: Vec<u32>,
    sums: Vec<u32>,
    of_fields: Vec<u16>,
    /// Members that begin elsewhere than the one before lets expect, and where.
    elsewhere: Vec<(u32, u64)>,
    /// Keys, each behind its length in base 128.
    keys: Vec<u8>,
    marks: Vec<u32>,
    bad: Vec<(u32, String)>,
}

impl Packed {
    /// The small form, if the index has one.
    #[must_use]
    pub fn of(index: &Index) -> Option<Self> {
        let count = index.members.len();
        let mut packed = Self {
            fields: index.fields.clone(),
            samples: Vec::with_capacity(index.samples.len()),
            lens: Vec::with_capacity(count),
            sums: Vec::with_capacity(count),
            of_fields: Vec::with_capacity(count),
            elsewhere: Vec::new(),
            keys: Vec::new(),
            marks: Vec::with_capacity(index.samples.len().div_ceil(KEYS_PER_MARK)),
            bad: Vec::new(),
        };
        for (at, sample) in index.samples.iter().enumerate() {
            let members = index.members_of(sample);
            let first =
                members.first().filter(|_| sample.members.start as usize == packed.lens.len())?;
            let block = first.offset.is_multiple_of(BLOCK).then_some(first.offset / BLOCK)?;
            if (sample.offset, sample.end) != (first.offset, members.last()?.end()) {
                return None;
            }
            packed.samples.push((u32::try_from(block).ok()?, sample.members.start));
            for (number, member) in (sample.members.start..).zip(members) {
                let before = number.checked_sub(1).filter(|_| number > sample.members.start);
                let expected = before.map(|before| behind(&index.members[before as usize]));
                if expected.is_some_and(|expected| expected != member.offset) {
                    packed.elsewhere.push((number, member.offset));
                }
                packed.lens.push(u32::try_from(member.len).ok()?);
                packed.sums.push(member.crc32c);
                packed.of_fields.push(u16::try_from(member.field).ok()?);
            }
            if at % KEYS_PER_MARK == 0 {
                packed.marks.push(u32::try_from(packed.keys.len()).ok()?);
            }
            put_len(sample.key.len(), &mut packed.keys);
            packed.keys.extend_from_slice(sample.key.as_bytes());
            if let Some(why) = &sample.bad {
                packed.bad.push((u32::try_from(at).ok()?, why.clone()));
            }
        }
        if packed.lens.len() != count {
            return None;
        }
        packed.elsewhere.shrink_to_fit();
        packed.keys.shrink_to_fit();
        packed.bad.shrink_to_fit();
        Some(packed)
    }

    /// The names of all fields.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// A sample.
    #[must_use]
    pub fn sample(&self, at: usize) -> Option<Sample> {
        let &(block, first) = self.samples.get(at)?;
        let end = self.samples.get(at + 1).map_or(self.lens.len(), |(_, next)| *next as usize);
        let members = first..u32::try_from(end).ok()?;
        let offset = u64::from(block) * BLOCK;
        let last = self.members(offset, members.clone()).pop()?;
        let bad = self.bad.binary_search_by_key(&at, |(bad, _)| *bad as usize);
        let bad = bad.ok().map(|found| self.bad[found].1.clone());
        Some(Sample { key: self.key(at)?, offset, end: last.end(), members, bad })
    }

    /// The members of a sample, which must be of this index.
    #[must_use]
    pub fn members_of(&self, sample: &Sample) -> Vec<Member> {
        self.members(sample.offset, sample.members.clone())
    }

    fn members(&self, offset: u64, numbers: std::ops::Range<u32>) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::with_capacity(numbers.len());
        for number in numbers {
            let at = number as usize;
            let expected = members.last().map_or(offset, behind);
            let elsewhere = self.elsewhere.binary_search_by_key(&number, |(member, _)| *member);
            members.push(Member {
                field: self.of_fields[at].into(),
                offset: elsewhere.map_or(expected, |found| self.elsewhere[found].1),
                len: self.lens[at].into(),
                crc32c: self.sums[at],
            });
        }
        members
    }

    fn key(&self, at: usize) -> Option<String> {
        let mut place = *self.marks.get(at / KEYS_PER_MARK)? as usize;
        for _ in 0..at % KEYS_PER_MARK {
            let (len, text) = len_at(&self.keys, place)?;
            place = text + len;
        }
        let (len, text) = len_at(&self.keys, place)?;
        String::from_utf8(self.keys.get(text..text + len)?.to_vec()).ok()
    }

    /// The plain form.
    #[must_use]
    pub fn unpack(&self) -> Index {
        let samples: Vec<Sample> = (0..self.len()).filter_map(|at| self.sample(at)).collect();
        let members = samples.iter().flat_map(|sample| self.members_of(sample)).collect();
        Index { fields: self.fields.clone(), members, samples }
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = |text: &String| text.capacity() + size_of::<String>();
        self.fields.iter().map(texts).sum::<usize>()
            + self.samples.capacity() * size_of::<(u32, u32)>()
            + (self.lens.capacity() + self.sums.capacity()) * size_of::<u32>()
            + self.of_fields.capacity() * size_of::<u16>()
            + self.elsewhere.capacity() * size_of::<(u32, u64)>()
            + self.keys.capacity()
            + self.marks.capacity() * size_of::<u32>()
            + self.bad.iter().map(|(_, why)| texts(why) + size_of::<u32>()).sum::<usize>()
    }

    /// Returns the bytes of the keys' text and its lookup table.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.keys.capacity() + self.marks.capacity() * size_of::<u32>()
    }
}

/// Returns the start of the next member's data, if one header is between.
fn behind(member: &Member) -> u64 {
    member.end().next_multiple_of(BLOCK) + BLOCK
}

/// Appends a length in base 128, the lowest digit first; the last has no high bit.
fn put_len(mut len: usize, into: &mut Vec<u8>) {
    while len >= 0x80 {
        into.push((len & 0x7f) as u8 | 0x80);
        len >>= 7;
    }
    into.push(len as u8);
}

/// A length, and where what it measures begins.
fn len_at(bytes: &[u8], mut place: usize) -> Option<(usize, usize)> {
    let (mut len, mut shift) = (0, 0);
    loop {
        let digit = *bytes.get(place)?;
        place += 1;
        len |= usize::from(digit & 0x7f) << shift;
        if digit < 0x80 {
            return Some((len, place));
        }
        shift += 7;
    }
}

/// An index, growing or packed.
#[derive(Debug, Clone)]
pub enum Catalogue {
    /// It still grows, or has no small form.
    Plain(Index),
    /// All of it.
    Packed(Packed),
    /// Some samples only, and their places in the shard, which ascend.
    Sparse(Vec<usize>, Index),
}

impl Default for Catalogue {
    fn default() -> Self {
        Self::Plain(Index::default())
    }
}

impl Catalogue {
    /// The smallest form of a whole index.
    #[must_use]
    pub fn whole(index: Index) -> Self {
        Packed::of(&index).map_or(Self::Plain(index), Self::Packed)
    }

    /// The names of all fields.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        match self {
            Self::Plain(index) | Self::Sparse(_, index) => &index.fields,
            Self::Packed(packed) => packed.fields(),
        }
    }

    /// A sample, if it is known.
    #[must_use]
    pub fn sample(&self, at: usize) -> Option<Sample> {
        match self {
            Self::Plain(index) => index.samples.get(at).cloned(),
            Self::Packed(packed) => packed.sample(at),
            Self::Sparse(places, index) => {
                index.samples.get(places.binary_search(&at).ok()?).cloned()
            }
        }
    }

    /// The members of a sample, which must be of this index.
    #[must_use]
    pub fn members_of(&self, sample: &Sample) -> Vec<Member> {
        match self {
            Self::Plain(index) | Self::Sparse(_, index) => index.members_of(sample).to_vec(),
            Self::Packed(packed) => packed.members_of(sample),
        }
    }

    /// The plain form.
    #[must_use]
    pub fn index(&self) -> Index {
        match self {
            Self::Plain(index) | Self::Sparse(_, index) => index.clone(),
            Self::Packed(packed) => packed.unpack(),
        }
    }

    /// Bytes of memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(index) => index.bytes(),
            Self::Packed(packed) => packed.bytes(),
            Self::Sparse(places, index) => size_of_val(&**places) + index.bytes(),
        }
    }
}
