//! Encrypted files: noise on the disk, plain bytes in memory, on each engine.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod engines;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engines::{MIB, arena, on_each, pattern};
use forebay_error::ErrorKind;
use forebay_uring::{
    CIPHER_KEY_BYTES, CipherKey, DiskFile, Engine, FileCipher, GRANULE, LentRegion, Open, Read,
    fill_random,
};

fn cipher() -> FileCipher {
    let mut bytes = zeroize::Zeroizing::new([0; CIPHER_KEY_BYTES]);
    fill_random(&mut bytes[..]).unwrap();
    FileCipher::new(&Arc::new(CipherKey::new(bytes).unwrap()), 7)
}

async fn create(engine: &Engine, path: &Path, cipher: &FileCipher) -> DiskFile {
    let file = engine.open(path, Open::Create { len: MIB as u64 }).await.unwrap();
    file.encrypted(cipher.clone())
}

#[tokio::test]
async fn bytes_are_noise_on_the_disk_and_plain_in_memory() {
    on_each(4, async |engine| {
        let (dir, arena, cipher) = (tempfile::tempdir().unwrap(), arena(4 * MIB), cipher());
        let path = dir.path().join("part");
        let file = create(&engine, &path, &cipher).await;
        assert!(file.is_encrypted() && file.alignment().offset.is_multiple_of(GRANULE));
        let plain = pattern(MIB, 1);
        let half = MIB / 2;
        // Bytes of the operation alone, and bytes that others read meanwhile.
        let mut span = arena.lease(half).await.unwrap();
        span.copy_from_slice(&plain[..half]);
        let done = engine.write(&file, 0, span).await;
        assert_eq!(done.result.unwrap(), half);
        let memory = arena.lease(half).await.unwrap();
        let done = engine.write_encrypted(&file, half as u64, &plain[half..], memory).await;
        assert_eq!(done.result.unwrap(), half);
        let stored = fs::read(&path).unwrap();
        for (at, block) in stored.chunks(64).enumerate() {
            assert!(block != &plain[64 * at..64 * (at + 1)], "plain bytes at {}", 64 * at);
        }
        let read = |offset, into| Read { file: file.clone(), offset, into };
        let spans = [arena.lease(MIB).await.unwrap(), arena.lease(GRANULE).await.unwrap()];
        let [all, one] = spans;
        let mut many = engine.read_many(vec![read(0, all), read(3 * GRANULE as u64, one)]);
        let one = many.pop().unwrap().await;
        let all = many.pop().unwrap().await;
        assert!(all.result.unwrap() == MIB && all.span[..] == plain[..]);
        assert!(one.result.unwrap() == GRANULE && one.span[..] == plain[3 * GRANULE..4 * GRANULE]);
    })
    .await;
}

#[tokio::test]
async fn part_of_a_block_is_not_read() {
    on_each(4, async |engine| {
        let (dir, arena, cipher) = (tempfile::tempdir().unwrap(), arena(MIB), cipher());
        let path = dir.path().join("part");
        let file = create(&engine, &path, &cipher).await;
        let cut = fs::OpenOptions::new().write(true).open(&path).unwrap();
        cut.set_len(2 * GRANULE as u64 + 512).unwrap();
        let done = engine.read(&file, 0, arena.lease(4 * GRANULE).await.unwrap()).await;
        assert_eq!(done.result.unwrap(), 2 * GRANULE, "only whole blocks");
        // Two equal blocks of the disk, in another place, are no longer those bytes.
        cut.write_all_at(&fs::read(&path).unwrap()[..GRANULE], GRANULE as u64).unwrap();
        let done = engine.read(&file, 0, done.span).await;
        assert!(done.span[..GRANULE] != done.span[GRANULE..2 * GRANULE]);
    })
    .await;
}

#[tokio::test]
async fn memory_of_others_is_rejected() {
    on_each(4, async |engine| {
        let (dir, arena, cipher) = (tempfile::tempdir().unwrap(), arena(MIB), cipher());
        let path = dir.path().join("part");
        let file = create(&engine, &path, &cipher).await;
        let lent = LentRegion::create("lent", MIB, usize::MAX).unwrap();
        let span = || lent.span(0..GRANULE as u64).unwrap();
        let frozen = arena.lease(GRANULE).await.unwrap().freeze();
        let short = arena.lease(GRANULE).await.unwrap();
        let plain = engine.open(&path, Open::Update).await.unwrap();
        let memory = arena.lease(GRANULE).await.unwrap();
        for done in [
            engine.write_lent(&file, 0, span()).await,
            engine.read_lent(&file, 0, span()).await,
            engine.write_frozen(&file, 0, frozen).await,
            engine.write_encrypted(&file, 0, &[0; 512], short).await,
            engine.write_encrypted(&plain, 0, &[0; GRANULE], memory).await,
        ] {
            assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "nothing was written");
    })
    .await;
}

#[test]
fn lent_bytes_are_copied_by_the_kernel() {
    let lent = LentRegion::create("lent", MIB, usize::MAX).unwrap();
    lent.fill(4096, &pattern(5000, 1)).unwrap();
    let span = lent.span(4096..4096 + 5000).unwrap();
    let mut copy = vec![0; 5000];
    span.copy_to(&mut copy).unwrap();
    assert!(copy == pattern(5000, 1));
    span.fill(&pattern(4000, 2)).unwrap();
    span.copy_to(&mut copy).unwrap();
    assert!(copy[..4000] == pattern(4000, 2) && copy[4000..] == pattern(5000, 1)[4000..]);
    assert!(span.copy_to(&mut vec![0; 5001]).is_err() && span.fill(&[0; 5001]).is_err());
}
