//! The sidecar holds what was put in, and notices everything else.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_error::ErrorKind;
use forebay_shard::{
    BLOCK_BYTES, HEAD_BYTES, Head, Index, Member, Origin, Partial, Sample, Sidecar, checksum,
};
use proptest::prelude::*;

fn small() -> Sidecar {
    let members = vec![
        Member { field: 0, offset: 512, len: 3, crc32c: 1 },
        Member { field: 1, offset: 1536, len: 0, crc32c: 0 },
        Member { field: 0, offset: 2560, len: 700, crc32c: u32::MAX },
    ];
    let sample = |key: &str, members: std::ops::Range<u32>, bad: Option<&str>, offset, end| {
        Sample { key: key.into(), offset, end, members, bad: bad.map(str::to_owned) }
    };
    Sidecar {
        origin: Origin {
            endpoint: "https://h".into(),
            url: "s3://b/ä.tar".into(),
            version: "\"etag\"".into(),
        },
        tenant: Some("vision".into()),
        len: 10_240,
        compressed_len: Some(4321),
        blocks: vec![0x1234_5678],
        index: Index {
            fields: vec!["jpg".into(), "cls".into()],
            members,
            samples: vec![
                sample("a/1", 0..2, None, 512, 1536),
                sample("a/2", 2..3, Some("why"), 2560, 3260),
            ],
        },
    }
}

#[test]
fn sidecar_survives_encoding_and_its_head_decodes_alone() {
    let sidecar = small();
    let bytes = sidecar.encode().unwrap();
    assert_eq!(Sidecar::decode(&bytes).unwrap(), sidecar);
    let head = Head::decode(&bytes[..HEAD_BYTES]).unwrap();
    assert_eq!((head.origin, head.tenant), (sidecar.origin, sidecar.tenant));
    assert_eq!((head.len, head.fields, head.members, head.samples), (10_240, 2, 3, 2));
    assert_eq!(head.body_len as usize, bytes.len() - HEAD_BYTES);
    assert_eq!((head.compressed_len, small().origin_len()), (Some(4321), 4321));
    let plain = Sidecar { compressed_len: None, ..small() };
    assert_eq!(Sidecar::decode(&plain.encode().unwrap()).unwrap(), plain);
    assert_eq!(plain.origin_len(), 10_240);
}

#[test]
fn every_flipped_bit_and_truncation_is_detected() {
    let bytes = small().encode().unwrap();
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(Sidecar::decode(&flipped).is_err(), "bit {at}");
    }
    for len in 0..bytes.len() {
        assert!(Sidecar::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    assert!(Sidecar::decode(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn partial_shard_survives_encoding_or_is_rejected() {
    let blocks = vec![Some(7), None, Some(0), None];
    let (origin, tenant) = (small().origin, small().tenant);
    let partial = Partial { origin, tenant, len: 3 * BLOCK_BYTES + 1, blocks };
    let bytes = partial.encode().unwrap();
    assert_eq!(Partial::decode(&bytes).unwrap(), partial);
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(Partial::decode(&flipped).is_err(), "bit {at}");
    }
    for len in 0..bytes.len() {
        assert!(Partial::decode(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn unknown_format_is_invalid_not_corrupt() {
    let mut bytes = small().encode().unwrap();
    for (format, newer) in [(1, false), (6, true)] {
        bytes[8] = format;
        assert!(!Head::is_newer(&bytes), "a flipped bit makes no newer format");
        bytes[12..16].fill(0);
        let crc = checksum::crc32c(&bytes[..HEAD_BYTES]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Head::decode(&bytes).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Head::is_newer(&bytes), newer);
    }
}

/// Earlier releases, which know no links, leave such a sidecar untouched.
#[test]
fn links_take_a_newer_format_than_other_members() {
    assert_eq!(small().encode().unwrap()[8], 4);
    let mut linked = small();
    let first = linked.index.members[0];
    linked.index.members[2] = first;
    (linked.index.samples[1].offset, linked.index.samples[1].end) = (first.offset, first.end());
    let bytes = linked.encode().unwrap();
    assert_eq!(bytes[8], 5);
    assert_eq!(Sidecar::decode(&bytes).unwrap(), linked);
}

/// Formats of earlier releases lack only the fields added since.
#[test]
fn earlier_formats_are_read() {
    let sidecar = Sidecar { compressed_len: None, ..small() };
    let mut old = sidecar.encode().unwrap();
    old[8] = 3;
    // The compressed length, which is none, goes; the head keeps its size by zeros at its end.
    old.drain(48..56);
    old.splice(HEAD_BYTES - 8..HEAD_BYTES - 8, [0; 8]);
    forge(&mut old);
    assert_eq!(Sidecar::decode(&old).unwrap(), sidecar);
    let sidecar = Sidecar { tenant: None, compressed_len: None, ..small() };
    let mut old = sidecar.encode().unwrap();
    old[8] = 2;
    // So does the tenant's length, which is zero.
    old.drain(48..56);
    old.drain(54..56);
    old.splice(HEAD_BYTES - 10..HEAD_BYTES - 10, [0; 10]);
    forge(&mut old);
    assert_eq!(Sidecar::decode(&old).unwrap(), sidecar);
    assert_eq!(Head::decode(&old[..HEAD_BYTES]).unwrap().tenant, None);
    let blocks = vec![Some(7), None];
    let partial = Partial { origin: small().origin, tenant: None, len: BLOCK_BYTES + 1, blocks };
    let mut old = partial.encode().unwrap();
    old[8] = 1;
    old.drain(30..32);
    old[12..16].fill(0);
    let crc = checksum::crc32c(&old);
    old[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Partial::decode(&old).unwrap(), partial);
}

#[test]
fn long_urls_and_inconsistent_indexes_are_rejected() {
    let mut long = small();
    long.origin.url = "s3://b/".to_owned() + &"x".repeat(HEAD_BYTES);
    assert_eq!(long.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut long = small();
    long.tenant = Some("x".repeat(HEAD_BYTES));
    assert_eq!(long.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut gap = small();
    gap.index.samples[1].members = 1..3;
    assert_eq!(gap.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut unsummed = small();
    unsummed.blocks.clear();
    assert_eq!(unsummed.encode().unwrap_err().kind(), ErrorKind::Invalid);
    let mut outside = small();
    outside.len = 3000;
    assert_eq!(outside.encode().unwrap_err().kind(), ErrorKind::Invalid);
}

/// Makes both checksums fit, so that a hostile writer's bytes reach the parser.
fn forge(bytes: &mut [u8]) {
    let body_len = (bytes.len() - HEAD_BYTES) as u64;
    bytes[24..32].copy_from_slice(&body_len.to_le_bytes());
    let body = checksum::crc32c(&bytes[HEAD_BYTES..]);
    bytes[32..36].copy_from_slice(&body.to_le_bytes());
    bytes[12..16].fill(0);
    let head = checksum::crc32c(&bytes[..HEAD_BYTES]);
    bytes[12..16].copy_from_slice(&head.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bytes_forged_with_right_checksums_never_panic(
        edits in proptest::collection::vec((16usize..4300, any::<u8>()), 1..6),
        cut in 0usize..40,
    ) {
        let mut bytes = small().encode().unwrap();
        for (at, value) in edits {
            // Most of the head is zeros; fold those edits onto its fields and onto the body.
            let at = if at < HEAD_BYTES { at % 80 } else { at };
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(bytes.len() - cut);
        forge(&mut bytes);
        if let Ok(sidecar) = Sidecar::decode(&bytes) {
            for sample in &sidecar.index.samples {
                for member in sidecar.index.members_of(sample) {
                    prop_assert!(member.end() <= sidecar.len);
                    prop_assert!((member.field as usize) < sidecar.index.fields.len());
                }
            }
            // An accepted sidecar is valid: it can be written again.
            prop_assert_eq!(Sidecar::decode(&sidecar.encode().unwrap()).unwrap(), sidecar);
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert!(Sidecar::decode(&bytes).is_err());
    }
}
