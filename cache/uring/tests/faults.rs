//! Operations that go wrong on purpose, over each engine.
//!
//! A fault changes what it names and nothing else: bytes are right or the operation says
//! that it failed, every span comes back, and each fate is told how it ended before its caller is.

mod engines;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use engines::{MIB, arena, on_each, pattern};
use forebay_error::ErrorKind;
use forebay_uring::{
    Arena, Attempt, AttemptKind, DiskFile, Done, Engine, EnginePlace, Fate, Faults, GRANULE, Open,
    Read,
};
use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::oneshot;

/// Bytes of the file that cases work on.
const LEN: usize = 64 * GRANULE;

/// Longest wait before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Record of an attempt.
struct Asked {
    id: u64,
    what: (AttemptKind, u64, usize),
    path: Option<PathBuf>,
}

/// Fates in the order of the attempts (then none), and what was told.
#[derive(Default)]
struct Script {
    fates: Mutex<VecDeque<Fate>>,
    asked: Mutex<Vec<Asked>>,
    landed: Mutex<Vec<(u64, bool)>>,
}

impl Script {
    fn of(fates: impl IntoIterator<Item = Fate>) -> Arc<Self> {
        Arc::new(Self { fates: Mutex::new(fates.into_iter().collect()), ..Self::default() })
    }

    /// Returns the results in the order of completion.
    fn endings(&self) -> Vec<bool> {
        self.landed
            .lock()
            .expect("nothing panics meanwhile")
            .iter()
            .map(|(_, is_ok)| *is_ok)
            .collect()
    }
}

impl Faults for Script {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let Attempt { id, kind, file, offset, len } = *attempt;
        let path = file.path().map(Into::into);
        self.asked.lock().expect("nothing panics meanwhile").push(Asked {
            id,
            what: (kind, offset, len),
            path,
        });
        self.fates.lock().expect("nothing panics meanwhile").pop_front().unwrap_or(Fate::Pass)
    }

    fn landed(&self, attempt: &Attempt<'_>, is_ok: bool) {
        self.landed.lock().expect("nothing panics meanwhile").push((attempt.id, is_ok));
    }
}

/// An engine, a file of `LEN` patterned bytes, and memory.
struct Bench {
    engine: Engine,
    file: DiskFile,
    path: PathBuf,
    arena: Arena,
    _directory: tempfile::TempDir,
}

impl Bench {
    async fn new(engine: Engine) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("shard");
        std::fs::write(&path, pattern(LEN, 1)).expect("the file is written");
        let file = engine.open(&path, Open::Update).await.expect("the file opens");
        let arena = arena(2 * MIB);
        engine.attach(arena.region()).await.expect("the engine runs");
        Self { engine, file, path, arena, _directory: directory }
    }

    async fn read(&self, script: &Arc<Script>) -> Done {
        let into = self.arena.lease(LEN).await.expect("there is room");
        self.engine.with_faults(script.clone()).read(&self.file, 0, into).await
    }

    /// Writes the pattern of `seed` over the whole file.
    async fn write(&self, script: &Arc<Script>, seed: u64) -> Done {
        let mut from = self.arena.lease(LEN).await.expect("there is room");
        from.copy_from_slice(&pattern(LEN, seed));
        self.engine.with_faults(script.clone()).write(&self.file, 0, from).await
    }

    /// Returns the file's content, read past the engine.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        let file = std::fs::File::open(&self.path).expect("the file opens");
        file.read_exact_at(&mut bytes, 0).expect("the file is long enough");
        bytes
    }
}

#[tokio::test]
async fn short_transfers_move_the_right_bytes() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let shorts = [0, 1, 511, 512, GRANULE, GRANULE + 1, LEN - 1, LEN, usize::MAX];
        let before = bench.engine.counters();
        for (seed, bytes) in (2..).zip(shorts) {
            let script = Script::of([Fate::Short(bytes), Fate::Short(bytes)]);
            let done = bench.write(&script, seed).await;
            assert_eq!(done.result.unwrap(), LEN, "written, {bytes} at first");
            drop(done.span);
            assert!(bench.bytes() == pattern(LEN, seed));
            let done = bench.read(&script).await;
            assert_eq!(done.result.unwrap(), LEN, "read, {bytes} at first");
            assert!(*done.span == pattern(LEN, seed));
            assert_eq!(script.endings(), [true, true]);
        }
        // Two of them were as long as the transfer or longer.
        let after = bench.engine.counters();
        let really = shorts.len() as u64 - 2;
        assert_eq!(after.short_reads - before.short_reads, really);
        assert_eq!(after.short_writes - before.short_writes, really);
    })
    .await;
}

#[tokio::test]
async fn short_read_near_the_end_returns_the_rest_of_the_file() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let end = 3 * GRANULE + 700;
        std::fs::OpenOptions::new()
            .write(true)
            .open(&bench.path)
            .unwrap()
            .set_len(end as u64)
            .unwrap();
        for bytes in [1, GRANULE, end - 1, end, end + 1] {
            let done = bench.read(&Script::of([Fate::Short(bytes)])).await;
            assert_eq!(done.result.unwrap(), end, "{bytes} at first");
            assert!(done.span[..end] == pattern(LEN, 1)[..end]);
        }
    })
    .await;
}

#[tokio::test]
async fn injected_errors_look_like_kernel_errors_and_write_nothing() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let before = bench.engine.counters().errors;
        for (errno, kind) in [
            (libc::EIO, ErrorKind::Unavailable),
            (libc::ENOSPC, ErrorKind::Full),
            (libc::EACCES, ErrorKind::PermissionDenied),
        ] {
            let script = Script::of([Fate::Fail(errno), Fate::Fail(errno), Fate::Fail(errno)]);
            let written = bench.write(&script, 9).await.result.unwrap_err();
            let read = bench.read(&script).await.result.unwrap_err();
            let synced =
                bench.engine.with_faults(script.clone()).sync_data(&bench.file).await.unwrap_err();
            for error in [written, read, synced] {
                assert_eq!(error.kind(), kind, "{error}");
                assert_eq!(error.place("path"), bench.path.to_str());
                assert_eq!(error.place("offset"), Some("0"));
            }
            assert_eq!(script.endings(), [false; 3]);
            assert!(bench.bytes() == pattern(LEN, 1));
        }
        assert_eq!(bench.engine.counters().errors - before, 9, "they count as any others");
        assert_eq!(bench.arena.in_use(), 0);
        let again = Script::of([Fate::Fail(libc::EINTR), Fate::Fail(libc::EAGAIN)]);
        assert_eq!(bench.write(&again, 3).await.result.unwrap(), LEN, "these two pass");
        assert_eq!(bench.read(&again).await.result.unwrap(), LEN);
        assert_eq!(again.endings(), [true, true]);
    })
    .await;
}

#[tokio::test]
async fn torn_write_writes_only_its_head() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let sector = if bench.file.direct() { bench.file.alignment().offset } else { 1 };
        for bytes in [0, 1, 4095, 4096, 5 * GRANULE, LEN - 1, LEN] {
            std::fs::write(&bench.path, pattern(LEN, 1)).unwrap();
            let script = Script::of([Fate::Torn(bytes)]);
            let error = bench.write(&script, 2).await.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(script.endings(), [false]);
            let head = bytes / sector * sector;
            let found = bench.bytes();
            assert!(found[..head] == pattern(LEN, 2)[..head], "torn at {bytes}");
            assert!(found[head..] == pattern(LEN, 1)[head..], "torn at {bytes}");
        }
        let script = Script::of([Fate::Torn(GRANULE), Fate::Torn(GRANULE)]);
        assert!(bench.read(&script).await.result.is_err(), "a read fails whole");
        assert!(bench.engine.with_faults(script).sync_data(&bench.file).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn delayed_operation_waits_and_blocks_no_other() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let (go, wait) = oneshot::channel::<()>();
        let script = Script::of([Fate::Wait(wait.map(drop).boxed())]);
        let mut write = Box::pin(bench.write(&script, 2));
        assert!(write.as_mut().now_or_never().is_none());
        // Others are not held up.
        assert_eq!(bench.read(&Script::of([])).await.result.unwrap(), LEN);
        assert!(bench.bytes() == pattern(LEN, 1), "the kernel has not heard of it");
        assert!(script.endings().is_empty());
        go.send(()).unwrap();
        let done = tokio::time::timeout(PATIENCE, write).await.expect("it goes on");
        assert_eq!(done.result.unwrap(), LEN);
        assert!(bench.bytes() == pattern(LEN, 2));
        assert_eq!(script.endings(), [true]);
        let (go, wait) = oneshot::channel::<()>();
        let script = Script::of([Fate::Wait(wait.map(drop).boxed())]);
        let faulty = bench.engine.with_faults(script.clone());
        let mut sync = Box::pin(faulty.sync_data(&bench.file));
        assert!(sync.as_mut().now_or_never().is_none());
        go.send(()).unwrap();
        tokio::time::timeout(PATIENCE, sync).await.expect("it goes on").unwrap();
    })
    .await;
}

/// Operations on their caller's thread count, wait and fail as others do.
#[tokio::test]
async fn operations_at_a_place_are_as_any_other() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let place = async |script: &Arc<Script>| {
            bench.engine.with_faults(script.clone()).place().await.unwrap()
        };
        let file = bench.file.clone();
        let sync = |place: EnginePlace| {
            let file = file.clone();
            tokio::task::spawn_blocking(move || place.sync_data(&file))
        };
        let before = bench.engine.counters();
        sync(bench.engine.place().await.unwrap()).await.unwrap().unwrap();
        let script = Script::of([Fate::Fail(libc::EINTR)]);
        sync(place(&script).await).await.unwrap().unwrap();
        assert_eq!(script.endings(), [true]);
        let script = Script::of([Fate::Fail(libc::EIO)]);
        let failed = sync(place(&script).await).await.unwrap().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert_eq!(script.endings(), [false]);
        let after = bench.engine.counters();
        assert_eq!((after.syncs - before.syncs, after.errors - before.errors), (3, 1));
        let (go, wait) = oneshot::channel::<()>();
        let waiting = sync(place(&Script::of([Fate::Wait(wait.map(drop).boxed())])).await);
        assert!(bench.engine.place().await.is_ok(), "its place is its own");
        go.send(()).unwrap();
        tokio::time::timeout(PATIENCE, waiting).await.expect("it goes on").unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn writes_at_a_place_reach_the_file() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let mut from = bench.arena.lease(LEN).await.unwrap();
        from.copy_from_slice(&pattern(LEN, 3));
        let from = from.freeze();
        let write = async |script: &Arc<Script>, offset| {
            let place = bench.engine.with_faults(script.clone()).place().await.unwrap();
            let (file, from) = (bench.file.clone(), from.clone());
            let written = move || place.write_frozen(&file, offset, from);
            tokio::task::spawn_blocking(written).await.unwrap()
        };
        // A short write goes on where it stopped.
        let script = Script::of([Fate::Short(GRANULE)]);
        assert_eq!(write(&script, 0).await.unwrap(), LEN);
        let into = bench.arena.lease(LEN).await.unwrap();
        let read = bench.engine.read(&bench.file, 0, into).await;
        assert_eq!(read.result.unwrap(), LEN);
        assert!(read.span[..] == from[..]);
        let script = Script::of([Fate::Fail(libc::ENOSPC)]);
        assert_eq!(write(&script, 0).await.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(script.endings(), [false]);
        let script = Script::of([]);
        assert_eq!(write(&script, 1).await.unwrap_err().kind(), ErrorKind::Invalid);
    })
    .await;
}

#[tokio::test]
async fn dropped_future_leaves_nothing_behind() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let (go, wait) = oneshot::channel::<()>();
        let script = Script::of([Fate::Wait(wait.map(drop).boxed())]);
        let mut from = bench.arena.lease(LEN).await.unwrap();
        from.copy_from_slice(&pattern(LEN, 2));
        let write = bench.engine.with_faults(script.clone()).write(&bench.file, 0, from);
        drop(write);
        assert_eq!(bench.arena.in_use(), LEN, "the operation has its span");
        assert!(bench.bytes() == pattern(LEN, 1));
        go.send(()).unwrap();
        let Bench { engine, file, arena, ref path, .. } = bench;
        drop((engine, file));
        assert_eq!(arena.in_use(), 0);
        assert_eq!(script.endings(), [true]);
        assert!(std::fs::read(path).unwrap() == pattern(LEN, 2), "it was under way");
    })
    .await;
}

#[tokio::test]
async fn delay_outliving_its_engine_ends_closed() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let (go, wait) = oneshot::channel::<()>();
        let script = Script::of([Fate::Wait(wait.map(drop).boxed())]);
        let from = bench.arena.lease(LEN).await.unwrap();
        let write = bench.engine.with_faults(script.clone()).write(&bench.file, 0, from);
        let Bench { engine, file, arena, ref path, .. } = bench;
        drop(engine);
        go.send(()).unwrap();
        let done = write.await;
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(done.span.len(), LEN, "the span comes back");
        drop((done.span, file));
        assert_eq!(arena.in_use(), 0);
        assert_eq!(script.endings(), [false]);
        assert!(std::fs::read(path).unwrap() == pattern(LEN, 1));
    })
    .await;
}

#[tokio::test]
async fn endless_delay_ends_closed() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let script = Script::of([Fate::Wait(std::future::pending().boxed())]);
        let done = bench.write(&script, 2).await;
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(done.span.len(), LEN);
        assert_eq!(script.endings(), [false]);
        assert!(bench.bytes() == pattern(LEN, 1));
    })
    .await;
}

#[tokio::test]
async fn each_of_many_reads_has_its_own_fault() {
    on_each(2, async |engine| {
        let bench = Bench::new(engine).await;
        let fates = |number| match number % 4 {
            0 => Fate::Pass,
            1 => Fate::Short(100),
            2 => Fate::Fail(libc::EIO),
            _ => Fate::Wait(tokio::task::yield_now().boxed()),
        };
        let script = Script::of((0..64).map(fates));
        let read = |number: usize| Read {
            file: bench.file.clone(),
            offset: (number * GRANULE) as u64,
            into: bench.arena.try_lease(GRANULE).unwrap(),
        };
        // 64 on 4 permits: most have their fate only when they are polled, in whichever order.
        let operations =
            bench.engine.with_faults(script.clone()).read_many((0..64).map(read).collect());
        let done = join_all(operations).await;
        let whole = pattern(LEN, 1);
        let mut failed = 0;
        for (number, done) in done.into_iter().enumerate() {
            match done.result {
                Ok(read) => {
                    assert_eq!(read, GRANULE);
                    assert!(*done.span == whole[number * GRANULE..][..GRANULE]);
                }
                Err(_) => failed += 1,
            }
        }
        assert_eq!(failed, 16);
        assert_eq!(bench.arena.in_use(), 0);
        let mut asked: Vec<_> = script.asked.lock().unwrap().iter().map(|asked| asked.id).collect();
        let mut landed: Vec<_> = script.landed.lock().unwrap().iter().map(|told| told.0).collect();
        asked.sort_unstable();
        landed.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), 64);
        assert_eq!(asked, landed, "each fate is told its ending, once");
    })
    .await;
}

#[tokio::test]
async fn faults_see_each_attempt_of_their_handle_only() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let script = Script::of([]);
        let faulty = bench.engine.with_faults(script.clone());
        let span = bench.arena.lease(2 * GRANULE).await.unwrap();
        let done = faulty.read(&bench.file, GRANULE as u64, span).await;
        let done = faulty.write(&bench.file, 8 * GRANULE as u64, done.span).await;
        faulty.sync_data(&bench.file).await.unwrap();
        let done = bench.engine.read(&bench.file, 0, done.span).await;
        let misaligned = faulty.read(&bench.file, 1, done.span).await;
        assert_eq!(misaligned.result.unwrap_err().kind(), ErrorKind::Invalid);
        let asked = script.asked.lock().unwrap();
        let seen: Vec<_> = asked.iter().map(|asked| asked.what).collect();
        let unit = GRANULE as u64;
        assert_eq!(
            seen,
            [
                (AttemptKind::Read, unit, 2 * GRANULE),
                (AttemptKind::Write, 8 * unit, 2 * GRANULE),
                (AttemptKind::Sync, 0, 0)
            ]
        );
        assert!(asked.iter().all(|asked| asked.path.as_ref() == Some(&bench.path)));
        assert_eq!(script.endings(), [true; 3]);
    })
    .await;
}

/// The caller has no answer yet when the ending is reported.
#[tokio::test]
async fn ending_is_reported_before_the_caller_resumes() {
    struct Early(Mutex<mpsc::Receiver<()>>, Mutex<Option<bool>>);
    impl Faults for Early {
        fn fate(&self, _: &Attempt<'_>) -> Fate {
            Fate::Pass
        }

        fn landed(&self, _: &Attempt<'_>, _: bool) {
            // Waits until the test has seen that the operation is not over.
            let looked = self.0.lock().unwrap().recv_timeout(PATIENCE);
            *self.1.lock().unwrap() = Some(looked.is_ok());
        }
    }
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let (seen, looked) = mpsc::channel();
        let early = Arc::new(Early(Mutex::new(looked), Mutex::new(None)));
        let into = bench.arena.lease(LEN).await.unwrap();
        let mut read = bench.engine.with_faults(early.clone()).read(&bench.file, 0, into);
        assert!((&mut read).now_or_never().is_none());
        seen.send(()).unwrap();
        assert_eq!(read.await.result.unwrap(), LEN);
        assert_eq!(*early.1.lock().unwrap(), Some(true));
    })
    .await;
}

/// Frozen bytes may be read while they are written; none of them come back with the answer, and
/// their memory is free when the last holder is gone.
#[tokio::test]
async fn frozen_bytes_are_read_and_written_at_once() {
    on_each(4, async |engine| {
        let bench = Bench::new(engine).await;
        let (release, released) = oneshot::channel::<()>();
        let script = Script::of([Fate::Wait(Box::pin(async { drop(released.await) }))]);
        let mut span = bench.arena.lease(LEN).await.unwrap();
        span.copy_from_slice(&pattern(LEN, 7));
        let frozen = span.freeze();
        let engine = bench.engine.with_faults(script);
        let writing = engine.write_frozen(&bench.file, 0, frozen.head(LEN - GRANULE));
        assert!(*frozen == pattern(LEN, 7), "readable while it is written");
        release.send(()).unwrap();
        let done = writing.await;
        assert_eq!((done.result.unwrap(), done.span.len()), (LEN - GRANULE, 0));
        let mut wanted = pattern(LEN, 7);
        wanted[LEN - GRANULE..].copy_from_slice(&pattern(LEN, 1)[LEN - GRANULE..]);
        assert!(bench.bytes() == wanted, "the head was written, and only that");
        drop(done.span);
        assert!(bench.arena.in_use() > 0, "somebody still holds it");
        drop(frozen);
        assert_eq!(bench.arena.in_use(), 0);
    })
    .await;
}
