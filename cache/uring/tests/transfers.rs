//! Reads and writes: every case runs on each engine.
//!
//! Assertions are about bytes in files, read past the engine.

mod engines;

use std::os::unix::fs::FileExt;
use std::path::Path;

use engines::{CHOICES, MIB, arena, on_each, pattern, start};
use forebay_error::ErrorKind;
use forebay_skip::{Requirement, skip};
use forebay_uring::{
    Arena, DiskFile, Engine, EngineChoice, EngineConfig, EngineKind, GRANULE, Open, Read, Region,
};
use futures::future::join_all;

/// `TMPFS_MAGIC`: a file system that is page cache and nothing else.
const TMPFS: i64 = 0x0102_1994;

async fn written(engine: &Engine, path: &Path, bytes: &[u8]) -> DiskFile {
    std::fs::write(path, bytes).expect("the file is written");
    engine.open(path, Open::Read).await.expect("the file opens")
}

#[tokio::test]
async fn written_bytes_are_read_back() {
    on_each(8, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shard");
        let arena = arena(8 * MIB);
        assert_eq!(
            engine.attach(arena.region()).await.unwrap(),
            engine.kind() == EngineKind::Ring,
            "root or a generous memlock limit registers; a pool never does"
        );
        let len = 2 * MIB;
        let file = engine.open(&path, Open::Create { len: len as u64 }).await.unwrap();
        let mut span = arena.lease(len).await.unwrap();
        span.copy_from_slice(&pattern(len, 7));
        let done = engine.write(&file, 0, span).await;
        assert_eq!(done.result.unwrap(), len);
        engine.sync_data(&file).await.unwrap();
        assert!(
            std::fs::read(&path).unwrap() == pattern(len, 7),
            "seen through the page cache too"
        );
        let mut span = done.span;
        span.fill(0);
        let done = engine.read(&file, 0, span).await;
        assert_eq!(done.result.unwrap(), len);
        assert!(*done.span == pattern(len, 7));
        let counters = engine.counters();
        assert_eq!((counters.reads, counters.writes, counters.syncs), (1, 1, 1));
        assert_eq!((counters.bytes_read, counters.bytes_written), (len as u64, len as u64));
        assert_eq!((counters.short_reads, counters.short_writes, counters.errors), (0, 0, 0));
        let fixed = if engine.kind() == EngineKind::Ring { 2 } else { 0 };
        assert_eq!(counters.fixed_ops, fixed);
        assert!(counters.system_calls > 0);
    })
    .await;
}

#[tokio::test]
async fn read_at_the_end_returns_the_remaining_bytes() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let arena = arena(2 * MIB);
        for len in [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192 + 512, MIB - 1] {
            let bytes = pattern(len, len as u64);
            let file = written(&engine, &dir.path().join(format!("{len}")), &bytes).await;
            let done = engine.read(&file, 0, arena.lease(MIB).await.unwrap()).await;
            assert_eq!(done.result.unwrap(), len, "whole file of {len} bytes");
            assert!(done.span[..len] == bytes);
            // The same from the last granule on, and from past the end.
            let tail = len / GRANULE * GRANULE;
            let done = engine.read(&file, tail as u64, done.span).await;
            assert_eq!(done.result.unwrap(), len - tail, "tail of {len} bytes");
            assert!(done.span[..len - tail] == bytes[tail..]);
            let done = engine.read(&file, 2 * MIB as u64, done.span).await;
            assert_eq!(done.result.unwrap(), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn all_engines_read_equal_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shard");
    let bytes = pattern(3 * MIB + 777, 3);
    std::fs::write(&path, &bytes).unwrap();
    let mut seen = Vec::new();
    for choice in CHOICES {
        let engine = start(*choice, 4);
        let arena = arena(4 * MIB);
        let file = engine.open(&path, Open::Read).await.unwrap();
        let mut reads = Vec::new();
        for at in (0..4 * MIB).step_by(64 << 10) {
            let into = arena.lease(64 << 10).await.unwrap();
            reads.push(Read { file: file.clone(), offset: at as u64, into });
        }
        // 64 reads on 8 permits: most wait for one when polled.
        let done = join_all(engine.read_many(reads)).await;
        let all: Vec<u8> =
            done.iter().flat_map(|d| &d.span[..*d.result.as_ref().unwrap()]).copied().collect();
        seen.push(all);
    }
    assert!(seen.iter().all(|seen| *seen == bytes));
}

#[tokio::test]
async fn misaligned_operations_are_invalid_and_give_the_span_back() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&engine, &dir.path().join("f"), &pattern(MIB, 1)).await;
        let arena = arena(2 * MIB);
        let unit = file.alignment().offset;
        let done = engine.read(&file, 1, arena.lease(GRANULE).await.unwrap()).await;
        let error = done.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.place("offset"), Some("1"));
        assert_eq!(done.span.len(), GRANULE);
        let mut span = done.span;
        let odd = span.split_to(unit / 2);
        assert_eq!(engine.read(&file, 0, odd).await.result.unwrap_err().kind(), ErrorKind::Invalid);
        let far =
            engine.read(&file, i64::MAX as u64 / 4096 * 4096, arena.lease(8192).await.unwrap());
        assert_eq!(far.await.result.unwrap_err().kind(), ErrorKind::Invalid);
        let mut span = arena.lease(2 * GRANULE).await.unwrap();
        if file.alignment().memory > 1 {
            drop(span.split_to(1));
            let rest = span.split_to(GRANULE);
            let done = engine.read(&file, 0, rest).await;
            assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(engine.counters().reads, 0, "nothing of this reached the kernel");
    })
    .await;
}

#[tokio::test]
async fn a_kernel_error_names_the_file_and_the_offset() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("write-only");
        std::fs::write(&path, pattern(MIB, 1)).unwrap();
        let only_writable = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let file = engine.adopt(only_writable.into()).await.unwrap();
        assert!(!file.direct());
        let arena = arena(2 * MIB);
        let done = engine.read(&file, 8192, arena.lease(GRANULE).await.unwrap()).await;
        let error = done.result.unwrap_err();
        assert!(error.to_string().contains("Bad file descriptor"), "{error}");
        assert_eq!(error.place("path"), Some(path.to_str().unwrap()));
        assert_eq!(error.place("offset"), Some("8192"));
        assert_eq!(engine.counters().errors, 1);
        let missing = engine.open(&dir.path().join("none"), Open::Read).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let again = engine.open(&path, Open::Create { len: 1 }).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Invalid);
    })
    .await;
}

#[tokio::test]
async fn file_without_direct_io_is_read_and_counted() {
    on_each(4, async |engine| {
        let file = engine.open("/proc/version".as_ref(), Open::Read).await.unwrap();
        assert!(!file.direct(), "procfs has no O_DIRECT");
        assert_eq!(engine.report().buffered_files, 1);
        let arena = arena(2 * MIB);
        let done = engine.read(&file, 0, arena.lease(GRANULE).await.unwrap()).await;
        assert!(done.span[..done.result.unwrap()].starts_with(b"Linux version"));
        drop(file);
        assert_eq!(engine.report().buffered_files, 0);
    })
    .await;
}

#[tokio::test]
async fn pieces_of_a_span_are_read_concurrently() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let bytes = pattern(MIB, 5);
        let file = written(&engine, &dir.path().join("f"), &bytes).await;
        let arena = arena(2 * MIB);
        engine.attach(arena.region()).await.unwrap();
        let mut rest = arena.lease(MIB).await.unwrap();
        let first = rest.split_to(256 << 10);
        let (rest, first) =
            tokio::join!(engine.read(&file, 256 << 10, rest), engine.read(&file, 0, first));
        assert!(*first.span == bytes[..256 << 10]);
        assert!(*rest.span == bytes[256 << 10..]);
        assert_eq!(arena.in_use(), MIB);
        drop(first);
        assert_eq!(arena.in_use(), MIB, "a lease ends with its last piece");
        drop(rest);
        assert_eq!(arena.in_use(), 0);
    })
    .await;
}

#[tokio::test]
async fn full_disk_is_reported_at_file_creation() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = SmallDisk::mount(dir.path()) else {
        return skip(Requirement::Mount, "no tmpfs can be mounted");
    };
    on_each(4, async |engine| {
        let path = mount.0.join("big");
        let error = engine.open(&path, Open::Create { len: 4 << 20 }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(!path.exists(), "no file is left behind");
        let file = engine.open(&path, Open::Create { len: 512 << 10 }).await.unwrap();
        let arena = arena(2 * MIB);
        let mut span = arena.lease(2 * MIB).await.unwrap();
        span.fill(1);
        let error = engine.write(&file, 0, span).await.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(engine.counters().short_writes > 0, "what fitted was taken first");
        drop(file);
        std::fs::remove_file(&path).unwrap();
    })
    .await;
}

/// A tmpfs of one mebibyte, gone with the value.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(at)
            .stderr(std::process::Stdio::null());
        mount.status().ok()?.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn file_is_unregistered_with_its_last_clone() {
    let engine = start(EngineChoice::Ring, 4);
    let dir = tempfile::tempdir().unwrap();
    let arena = arena(2 * MIB);
    let read_often = async |file: &DiskFile| {
        for _ in 0..16 {
            let done = engine.read(file, 0, arena.lease(GRANULE).await.unwrap()).await;
            assert!(done.span[..done.result.unwrap()] == pattern(MIB, 1)[..GRANULE]);
        }
    };
    let file = written(&engine, &dir.path().join("f"), &pattern(MIB, 1)).await;
    // Registering costs more than few operations gain.
    assert_eq!((engine.report().files, engine.report().registered_files), (1, 0));
    read_often(&file).await;
    let clone = file.clone();
    assert_eq!((engine.report().files, engine.report().registered_files), (1, 1));
    drop(file);
    assert_eq!(engine.report().registered_files, 1);
    drop(clone);
    assert_eq!((engine.report().files, engine.report().registered_files), (0, 0));
    // More openings than the table has places: each index is used again.
    for round in 0..1100u32 {
        let path = dir.path().join("small");
        std::fs::write(&path, round.to_le_bytes()).unwrap();
        let file = engine.open(&path, Open::Read).await.unwrap();
        for _ in 0..16 {
            let done = engine.read(&file, 0, arena.lease(GRANULE).await.unwrap()).await;
            assert_eq!(done.result.unwrap(), 4);
            assert_eq!(done.span[..4], round.to_le_bytes());
        }
        assert_eq!(engine.report().registered_files, 1);
    }
    let file = written(&engine, &dir.path().join("g"), &pattern(MIB, 1)).await;
    read_often(&file).await;
    assert_eq!(engine.report().registered_files, 1);
    // Another engine's index means nothing here: the descriptor itself is used.
    let other = start(EngineChoice::Ring, 4);
    let done = other.read(&file, 0, arena.lease(MIB).await.unwrap()).await;
    assert_eq!(done.result.unwrap(), MIB);
    assert!(*done.span == pattern(MIB, 1));
}

#[tokio::test]
async fn region_is_unregistered_when_dropped() {
    let engine = start(EngineChoice::Ring, 4);
    let first = Region::create("test", 2 * MIB).unwrap();
    let second = Region::create("test", 4 * MIB).unwrap();
    assert!(engine.attach(&first).await.unwrap());
    assert!(engine.attach(&second).await.unwrap());
    assert!(engine.attach(&second).await.unwrap(), "twice is once");
    assert_eq!(engine.report().registered_bytes, 6 * MIB);
    drop(first);
    assert_eq!(engine.report().registered_bytes, 4 * MIB);
    engine.detach(&second);
    assert_eq!(engine.report().registered_bytes, 0);
    let dir = tempfile::tempdir().unwrap();
    let file = written(&engine, &dir.path().join("f"), &pattern(MIB, 1)).await;
    let arena = Arena::new(second);
    let done = engine.read(&file, 0, arena.lease(MIB).await.unwrap()).await;
    assert_eq!(done.result.unwrap(), MIB);
    assert_eq!(engine.counters().fixed_ops, 0, "a detached region is not named any more");
    // Many regions come and go on one table.
    for _ in 0..600 {
        assert!(engine.attach(&Region::create("test", 4096).unwrap()).await.unwrap());
    }
    assert_eq!(engine.report().registered_bytes, 0);
}

#[tokio::test]
async fn concurrent_commands_do_not_stall_the_engine() {
    on_each(64, async |engine| {
        let arenas: Vec<Arena> = (0..32).map(|_| arena(1)).collect();
        for _ in 0..50 {
            let attached = join_all(arenas.iter().map(|arena| engine.attach(arena.region()))).await;
            assert!(attached.into_iter().all(|result| result.is_ok()));
            arenas.iter().for_each(|arena| engine.detach(arena.region()));
        }
        assert_eq!(engine.report().registered_bytes, 0);
    })
    .await;
}

#[tokio::test]
async fn a_batch_costs_few_system_calls() {
    let engine = start(EngineChoice::Ring, 64);
    let dir = tempfile::tempdir().unwrap();
    let file = written(&engine, &dir.path().join("f"), &pattern(16 * MIB, 1)).await;
    let arena = arena(16 * MIB);
    engine.attach(arena.region()).await.unwrap();
    let block = 128 << 10;
    let mut reads = Vec::new();
    for at in (0..16 * MIB).step_by(block) {
        let into = arena.lease(block).await.unwrap();
        reads.push(Read { file: file.clone(), offset: at as u64, into });
    }
    let (before, count) = (engine.counters(), reads.len() as u64);
    for done in join_all(engine.read_many(reads)).await {
        assert_eq!(done.result.unwrap(), block);
    }
    let calls = engine.counters().system_calls - before.system_calls;
    // On a busy machine completions come one by one.
    assert!(calls <= count / 2, "{calls} calls for {count} blocks");
}

#[test]
fn a_depth_out_of_range_is_invalid() {
    for depth in [0, 100_000] {
        let config = EngineConfig { depth, ..EngineConfig::default() };
        assert_eq!(Engine::start(config).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn last_handle_waits_for_operations_in_flight() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let arena = arena(4 * MIB);
        let file = engine.open(&path, Open::Create { len: 2 * MIB as u64 }).await.unwrap();
        let mut span = arena.lease(2 * MIB).await.unwrap();
        span.copy_from_slice(&pattern(2 * MIB, 9));
        let operation = engine.write(&file, 0, span);
        drop(engine);
        let mut found = vec![0; 2 * MIB];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found == pattern(2 * MIB, 9), "the write was over when the drop returned");
        assert_eq!(operation.await.result.unwrap(), 2 * MIB);
        drop(file);
        assert_eq!(arena.in_use(), 0);
    })
    .await;
}

/// Returns the number of the file's pages in the page cache.
fn cached_pages(path: &Path) -> usize {
    let file = std::fs::File::open(path).expect("the file opens");
    let len = file.metadata().expect("the file has a length").len() as usize;
    // SAFETY: a new read-only mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0)
    };
    let base = base.expect("the file maps");
    let mut resident = vec![0u8; len.div_ceil(GRANULE)];
    // SAFETY: the range is mapped and the vector has one byte for each of its pages.
    let code = unsafe { libc::mincore(base, len, resident.as_mut_ptr()) };
    assert_eq!(code, 0);
    // SAFETY: the mapping was made above and is not used after this.
    unsafe { rustix::mm::munmap(base, len) }.expect("our own mapping");
    resident.iter().filter(|page| **page & 1 == 1).count()
}

#[tokio::test]
async fn direct_transfers_bypass_the_page_cache() {
    on_each(4, async |engine| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shard");
        let file = engine.open(&path, Open::Create { len: MIB as u64 }).await.unwrap();
        let in_memory = rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS;
        if !file.direct() || in_memory {
            return skip(Requirement::DirectIo, "the temporary directory is in memory");
        }
        let arena = arena(2 * MIB);
        let done = engine.write(&file, 0, arena.lease(MIB).await.unwrap()).await;
        assert_eq!(done.result.unwrap(), MIB);
        let done = engine.read(&file, 0, done.span).await;
        assert_eq!(done.result.unwrap(), MIB);
        assert_eq!(cached_pages(&path), 0);
        std::fs::read(&path).unwrap();
        assert!(cached_pages(&path) > 0, "the measure itself works");
    })
    .await;
}

/// Every future of the crate can be spawned on a runtime with several threads.
#[test]
fn futures_are_send() {
    fn check<T: Send>(_: &T) {}
    let engine = start(EngineChoice::Threads, 1);
    let arena = arena(1);
    check(&engine.attach(arena.region()));
    check(&engine.open(Path::new("/"), Open::Read));
    check(&arena.lease(1));
    fn check_type<T: Send + Unpin + 'static>() {}
    check_type::<forebay_uring::Operation>();
}
