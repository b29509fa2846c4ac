//! Futures dropped at every moment, under load.
//!
//! After the storm every byte of memory is free again, and no operation that was awaited
//! saw another's bytes.

mod engines;

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::task::{Context, Waker};

use engines::{CHOICES, start};
use forebay_uring::{Arena, DiskFile, Engine, GRANULE, Open, Operation, Read, Region};
use futures::future::join_all;

const BLOCK: usize = 4 * GRANULE;
const BLOCKS: usize = 256;

/// A block whose every word says which block it is.
fn block(number: usize) -> Vec<u8> {
    (number as u64).to_le_bytes().repeat(BLOCK / 8)
}

/// A repeatable stream of choices (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

/// Drops the operation before, at or after its first poll, or awaits it.
async fn mistreat(operation: Operation, dice: &mut Dice) -> Option<forebay_uring::Done> {
    match dice.roll(3) {
        0 => None,
        1 => {
            let mut operation = pin!(operation);
            // A result that is there already is dropped with the rest.
            let _early = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            None
        }
        _ => Some(operation.await),
    }
}

async fn read_in_a_storm(engine: Engine, file: DiskFile, arena: Arena, seed: u64) {
    let mut dice = Dice(seed);
    for _ in 0..300 {
        let number = dice.roll(BLOCKS);
        let mut into = arena.lease(BLOCK).await.expect("leases are served in turn");
        into.fill(0xee);
        let operation = engine.read(&file, (number * BLOCK) as u64, into);
        if let Some(done) = mistreat(operation, &mut dice).await {
            assert_eq!(done.result.expect("the read goes well"), BLOCK);
            assert!(*done.span == block(number), "block {number} holds other bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_dropped_at_any_moment_leave_nothing_behind() {
    for choice in CHOICES {
        let engine = start(*choice, 4);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        std::fs::write(&path, (0..BLOCKS).flat_map(block).collect::<Vec<u8>>()).unwrap();
        let file = engine.open(&path, Open::Read).await.unwrap();
        // Little room, so that freed bytes are leased again at once.
        let arena = Arena::new(Region::create("storm", 1).unwrap());
        engine.attach(arena.region()).await.unwrap();
        let small = arena.try_lease(arena.capacity() - 12 * BLOCK).unwrap();
        let tasks: Vec<_> = (1..=8)
            .map(|seed| (engine.clone(), file.clone(), arena.clone(), seed * 0x9e37_79b9))
            .map(|(engine, file, arena, seed)| {
                tokio::spawn(read_in_a_storm(engine, file, arena, seed))
            })
            .collect();
        for task in join_all(tasks).await {
            task.unwrap();
        }
        drop(small);
        drop(engine);
        assert_eq!(arena.in_use(), 0, "{choice:?}");
    }
}

#[tokio::test]
async fn dropped_write_is_never_torn() {
    for choice in CHOICES {
        let engine = start(*choice, 2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let file = engine.open(&path, Open::Create { len: (BLOCKS * BLOCK) as u64 }).await.unwrap();
        let arena = Arena::new(Region::create("storm", 8 * BLOCK).unwrap());
        let mut dice = Dice(77);
        let mut awaited = vec![false; BLOCKS];
        for (number, awaited) in awaited.iter_mut().enumerate() {
            let mut from = arena.lease(BLOCK).await.unwrap();
            from.copy_from_slice(&block(number + 1));
            let operation = engine.write(&file, (number * BLOCK) as u64, from);
            if let Some(done) = mistreat(operation, &mut dice).await {
                assert_eq!(done.result.unwrap(), BLOCK);
                *awaited = true;
            }
        }
        drop(engine);
        assert_eq!(arena.in_use(), 0, "{choice:?}");
        let file = std::fs::File::open(&path).unwrap();
        for (number, awaited) in awaited.into_iter().enumerate() {
            let mut found = vec![0xee; BLOCK];
            file.read_exact_at(&mut found, (number * BLOCK) as u64).unwrap();
            let unwritten = !awaited && found == block(0);
            assert!(unwritten || found == block(number + 1), "block {number} is torn or lost");
        }
    }
}

#[tokio::test]
async fn operations_beyond_the_permits_wait_to_be_polled() {
    for choice in CHOICES {
        let engine = start(*choice, 2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        std::fs::write(&path, (0..BLOCKS).flat_map(block).collect::<Vec<u8>>()).unwrap();
        let file = engine.open(&path, Open::Read).await.unwrap();
        let arena = Arena::new(Region::create("storm", 64 * BLOCK).unwrap());
        let read = |number: usize| Read {
            file: file.clone(),
            offset: (number * BLOCK) as u64,
            into: arena.try_lease(BLOCK).unwrap(),
        };
        let mut operations = engine.read_many((0..64).map(read).collect());
        // Depth 2 gives 4 permits.
        let rest = operations.split_off(4);
        for (number, done) in join_all(operations).await.into_iter().enumerate() {
            assert_eq!(done.result.unwrap(), BLOCK);
            assert!(*done.span == block(number));
        }
        assert_eq!(engine.counters().reads, 4, "those without a permit have not begun");
        assert!(rest.iter().all(|operation| format!("{operation:?}") == "Operation(waiting)"));
        for (number, done) in join_all(rest).await.into_iter().enumerate() {
            assert_eq!(done.result.unwrap(), BLOCK);
            assert!(*done.span == block(number + 4));
        }
        assert_eq!(engine.counters().reads, 64);
    }
}

#[tokio::test]
async fn stopped_engine_closes_waiters_and_returns_spans() {
    for choice in CHOICES {
        let engine = start(*choice, 1);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), block(1)).unwrap();
        let file = engine.open(file.path(), Open::Read).await.unwrap();
        let arena = Arena::new(Region::create("storm", 8 * BLOCK).unwrap());
        // At once, so that none of the first two can be done before the third asks for a permit.
        let read =
            |_| Read { file: file.clone(), offset: 0, into: arena.try_lease(BLOCK).unwrap() };
        let operations = engine.read_many((0..3).map(read).collect());
        drop(engine);
        let done = join_all(operations).await;
        let kinds: Vec<_> = done.iter().map(|d| d.result.as_ref().map_err(|e| e.kind())).collect();
        assert_eq!(kinds, [Ok(&BLOCK), Ok(&BLOCK), Err(forebay_error::ErrorKind::Closed)]);
        assert!(done.iter().all(|done| done.span.len() == BLOCK));
        drop(done);
        assert_eq!(arena.in_use(), 0);
    }
}
