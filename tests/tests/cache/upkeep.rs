//! Maintenance of a cache: `scrub` reads every byte, `fsck` checks the directory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use forebay_error::ErrorKind;
use forebay_shard::{HEAD_BYTES, Sidecar};
use forebay_store::{FaultKind, Scrub, fsck};
use forebay_tests::{
    Daemon, Origin, UserHome, cached_file, epoch, eventually, flip, job, to_future_format,
};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 90_000..110_000;
const SHARDS: u64 = 3;
/// Two blocks and a bit.
const SAMPLES: u64 = 90;

/// A cache with three whole shards.
struct Bench {
    origin: Origin,
    disk: tempfile::TempDir,
}

impl Bench {
    fn filled() -> Self {
        let bench =
            Self { origin: Origin::with_shards(SHARDS, SAMPLES, &SIZES), disk: Daemon::disk() };
        bench.play(&bench.start());
        bench
    }

    fn start(&self) -> Daemon {
        Daemon::start(self.disk.path())
    }

    fn play(&self, daemon: &Daemon) {
        let open = job(&self.origin, Origin::urls(SHARDS));
        epoch(daemon.address(), open).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        let counters = || daemon.node().store().counters();
        eventually("all is whole", || counters().misses == counters().fills);
    }

    /// Files of the cache, whose names end like this.
    fn file(&self, end: &str) -> PathBuf {
        cached_file(&self.disk.path().join("shards"), end).unwrap()
    }

    fn forebay(&self, home: &UserHome, daemon: &Daemon, arguments: &[&str]) -> Command {
        let mut command = home.forebay(arguments);
        command.env("FOREBAY_DAEMON", format!("unix:{}", daemon.socket().display()));
        command.env("FOREBAY_CACHE", self.disk.path());
        command
    }
}

fn scrub(daemon: &Daemon, keep: bool) -> Scrub {
    let mut steps = 0;
    let node = daemon.node();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let scrub = runtime.block_on(node.store().scrub(keep, |_| steps += 1)).unwrap();
    assert_eq!(scrub.shards_done, steps);
    assert_eq!((scrub.shards_done, scrub.bytes_done), (scrub.shards, scrub.bytes));
    scrub
}

/// Bears promise 1 for bytes that nobody reads: headers, padding and end blocks of the archive, in
/// every region of data and sidecar.
#[test]
fn scrub_finds_flipped_bits_in_every_place() {
    let bench = Bench::filled();
    let sound = fs::read(bench.file("-1.tar.idx")).unwrap();
    let index = Sidecar::decode(&sound).unwrap().index;
    let len = fs::metadata(bench.file("-1.tar")).unwrap().len();
    let first = &index.members[0];
    let daemon = bench.start();
    assert_eq!(scrub(&daemon, false).flaws, []);
    let (data, sidecar) = ("-1.tar", "-1.tar.idx");
    let body = HEAD_BYTES as u64;
    let places = [
        (data, 3, "a header's name"),
        (data, first.offset - 1, "a header's padding"),
        (data, first.offset, "a member's first byte"),
        (data, first.end(), "a member's padding"),
        (data, (4 << 20) - 1, "the first block's last byte"),
        (data, 4 << 20, "the second block's first byte"),
        (data, len - 1, "the end blocks"),
        (sidecar, 1, "the magic"),
        (sidecar, 8, "the format"),
        (sidecar, 13, "the head's checksum"),
        (sidecar, 4000, "the head's zeros"),
        (sidecar, body, "a block's checksum"),
        (sidecar, sound.len() as u64 - 1, "the last sample"),
    ];
    for (number, (file, at, what)) in (1..).zip(places) {
        flip(&bench.file(file), at);
        let left = scrub(&daemon, true);
        assert_eq!(left.flaws.len(), 1, "{what}");
        assert!(!left.flaws[0].dropped && left.flaws[0].file.ends_with("-1.tar"), "{left:?}");
        let dropped = scrub(&daemon, false);
        assert!(dropped.flaws.len() == 1 && dropped.flaws[0].dropped, "{what}: {dropped:?}");
        assert_eq!(daemon.node().store().counters().corruptions, number, "{what}");
        assert_eq!(scrub(&daemon, false).shards, SHARDS - 1, "{what}");
        bench.play(&daemon);
        assert_eq!(daemon.node().store().counters().fills, number, "{what}");
        assert_eq!(scrub(&daemon, false).flaws, [], "{what}");
    }
}

#[test]
fn scrub_reports_flaws_as_text_and_json() {
    let bench = Bench::filled();
    let home = UserHome::new(ACTOR);
    let daemon = bench.start();
    let run = |arguments: &[&str]| {
        let output = bench.forebay(&home, &daemon, arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = run(&["scrub", "--json"]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &document["wrong"]), (Some(0), &0.into()), "{out}");
    flip(&bench.file("-2.tar"), 5_000_000);
    let (code, out) = run(&["scrub", "--dry-run"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("-2.tar") && out.contains("offset=4194304"), "{out}");
    let (_, out) = run(&["scrub", "--dry-run", "--json"]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["flaws"][0]["dropped"], false, "{out}");
    let (code, out) = run(&["scrub", "--json"]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &document["flaws"][0]["dropped"]), (Some(1), &Value::Bool(true)));
    assert_eq!(run(&["scrub"]).0, Some(0));
}

/// A scrub reserves nothing: a shard that is evicted while it runs makes room for another.
#[test]
fn scrub_reserves_no_space() {
    let origin = Origin::with_shards(5, SAMPLES, &SIZES);
    let largest = (0..5).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).max().unwrap();
    let disk = Daemon::disk();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), 3 * largest)).unwrap();
    let play = |n: u64| {
        let open = job(&origin, vec![Origin::url(&format!("{n}.tar"))]);
        epoch(daemon.address(), open).unwrap();
        let counters = || daemon.node().store().counters();
        eventually("all is whole", || counters().misses == counters().fills);
    };
    (0..3).for_each(play);
    std::thread::scope(|scope| {
        let (first_done, wait) = std::sync::mpsc::channel();
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let store = daemon.node().store().clone();
        let scrubbing = scope.spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let progress = |scrub: &Scrub| {
                if scrub.shards_done == 1 {
                    first_done.send(()).unwrap();
                    // Ends when the sender goes, too.
                    let _ = held.recv();
                }
            };
            runtime.block_on(store.scrub(false, progress)).unwrap()
        });
        wait.recv().unwrap();
        (3..5).for_each(play);
        let counters = daemon.node().store().counters();
        drop(go_on);
        assert_eq!(counters.evictions, 2, "{counters:?}");
        assert_eq!(scrubbing.join().unwrap().wrong, 0);
    });
}

/// Bears promise 4 beside other releases and other people: what is not ours stays as it is, and a
/// shard whose name a newer release holds rests beside it.
#[test]
fn foreign_files_are_left_alone_and_counted() {
    let bench = Bench::filled();
    let (data, sidecar) = (bench.file("-0.tar"), bench.file("-0.tar.idx"));
    to_future_format(&sidecar);
    let shards = bench.disk.path().join("shards");
    fs::write(shards.join("thesis.tex"), "x").unwrap();
    fs::create_dir(shards.join(format!("{:032x}-folder", 7))).unwrap();
    let before = (fs::read(&data).unwrap(), fs::read(&sidecar).unwrap());
    for fills in [1, 0] {
        let daemon = bench.start();
        bench.play(&daemon);
        let counters = daemon.node().store().counters();
        assert_eq!((counters.fills, counters.shards), (fills, 3), "fetched once, beside the other");
        let resting: u64 = [&data, &bench.file("-1.tar"), &bench.file("-2.tar")]
            .map(|file| fs::metadata(file).unwrap().len())
            .iter()
            .sum();
        assert_eq!(counters.used_bytes, resting + before.0.len() as u64, "both count");
        daemon.stop();
        assert!((fs::read(&data).unwrap(), fs::read(&sidecar).unwrap()) == before);
        assert!(shards.join("thesis.tex").exists());
    }
    let checkup = fsck(bench.disk.path(), true, None, |_, _| {}).unwrap();
    let mut kinds: Vec<_> = checkup.faults.iter().map(|fault| fault.kind).collect();
    kinds.sort_by_key(|kind| format!("{kind:?}"));
    assert_eq!(kinds, [FaultKind::Foreign, FaultKind::Foreign, FaultKind::Newer]);
    assert!(checkup.is_clean() && checkup.faults.iter().all(|fault| !fault.repaired));
    assert!((fs::read(&data).unwrap(), fs::read(&sidecar).unwrap()) == before);
}

#[test]
fn fsck_reports_and_repairs_faults() {
    let bench = Bench::filled();
    let home = UserHome::new(ACTOR);
    let directory = bench.disk.path().to_str().unwrap();
    let run = |arguments: &[&str]| {
        let output = home.forebay(&[&["fsck", directory], arguments].concat()).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(run(&[]).0, Some(0));
    let body = fs::metadata(bench.file("-0.tar.idx")).unwrap().len();
    flip(&bench.file("-0.tar.idx"), body - 1);
    fs::remove_file(bench.file("-1.tar.idx")).unwrap();
    let half = bench.file("-2.tar").with_file_name(format!("{:032x}-9.tar.idx.new", 9));
    fs::write(&half, "half").unwrap();
    let files = || fs::read_dir(bench.disk.path().join("shards")).unwrap().count();
    let before = files();
    let (code, out) = run(&[]);
    assert_eq!((code, files()), (Some(1), before), "looking changes nothing: {out}");
    for (kind, file) in [("broken", "-0.tar"), ("leftover", "-1.tar"), ("leftover", "-9.tar")] {
        let is_it = |line: &str| line.starts_with(kind) && line.contains(file);
        assert!(out.lines().any(is_it), "no {kind} {file} in {out}");
    }
    let (code, out) = run(&["--repair", "--json"]);
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, document["shards"].as_u64()), (Some(0), Some(1)));
    assert_eq!(document["faults"].as_array().unwrap().len(), 3);
    assert_eq!(files(), 2);
    assert_eq!(run(&[]).0, Some(0));
    let daemon = bench.start();
    assert_eq!(run(&[]).0, Some(1), "a daemon uses it");
    bench.play(&daemon);
    assert_eq!(daemon.node().store().counters().fills, 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let error = fsck(elsewhere.path(), false, None, |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "nothing was made there");
}
