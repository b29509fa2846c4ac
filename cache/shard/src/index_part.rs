//! Pieces of an index on their way to another node, while the shard still arrives.
//!
//! A received piece is checked against the index that it extends: a reader may use the result
//! without further checks, as it may a sidecar's.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::index::{Index, Member, Sample};
use crate::packed::Catalogue;

/// Consecutive samples of an index, with the fields that are new in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexPart {
    /// Number of its first sample.
    pub first: u64,
    /// Names of all fields of the index from [`IndexPart::known_fields`] on.
    fields: Vec<String>,
    /// Number of fields that the receiver knows.
    known_fields: u32,
    samples: Vec<SamplePart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SamplePart {
    key: String,
    bad: Option<String>,
    members: Vec<MemberPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MemberPart {
    field: u32,
    offset: u64,
    len: u64,
    crc32c: u32,
}

impl IndexPart {
    /// Returns the samples from `first` on, for a receiver that knows `known_fields` fields: as
    /// many as have `most` members together, and one at least. None if there are no more.
    #[must_use]
    pub fn of(catalogue: &Catalogue, first: u64, known_fields: usize, most: usize) -> Option<Self> {
        let start = usize::try_from(first).ok()?;
        let (mut samples, mut members) = (Vec::new(), 0);
        while let Some(sample) = catalogue.sample(start + samples.len()) {
            let own = catalogue.members_of(&sample);
            if members > 0 && members + own.len() > most {
                break;
            }
            members += own.len();
            let part = |member: &Member| {
                let Member { field, offset, len, crc32c } = *member;
                MemberPart { field, offset, len, crc32c }
            };
            let members = own.iter().map(part).collect();
            samples.push(SamplePart { key: sample.key, bad: sample.bad, members });
        }
        let fields = catalogue.fields().get(known_fields..).unwrap_or_default().to_vec();
        let known_fields = u32::try_from(known_fields).ok()?;
        (!samples.is_empty()).then_some(Self { first, fields, known_fields, samples })
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Returns true if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// Bytes of a tar's header, which each member has.
const HEADER_BYTES: u64 = 512;

impl Index {
    /// Appends received samples of a shard that has `most` bytes at the most. On an error, nothing
    /// is appended.
    ///
    /// # Errors
    /// `Corrupt` if they are not the next ones, contradict themselves, or are more or larger than
    /// the shard can be.
    pub fn append(&mut self, part: IndexPart, most: u64) -> Result<()> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::Corrupt, format!("the received index is invalid: {what}"))
        };
        let IndexPart { first, fields, known_fields, samples } = part;
        if (first, known_fields as usize) != (self.samples.len() as u64, self.fields.len()) {
            return Err(wrong("a part of it is missing"));
        }
        let named = self.fields.len() + fields.len();
        let count: usize = samples.iter().map(|sample| sample.members.len()).sum();
        let known = u32::try_from(self.members.len() + count);
        let known = known.ok().filter(|known| u64::from(*known) <= most / HEADER_BYTES);
        if known.is_none() || u32::try_from(named).is_err() {
            return Err(wrong("it has too many members"));
        }
        for sample in &samples {
            if sample.members.is_empty() {
                return Err(wrong("a sample has no members"));
            }
            for member in &sample.members {
                if member.field as usize >= named {
                    return Err(wrong("a member has a field without a name"));
                }
                if member.offset.checked_add(member.len).is_none_or(|end| end > most) {
                    return Err(wrong("a member has an impossible offset"));
                }
            }
        }
        self.fields.extend(fields);
        for SamplePart { key, bad, members } in samples {
            // Both fit, as checked above.
            let start = self.members.len() as u32;
            self.members.extend(members.into_iter().map(|member| {
                let MemberPart { field, offset, len, crc32c } = member;
                Member { field, offset, len, crc32c }
            }));
            let own = &self.members[start as usize..];
            let offset = own.first().map_or(0, |member| member.offset);
            let end = own.last().map_or(0, Member::end);
            let members = start..self.members.len() as u32;
            self.samples.push(Sample { key, offset, end, members, bad });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An index of samples with so many members each, of two fields.
    fn index(counts: &[usize]) -> Index {
        let mut index = Index { fields: vec!["jpg".into(), "cls".into()], ..Index::default() };
        for (at, count) in counts.iter().enumerate() {
            let start = index.members.len() as u32;
            for number in 0..*count {
                let offset = 512 * (1 + 2 * index.members.len() as u64);
                let field = (number % 2) as u32;
                index.members.push(Member { field, offset, len: 100, crc32c: at as u32 });
            }
            let own = &index.members[start as usize..];
            let (offset, end) = (own[0].offset, own[*count - 1].end());
            let bad = (at % 3 == 2).then(|| "twice the same field".to_owned());
            let members = start..index.members.len() as u32;
            index.samples.push(Sample { key: format!("s{at}"), offset, end, members, bad });
        }
        index
    }

    proptest! {
        /// The index is the same for pieces of any size.
        #[test]
        fn received_index_equals_the_sent_one(
            counts in prop::collection::vec(1..5_usize, 1..40), most in 1..9_usize, packs in any::<bool>()
        ) {
            let sent = index(&counts);
            let catalogue =
                if packs { Catalogue::whole(sent.clone()) } else { Catalogue::Plain(sent.clone()) };
            let mut received = Index::default();
            while let Some(part) = IndexPart::of(
                &catalogue, received.samples.len() as u64, received.fields.len(), most
            ) {
                received.append(part, 1 << 20).unwrap();
            }
            prop_assert_eq!(received, sent);
        }
    }

    #[test]
    fn false_parts_are_rejected_and_change_nothing() {
        /// Bytes of the shard.
        const BYTES: u64 = 20 * HEADER_BYTES;
        let catalogue = Catalogue::Plain(index(&[2, 2]));
        let good = IndexPart::of(&catalogue, 0, 0, 4).unwrap();
        let change = |change: fn(&mut IndexPart)| {
            let mut part = good.clone();
            change(&mut part);
            part
        };
        for part in [
            change(|part| part.first = 1),
            change(|part| part.known_fields = 1),
            change(|part| part.fields.clear()),
            change(|part| part.samples[1].members.clear()),
            change(|part| part.samples[1].members[0].field = 2),
            change(|part| part.samples[1].members[0].offset = u64::MAX),
            change(|part| part.samples[1].members[0].len = u64::MAX),
            change(|part| part.samples[1].members[0].len = BYTES),
            change(|part| part.samples[1].members = vec![part.samples[1].members[0]; 40]),
        ] {
            let mut into = Index::default();
            let error = into.append(part, BYTES).unwrap_err();
            assert_eq!((error.kind(), into), (ErrorKind::Corrupt, Index::default()));
        }
    }
}
