//! The same operations on each engine, and the same results.
//!
//! Engines may differ in speed and in nothing that a caller can see: what was moved, what
//! went wrong and where, which bytes came, and which bytes the file holds in the end.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod engines;

use std::path::Path;
use std::sync::Arc;

use engines::{CHOICES, arena, pattern, start};
use forebay_error::ErrorKind;
use forebay_uring::{
    Arena, Attempt, AttemptKind, DiskFile, Engine, EngineChoice, Fate, Faults, GRANULE, Open,
};
use proptest::prelude::*;

/// Granules of the file before the first operation; operations go up to twice as far.
const GRANULES: u64 = 8;

/// Cases of one run: some hundred sequences pass every pair of operations many times over, and end
/// within seconds.
const CASES: u32 = 128;

/// One operation. Places and lengths count in granules.
#[derive(Debug, Clone)]
enum Step {
    Read {
        at: u64,
        len: usize,
    },
    Write {
        at: u64,
        len: usize,
        seed: u64,
    },
    Sync,
    /// A read of what is no multiple of anything.
    Crooked {
        at: u64,
    },
    /// A write through a handle that may only read: the kernel's own refusal.
    Forbidden {
        at: u64,
    },
    /// A write or read with a fault.
    Faulty {
        write: bool,
        at: u64,
        len: usize,
        seed: u64,
        fault: Fault,
    },
    /// The file's length is changed past the engine, to any number of bytes.
    Cut {
        bytes: u64,
    },
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Short(usize),
    Torn(usize),
    Fail(i32),
}

impl Faults for Fault {
    fn fate(&self, _: &Attempt<'_>) -> Fate {
        match *self {
            Self::Short(bytes) => Fate::Short(bytes),
            Self::Torn(bytes) => Fate::Torn(bytes),
            Self::Fail(errno) => Fate::Fail(errno),
        }
    }

    fn landed(&self, attempt: &Attempt<'_>, _: bool) {
        assert_ne!(attempt.kind, AttemptKind::Sync);
    }
}

/// All that a caller sees of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Moved(usize, Vec<u8>),
    Failed(ErrorKind, String),
    Nothing,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..2 * GRANULES;
    let len = 1..=GRANULES as usize;
    let bytes = 0..=GRANULES as usize * GRANULE;
    let fault = prop_oneof![
        bytes.clone().prop_map(Fault::Short),
        bytes.prop_map(Fault::Torn),
        prop::sample::select(vec![libc::EIO, libc::ENOSPC, libc::EINTR]).prop_map(Fault::Fail),
    ];
    let step = prop_oneof![
        4 => (place.clone(), len.clone()).prop_map(|(at, len)| Step::Read { at, len }),
        4 => (place.clone(), len.clone(), any::<u64>())
            .prop_map(|(at, len, seed)| Step::Write { at, len, seed }),
        1 => Just(Step::Sync),
        1 => (1..GRANULE as u64).prop_map(|at| Step::Crooked { at }),
        1 => place.clone().prop_map(|at| Step::Forbidden { at }),
        3 => (any::<bool>(), place, len, any::<u64>(), fault)
            .prop_map(|(write, at, len, seed, fault)| Step::Faulty { write, at, len, seed, fault }),
        1 => (0..2 * GRANULES * GRANULE as u64).prop_map(|bytes| Step::Cut { bytes }),
    ];
    prop::collection::vec(step, 1..24)
}

/// One engine with a file of its own, of the same name in another directory.
struct Lane {
    choice: EngineChoice,
    engine: Engine,
    arena: Arena,
    directory: tempfile::TempDir,
}

/// The file of one case.
struct Place<'a> {
    lane: &'a Lane,
    file: DiskFile,
    /// Another handle that may only read.
    reader: DiskFile,
}

impl Lane {
    async fn new(choice: EngineChoice) -> Self {
        let engine = start(choice, 4);
        let arena = arena(GRANULES as usize * GRANULE);
        engine.attach(arena.region()).await.unwrap();
        Self { choice, engine, arena, directory: tempfile::tempdir().unwrap() }
    }

    async fn run(&self, steps: &[Step]) -> (Vec<Seen>, Vec<u8>) {
        let path = self.directory.path().join("shard");
        std::fs::write(&path, pattern(GRANULES as usize * GRANULE, 0)).unwrap();
        let file = self.engine.open(&path, Open::Update).await.unwrap();
        let reader = self.engine.open(&path, Open::Read).await.unwrap();
        let place = Place { lane: self, file, reader };
        let mut seen = Vec::new();
        for step in steps {
            seen.push(place.take(step, &path).await);
        }
        drop(place);
        assert_eq!(self.arena.in_use(), 0, "{:?}", self.choice);
        (seen, std::fs::read(&path).unwrap())
    }
}

impl Place<'_> {
    async fn take(&self, step: &Step, path: &Path) -> Seen {
        let engine = &self.lane.engine;
        match *step {
            Step::Read { at, len } => self.read(engine, at * GRANULE as u64, len).await,
            Step::Write { at, len, seed } => self.write(engine, &self.file, at, len, seed).await,
            Step::Sync => match engine.sync_data(&self.file).await {
                Ok(()) => Seen::Nothing,
                Err(error) => failed(&error, path),
            },
            Step::Crooked { at } => self.read(engine, at, 1).await,
            Step::Forbidden { at } => self.write(engine, &self.reader, at, 1, 0).await,
            Step::Faulty { write, at, len, seed, fault } => {
                let faulty = engine.with_faults(Arc::new(fault));
                if write {
                    self.write(&faulty, &self.file, at, len, seed).await
                } else {
                    self.read(&faulty, at * GRANULE as u64, len).await
                }
            }
            Step::Cut { bytes } => {
                std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
                Seen::Nothing
            }
        }
    }

    async fn read(&self, engine: &Engine, offset: u64, len: usize) -> Seen {
        let into = self.lane.arena.lease(len * GRANULE).await.unwrap();
        let done = engine.read(&self.file, offset, into).await;
        assert_eq!(done.span.len(), len * GRANULE, "the span comes back whole");
        match done.result {
            Ok(read) => Seen::Moved(read, done.span[..read].to_vec()),
            Err(error) => failed(&error, self.file.path().unwrap()),
        }
    }

    async fn write(&self, engine: &Engine, to: &DiskFile, at: u64, len: usize, seed: u64) -> Seen {
        let mut from = self.lane.arena.lease(len * GRANULE).await.unwrap();
        from.copy_from_slice(&pattern(len * GRANULE, seed));
        let done = engine.write(to, at * GRANULE as u64, from).await;
        match done.result {
            Ok(written) => Seen::Moved(written, Vec::new()),
            Err(error) => failed(&error, to.path().unwrap()),
        }
    }
}

/// An error without the directory, in which lanes differ.
fn failed(error: &forebay_error::Error, path: &Path) -> Seen {
    let directory = path.parent().unwrap().to_str().unwrap();
    Seen::Failed(error.kind(), error.to_string().replace(directory, ""))
}

#[test]
fn all_engines_give_the_same_results() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let lanes: Vec<Lane> =
        CHOICES.iter().map(|choice| runtime.block_on(Lane::new(*choice))).collect();
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() };
    proptest!(config, |(steps in steps())| {
        let mut seen = lanes.iter().map(|lane| (lane.choice, runtime.block_on(lane.run(&steps))));
        let (first, expected) = seen.next().expect("there are engines");
        for (choice, found) in seen {
            for (number, pair) in expected.0.iter().zip(&found.0).enumerate() {
                let ours = (pair.0 == pair.1, &steps[number]);
                prop_assert!(ours.0, "{:?}: {:?} saw {:?}, {:?} saw {:?}", ours.1, first, pair.0, choice, pair.1);
            }
            prop_assert!(expected.1 == found.1, "{:?} and {:?} left other files", first, choice);
        }
    });
}
