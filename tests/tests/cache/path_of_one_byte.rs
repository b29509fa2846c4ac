//! One byte's way: object store → frame → data file → sidecar → slab → trainer.

use std::collections::BTreeMap;
use std::process::Command;

use forebay_client::Next;
use forebay_tests::{Daemon, Origin, epoch, eventually, job, loader, next, play};
use forebay_uring::{Engine, EngineChoice, EngineKind};
use forebay_wire::message::Begin;

const SIZES: std::ops::Range<usize> = 90_000..110_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 200;

/// Bears promise 1 (origin bytes or nothing) on the whole path, on either disk engine.
#[test]
fn bytes_are_equal_from_origin_to_trainer() {
    for choice in [EngineChoice::Auto, EngineChoice::Threads] {
        let origin = Origin::with_shards(2, 40, &SIZES);
        let disk = Daemon::disk();
        let mut config = Daemon::config(&disk.path().join("cache"), 1 << 30);
        config.io = choice;
        let daemon = Daemon::try_start(config).unwrap();
        if choice == EngineChoice::Threads {
            assert!(matches!(engine(&daemon).kind(), EngineKind::Threads { .. }));
        }
        let open = job(&origin, Origin::urls(2));
        let loader = loader(daemon.address(), open).unwrap();
        play(&loader, 0, 0).unwrap().assert_whole(2, 40, &SIZES);
        whole(&daemon, 2);
        for name in ["0.tar", "1.tar"] {
            let data = daemon.data_file(name);
            let resting = std::fs::read(&data).unwrap();
            assert!(resting == origin.bytes(name), "{name} rests changed");
            let mut archive = tar::Archive::new(&resting[..]);
            assert_eq!(archive.entries().unwrap().map(Result::unwrap).count(), 80);
            assert!(data.with_file_name(format!("{}.idx", file_name(&data))).exists());
        }
        // From here on a copy out of a frame panics.
        daemon.node().store().forbid_copies();
        play(&loader, 1, 0).unwrap().assert_whole(2, 40, &SIZES);
        let counters = daemon.node().store().counters();
        assert!(counters.tier_read_bytes >= 80 * SIZES.start as u64, "{counters:?}");
    }
}

/// Bears promise 1 (origin bytes or nothing) after a restart: the sidecar, not memory, tells what
/// lies where.
#[test]
fn new_daemon_serves_cached_shards_without_the_origin() {
    let origin = Origin::with_shards(2, 40, &SIZES);
    let disk = Daemon::disk();
    let open = job(&origin, Origin::urls(2));
    let daemon = Daemon::start(disk.path());
    epoch(daemon.address(), open.clone()).unwrap().assert_whole(2, 40, &SIZES);
    whole(&daemon, 2);
    daemon.stop();
    let daemon = Daemon::start(disk.path());
    daemon.node().store().forbid_copies();
    let before = (origin.served("0.tar"), origin.served("1.tar"));
    epoch(daemon.address(), open).unwrap().assert_whole(2, 40, &SIZES);
    assert_eq!((origin.served("0.tar"), origin.served("1.tar")), before);
}

/// Bears promise 10's basis: a warm epoch costs the daemon no copies, few system calls and no page
/// cache, so what a trainer waits for is the device.
#[test]
fn warm_delivery_makes_few_syscalls_past_the_page_cache() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let mut open = job(&origin, Origin::urls(SHARDS));
    open.order.batch_size = 64;
    let loader = loader(daemon.address(), open).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    whole(&daemon, SHARDS);
    let files = daemon.files();
    let (before, cached) = (engine(&daemon).counters(), page_cache(&files));
    // Taken without looking at the bytes, as fast as they come.
    loader.start(Begin::at(1, 0)).unwrap();
    let mut samples = 0;
    while let Next::Batch(batch) = next(&loader).unwrap() {
        samples += batch.keys.len() as u64;
    }
    assert_eq!(samples, SHARDS * SAMPLES);
    let after = engine(&daemon).counters();
    let read = after.bytes_read - before.bytes_read;
    assert!(read >= 64 << 20, "only {read} bytes were read");
    let calls = after.system_calls - before.system_calls;
    assert!(calls <= 2 * (read >> 20), "{calls} system calls for {} MiB", read >> 20);
    let grown = page_cache(&files).saturating_sub(cached);
    assert!(grown < read / 100, "the page cache grew by {grown} of {read} bytes");
}

/// Bears promise 10's basis: of a sample only the members asked for are read, however far apart
/// they lie; an empty one is there and costs nothing.
#[test]
fn distant_members_are_read_separately() {
    const FAR: usize = 400_000;
    let mut archive = tar::Builder::new(Vec::new());
    for i in 0..SAMPLES {
        for (field, size) in [("a", 100), ("big", FAR), ("none", 0), ("z", 200)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(size as u64);
            let bytes = vec![i as u8; size];
            archive.append_data(&mut header, format!("{i:06}.{field}"), &bytes[..]).unwrap();
        }
    }
    let origin = Origin::new();
    origin.put("0.tar", &archive.into_inner().unwrap());
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let mut open = job(&origin, Origin::urls(1));
    for wanted in [&["a", "none", "z"][..], &["none"]] {
        open.fields = Some(wanted.iter().map(|name| vec![(*name).to_owned()]).collect());
        let loader = loader(daemon.address(), open.clone()).unwrap();
        play(&loader, 0, 0).unwrap();
        whole(&daemon, 1);
        let before = engine(&daemon).counters().bytes_read;
        let epoch = play(&loader, 1, 0).unwrap();
        let read = engine(&daemon).counters().bytes_read - before;
        assert_eq!(epoch.samples.len() as u64, SAMPLES);
        for (i, sample) in epoch.samples.iter().enumerate() {
            let sizes = BTreeMap::from([("a", 100), ("none", 0), ("z", 200)]);
            let right = wanted.iter().map(|name| ((*name).to_owned(), vec![i as u8; sizes[name]]));
            assert_eq!(sample.fields, right.collect());
        }
        assert!(read < SAMPLES * FAR as u64 / 10, "{read} bytes read for {wanted:?}");
    }
}

/// Returns the I/O engine of the only disk.
fn engine(daemon: &Daemon) -> Engine {
    daemon.node().store().engines().remove(0)
}

/// Waits until so many shards are committed: the last samples come before that.
fn whole(daemon: &Daemon, shards: u64) {
    eventually("the shards are whole", || daemon.node().store().counters().fills == shards);
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Bytes of these files in the page cache.
fn page_cache(files: &[std::path::PathBuf]) -> u64 {
    let out = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .args(files)
        .output()
        .expect("util-linux has fincore");
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim().parse::<u64>().unwrap())
        .sum()
}
