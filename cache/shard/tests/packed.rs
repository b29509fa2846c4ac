//! The small form of an index says what the plain one says, in the bytes it promises.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_shard::{Catalogue, Index, Member, Packed, Sample};
use proptest::prelude::*;

/// A key, the blocks of headers before each member and its length, and whether the sample is good.
type Made = (String, Vec<(u32, u64)>, bool);

/// An index as a tar would have it: each sample's members with so many blocks of headers before
/// them.
fn index(samples: &[Made]) -> Index {
    let mut index = Index { fields: (0..4).map(|n| format!("f{n}")).collect(), ..Index::default() };
    let mut at = 0_u64;
    for (key, members, is_good) in samples {
        let first = index.members.len() as u32;
        for (headers, len) in members {
            let offset = at + 512 * u64::from(*headers);
            let field = index.members.len() as u32 % 4;
            index.members.push(Member { field, offset, len: *len, crc32c: *len as u32 ^ 0x55 });
            at = (offset + len).next_multiple_of(512);
        }
        let own = &index.members[first as usize..];
        index.samples.push(Sample {
            key: key.clone(),
            offset: own[0].offset,
            end: own[own.len() - 1].end(),
            members: first..index.members.len() as u32,
            bad: (!is_good).then(|| format!("{key} is bad")),
        });
    }
    index
}

proptest! {
    /// Any keys and lengths; headers have one block, or three with PAX.
    #[test]
    fn packed_index_loses_nothing(samples in proptest::collection::vec(
        (".{0,200}", proptest::collection::vec((1_u32..4, 0_u64..100_000), 1..4), any::<bool>()),
        0..60,
    )) {
        let index = index(&samples);
        let packed = Packed::of(&index).unwrap();
        prop_assert_eq!(packed.len(), index.samples.len());
        prop_assert_eq!(&packed.unpack(), &index);
        for (at, sample) in index.samples.iter().enumerate() {
            prop_assert_eq!(packed.sample(at), Some(sample.clone()));
            prop_assert_eq!(packed.members_of(sample), index.members_of(sample).to_vec());
        }
        prop_assert_eq!(packed.sample(index.samples.len()), None);
        prop_assert_eq!(packed.fields(), &index.fields[..]);
    }
}

/// A photo data set's shard: 8 bytes a sample and 10 a member, beside the keys' text.
#[test]
fn packed_index_has_its_documented_size() {
    let photo = |n: u64| (format!("train/n01440764_{n:08}"), vec![(1, 110_000 + n), (1, 3)], true);
    let samples: Vec<_> = (0..4096).map(photo).collect();
    let index = index(&samples);
    let packed = Packed::of(&index).unwrap();
    let names: usize = index.fields.iter().map(|name| name.capacity() + size_of::<String>()).sum();
    assert_eq!(packed.bytes() - packed.key_bytes() - names, 8 * 4096 + 10 * 8192);
    let text: usize = samples.iter().map(|(key, ..)| key.len()).sum();
    assert!(packed.key_bytes() <= text + 4096 + 4096 / 16 * 4, "{}", packed.key_bytes());
    assert!(packed.bytes() * 5 < index.bytes() * 2, "{} of {}", packed.bytes(), index.bytes());
}

/// An index the small form cannot express keeps the plain one.
#[test]
fn inexpressible_index_stays_plain() {
    let good = index(&[("a".to_owned(), vec![(1, 10), (1, 20)], true)]);
    assert!(matches!(Catalogue::whole(good.clone()), Catalogue::Packed(_)));
    let spoilt = |spoil: &dyn Fn(&mut Index)| {
        let mut index = good.clone();
        spoil(&mut index);
        let whole = Catalogue::whole(index.clone());
        assert!(matches!(whole, Catalogue::Plain(_)));
        assert_eq!(whole.index(), index);
    };
    spoilt(&|index| index.members[1].len = 1 << 32);
    spoilt(&|index| index.members[0].field = 1 << 16);
    spoilt(&|index| index.samples[0].offset += 1);
    spoilt(&|index| {
        index.members[0].offset += 1;
        index.samples[0].offset += 1;
    });
    spoilt(&|index| index.members[0].offset = 512 << 32);
}
