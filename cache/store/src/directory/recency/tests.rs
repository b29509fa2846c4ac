//! Files with the order of use that are torn, hostile or of another release.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use proptest::prelude::*;

use super::*;
use crate::directory::tests::open;

/// A file with this magic, format and body under a right checksum.
fn file(magic: &[u8], format: u32, body: &[u8]) -> Vec<u8> {
    [magic, &format.to_le_bytes(), &crc32c(body).to_le_bytes(), body].concat()
}

#[test]
fn order_of_another_release_is_ignored() {
    let body = [7_u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
    assert_eq!(parse(&file(MAGIC, FORMAT, &body)), Some(vec![7, u64::MAX]));
    assert_eq!(parse(&file(MAGIC, FORMAT, &[])), Some(vec![]));
    assert_eq!(parse(&file(MAGIC, FORMAT + 1, &body)), None);
    assert_eq!(parse(&file(b"FOREBAYX", FORMAT, &body)), None);
    // The checksum is right, but the last hash is cut.
    assert_eq!(parse(&file(MAGIC, FORMAT, &body[..15])), None);
}

#[test]
fn unreadable_order_is_no_order() {
    let (_root, directory) = open();
    fs::create_dir(directory.recency()).unwrap();
    assert_eq!(directory.load_recency(), Vec::<u64>::new());
    assert!(directory.save_recency(&[1]).is_err(), "a folder holds the name");
    fs::remove_dir(directory.recency()).unwrap();
    directory.save_recency(&[2, 1]).unwrap();
    assert_eq!(directory.load_recency(), [2, 1]);
}

proptest! {
    /// Only a file that was written whole is read.
    #[test]
    fn torn_order_is_ignored(
        hashes in prop::collection::vec(any::<u64>(), 0..20),
        cut in any::<prop::sample::Index>(),
        more in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let body: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let mut bytes = file(MAGIC, FORMAT, &body);
        prop_assert_eq!(parse(&bytes), Some(hashes));
        prop_assert_eq!(parse(&bytes[..cut.index(bytes.len())]), None);
        bytes.extend(more);
        prop_assert_eq!(parse(&bytes), None);
    }

    /// No bytes of a disk make it panic.
    #[test]
    fn hostile_order_is_ignored(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(parse(&bytes), None);
        prop_assert_eq!(parse(&[&MAGIC[..], &bytes].concat()), None);
    }
}
