//! Reads of an arriving shard by the indexer.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_shard::checksum::crc32c;
use forebay_source::Binding;
use forebay_uring::{Arena, Region};
use futures::FutureExt;
use proptest::prelude::*;

use super::*;

const PART: usize = PART_BYTES;

/// Parts of a whole shard in memory. Nothing is compared, so none are released.
fn arrived(content: &[u8]) -> FillBytes {
    let region = Region::create("forebay-bytes-test", 4 * PART).unwrap();
    let arena = Arena::new(region);
    let parts = Parts::new(content.len() as u64, Binding::Strong);
    for (part, bytes) in (0..).zip(content.chunks(PART)) {
        let mut span = arena.lease(PART).now_or_never().expect("there is room").unwrap();
        span[..bytes.len()].copy_from_slice(bytes);
        parts.arrived(part, Frame::new(span.freeze(), parts.try_admit().unwrap()));
    }
    FillBytes::new(parts)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn seek_before_the_start_is_rejected() {
    let mut bytes = arrived(&content(10));
    assert_eq!(bytes.seek(SeekFrom::End(-3)).unwrap(), 7);
    assert_eq!(bytes.seek(SeekFrom::Current(-8)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let mut rest = Vec::new();
    bytes.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, content(10)[7..]);
}

#[test]
fn failed_fill_fails_the_read() {
    let mut bytes = arrived(&content(10));
    bytes.parts.fail(&Error::new(ErrorKind::Unavailable, "breaks off"));
    assert!(bytes.read(&mut [0; 4]).is_err());
    assert_eq!(bytes.crc32c(0, 4).unwrap_err().kind(), ErrorKind::Unavailable);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Reads, seeks and checksums equal those of the same bytes in one piece.
    #[test]
    fn reads_equal_those_of_one_piece(
        tail in 1_usize..3000,
        reads in prop::collection::vec((0_usize..2 * PART + 4000, 1_usize..5000), 1..12),
        near in 0_usize..4000,
    ) {
        let content = content(2 * PART + tail);
        let mut bytes = arrived(&content);
        // Some reads cross the border of two parts.
        let border = (PART - near.min(PART), 5000);
        for (offset, len) in reads.into_iter().chain([border]) {
            bytes.seek(SeekFrom::Start(offset as u64)).unwrap();
            let mut into = vec![0; len];
            let mut have = 0;
            while have < len {
                match bytes.read(&mut into[have..]).unwrap() {
                    0 => break,
                    read => have += read,
                }
            }
            let from = offset.min(content.len());
            let wanted = &content[from..content.len().min(offset + len)];
            prop_assert_eq!(&into[..have], wanted);
            let sum = bytes.crc32c(offset as u64, len as u64);
            match wanted.len() == len {
                true => prop_assert_eq!(sum.unwrap(), crc32c(wanted)),
                false => prop_assert_eq!(sum.unwrap_err().kind(), ErrorKind::Corrupt),
            }
        }
    }
}
