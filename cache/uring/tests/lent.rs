//! Memory of a client: the kernel copies between it and files, nobody else looks at it.

mod engines;

use std::fs::File;
use std::os::unix::fs::FileExt;

use engines::{MIB, on_each, pattern};
use forebay_error::ErrorKind;
use forebay_uring::{LentRegion, Open};
use rustix::fs::{SealFlags, fcntl_get_seals};

#[tokio::test]
async fn lent_bytes_reach_the_file_and_come_back() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        let lent = LentRegion::create("lent", 4 * MIB, usize::MAX).unwrap();
        let client = File::from(lent.fd().try_clone_to_owned().unwrap());
        client.write_all_at(&pattern(MIB, 3), MIB as u64).unwrap();
        let file = engine.open(&path, Open::Create { len: 2 * MIB as u64 }).await.unwrap();
        let from = lent.span(MIB as u64..2 * MIB as u64).unwrap();
        let done = engine.write_lent(&file, MIB as u64, from).await;
        assert_eq!((done.result.unwrap(), done.span.len()), (MIB, 0));
        assert!(std::fs::read(&path).unwrap()[MIB..] == pattern(MIB, 3));
        let into = lent.span(0..2 * MIB as u64).unwrap();
        assert_eq!(engine.read_lent(&file, 0, into).await.result.unwrap(), 2 * MIB);
        let mut seen = vec![1; 2 * MIB];
        client.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen[..MIB].iter().all(|byte| *byte == 0) && seen[MIB..] == pattern(MIB, 3));
        // Both operations may name the same bytes: no one owns them.
        let same = || engine.write_lent(&file, 0, lent.span(0..MIB as u64).unwrap());
        let both = tokio::join!(same(), same());
        assert_eq!((both.0.result.unwrap(), both.1.result.unwrap()), (MIB, MIB));
    })
    .await;
}

#[test]
fn filled_bytes_are_seen_by_the_client() {
    let lent = LentRegion::create("lent", 2 * MIB, usize::MAX).unwrap();
    lent.fill(4096, &pattern(5000, 1)).unwrap();
    let client = File::from(lent.fd().try_clone_to_owned().unwrap());
    let mut seen = vec![0; 5000];
    client.read_exact_at(&mut seen, 4096).unwrap();
    assert!(seen == pattern(5000, 1));
    // Sealed against growth.
    assert!(lent.fill(lent.len() as u64, &[1]).is_err());
}

#[test]
fn client_can_neither_resize_nor_reseal_lent_memory() {
    let lent = LentRegion::create("lent", 1, usize::MAX).unwrap();
    let client = File::from(lent.fd().try_clone_to_owned().unwrap());
    assert!(client.set_len(0).is_err() && client.set_len(1 << 30).is_err());
    let seals = fcntl_get_seals(&client).unwrap();
    assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
}

#[test]
fn ranges_outside_of_lent_memory_are_rejected() {
    let lent = LentRegion::create("lent", 2 * MIB, usize::MAX).unwrap();
    let end = lent.len() as u64;
    assert!(lent.span(end..end).unwrap().is_empty());
    #[expect(clippy::reversed_empty_ranges, reason = "a client may say so")]
    for range in [0..end + 1, end..end + 1, 5..4, u64::MAX - 1..u64::MAX] {
        assert_eq!(lent.span(range).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn lent_memory_is_backed_step_by_step() {
    let lent = LentRegion::create("lent", 8 * MIB, 2 * MIB).unwrap();
    assert_eq!((lent.len(), lent.backed()), (8 * MIB, 2 * MIB));
    let beyond = 0..2 * MIB as u64 + 1;
    assert_eq!(lent.span(beyond.clone()).unwrap_err().kind(), ErrorKind::Invalid);
    lent.back(2 * MIB + 1).unwrap();
    assert_eq!(lent.backed(), 4 * MIB, "whole huge pages");
    lent.span(beyond).unwrap();
    // Once more, and less, changes nothing.
    lent.fill(4096, &pattern(5000, 1)).unwrap();
    lent.back(MIB).unwrap();
    lent.back(usize::MAX).unwrap();
    assert_eq!(lent.backed(), 8 * MIB);
    let mut seen = vec![0; 5000];
    lent.span(4096..8 * MIB as u64).unwrap().copy_to(&mut seen).unwrap();
    assert!(seen == pattern(5000, 1));
}
