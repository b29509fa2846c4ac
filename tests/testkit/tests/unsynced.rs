//! Power cuts: unsynced writes are lost in some cut, synced ones in none.
//!
//! Each claim is tested over many seeds, because one cut shows one outcome.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_testkit::Unsynced;
use forebay_uring::{
    Arena, Attempt, AttemptKind, DiskFile, Engine, EngineConfig, Fate, Faults, Open, Region,
};
use tokio::sync::oneshot;

/// Sectors of the file.
const SECTORS: usize = 16;
const SECTOR: usize = 4096;

/// Cuts per claim: of two outcomes per sector, one stays unseen with a chance of 2⁻³².
const CUTS: u64 = 32;

/// A file of zeros, written through a journal.
struct Disk {
    engine: Engine,
    file: DiskFile,
    directory: tempfile::TempDir,
    arena: Arena,
}

impl Disk {
    async fn new(unsynced: &Arc<Unsynced>) -> Self {
        let config = EngineConfig { depth: 4, ..EngineConfig::default() };
        let engine = Engine::start(config).unwrap().with_faults(unsynced.clone());
        let directory = tempfile::tempdir().unwrap();
        let len = (SECTORS * SECTOR) as u64;
        let file =
            engine.open(&directory.path().join("shard"), Open::Create { len }).await.unwrap();
        let arena = Arena::new(Region::create("test", 1).unwrap());
        Self { engine, file, directory, arena }
    }

    /// Fills sectors with a byte.
    async fn write(&self, first: usize, count: usize, byte: u8) {
        let mut from = self.arena.lease(count * SECTOR).await.unwrap();
        from.fill(byte);
        let done = self.engine.write(&self.file, (first * SECTOR) as u64, from).await;
        assert_eq!(done.result.unwrap(), count * SECTOR);
    }

    /// Stops the engine and cuts the power; returns the byte that fills each sector, and the number
    /// of sectors lost.
    fn cut(self, unsynced: &Unsynced, seed: u64) -> (Vec<u8>, usize) {
        let Self { engine, file, directory, .. } = self;
        drop((engine, file));
        let lost = unsynced.cut(seed);
        assert_eq!(unsynced.at_risk(), 0, "a cut is the end of it");
        (sectors(&directory.path().join("shard")), lost)
    }
}

fn sectors(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SECTORS * SECTOR];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    let whole = |sector: &[u8]| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
        sector[0]
    };
    bytes.chunks(SECTOR).map(whole).collect()
}

#[tokio::test]
async fn synced_writes_are_never_lost() {
    for seed in 0..CUTS {
        let unsynced = Unsynced::new();
        let disk = Disk::new(&unsynced).await;
        disk.write(0, SECTORS, 1).await;
        disk.write(4, 4, 2).await;
        assert_eq!(unsynced.at_risk(), SECTORS);
        disk.engine.sync_data(&disk.file).await.unwrap();
        assert_eq!(unsynced.at_risk(), 0);
        disk.write(0, 2, 3).await;
        let (found, lost) = disk.cut(&unsynced, seed);
        assert!(lost <= 2);
        let safe = [[1; 2], [2; 2], [2; 2], [1; 2], [1; 2], [1; 2], [1; 2]].concat();
        assert_eq!(found[2..], safe);
        assert!(found[..2].iter().all(|byte| [1, 3].contains(byte)));
    }
}

#[tokio::test]
async fn unsynced_writes_are_lost_in_any_part() {
    let mut patterns = Vec::new();
    for seed in 0..CUTS {
        let unsynced = Unsynced::new();
        let disk = Disk::new(&unsynced).await;
        disk.write(0, SECTORS, 1).await;
        let (found, lost) = disk.cut(&unsynced, seed);
        assert_eq!(found.iter().filter(|byte| **byte == 0).count(), lost);
        patterns.push(found);
    }
    for sector in 0..SECTORS {
        for byte in [0, 1] {
            assert!(patterns.iter().any(|found| found[sector] == byte), "sector {sector}");
        }
    }
    let (first, again) = (patterns[0].clone(), Unsynced::new());
    let disk = Disk::new(&again).await;
    disk.write(0, SECTORS, 1).await;
    assert_eq!(disk.cut(&again, 0).0, first, "a seed tells which");
}

#[tokio::test]
async fn any_of_several_unsynced_writes_may_survive() {
    let mut seen = Vec::new();
    for seed in 0..CUTS {
        let unsynced = Unsynced::new();
        let disk = Disk::new(&unsynced).await;
        for byte in 1..=3 {
            disk.write(0, SECTORS, byte).await;
        }
        assert_eq!(unsynced.at_risk(), SECTORS);
        seen.extend(disk.cut(&unsynced, seed).0);
    }
    for byte in 0..=3 {
        assert!(seen.contains(&byte), "no sector ever held {byte}");
    }
    assert!(seen.iter().all(|byte| *byte <= 3));
}

/// Fates of syncs; other operations pass.
struct Syncs(Mutex<Vec<Fate>>);

impl Syncs {
    fn of(fate: Fate) -> Arc<Unsynced> {
        Unsynced::over(Arc::new(Self(Mutex::new(vec![fate]))))
    }
}

impl Faults for Syncs {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let fate = (attempt.kind == AttemptKind::Sync).then(|| self.0.lock().unwrap().pop());
        fate.flatten().unwrap_or(Fate::Pass)
    }

    fn landed(&self, _: &Attempt<'_>, _: bool) {}
}

#[tokio::test]
async fn sync_covers_only_writes_that_ended_before_it() {
    let (go, wait) = oneshot::channel::<()>();
    let unsynced = Syncs::of(Fate::Wait(Box::pin(async { drop(wait.await) })));
    let disk = Disk::new(&unsynced).await;
    disk.write(0, 2, 1).await;
    let sync = disk.engine.sync_data(&disk.file);
    let meanwhile = async {
        disk.write(8, 3, 1).await;
        go.send(()).unwrap();
    };
    tokio::join!(biased; sync, meanwhile).0.unwrap();
    assert_eq!(unsynced.at_risk(), 3, "only what was written since the sync began");
    disk.engine.sync_data(&disk.file).await.unwrap();
    assert_eq!(unsynced.at_risk(), 0);
}

#[tokio::test]
async fn failed_sync_makes_nothing_durable() {
    let unsynced = Syncs::of(Fate::Fail(5));
    let disk = Disk::new(&unsynced).await;
    disk.write(0, 2, 1).await;
    disk.engine.sync_data(&disk.file).await.unwrap_err();
    assert_eq!(unsynced.at_risk(), 2);
}

#[tokio::test]
async fn renamed_file_is_found_under_its_new_name() {
    for seed in 0..CUTS {
        let unsynced = Unsynced::new();
        let disk = Disk::new(&unsynced).await;
        disk.write(0, SECTORS, 1).await;
        let directory = disk.directory.path();
        std::fs::rename(directory.join("shard"), directory.join("moved")).unwrap();
        drop((disk.engine, disk.file));
        let lost = unsynced.cut(seed);
        let found = sectors(&directory.join("moved"));
        assert_eq!(found.iter().filter(|byte| **byte == 0).count(), lost);
    }
}
