//! Shards of which a part had arrived when their fill ended.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use forebay_api::warm::Warming;
use forebay_client::Next;
use forebay_shard::{BLOCK_BYTES, Partial};
use forebay_tests::{
    Daemon, Epoch, Origin, UserHome, cached_file, epoch, eventually, job, kill, loader, next, play,
};
use forebay_wire::message::{Begin, Open};

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 1_000_000..1_050_000;
const SAMPLES: u64 = 100;
/// Bytes recorded of 100 MiB when the origin stalls at four fifths: sixteen parts, or some more
/// that were written by then.
const RECORDED: u64 = 64 << 20;

/// Bytes that may be written a day: so few that what comes back while the test runs is nothing.
const ALLOWANCE: u64 = 1 << 30;

/// Largest number of bytes a batch of eight samples takes of a shard: images, labels, and their
/// headers.
const BATCH_BYTES: u64 = 8 * (1_050_000 + 4096);

/// An origin whose shard stalls at four fifths, and a job on it.
fn stalling() -> (Origin, Open, u64) {
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let len = origin.bytes("0.tar").len() as u64;
    origin.server.stall(&Origin::key("0.tar"), len / 5 * 4);
    let open = job(&origin, Origin::urls(1));
    (origin, open, len)
}

/// Bytes that the record lists.
fn recorded(shards: &Path) -> u64 {
    let record = fs::read(cached_file(shards, ".part").unwrap()).unwrap();
    let blocks = Partial::decode(&record).unwrap().blocks;
    let bytes = blocks.iter().flatten().count() as u64 * BLOCK_BYTES;
    assert!(bytes >= RECORDED, "only {bytes} bytes are recorded");
    bytes
}

/// Bytes before the first part that the record does not list.
fn leading(shards: &Path) -> u64 {
    let record = fs::read(cached_file(shards, ".part").unwrap()).unwrap();
    let blocks = Partial::decode(&record).unwrap().blocks;
    blocks.iter().take_while(|block| block.is_some()).count() as u64 * BLOCK_BYTES
}

/// Bears promise 4 (a known partial): a daemon killed at four fifths of a shard is followed by one
/// that fetches the last parts only, and the trainer sees every sample once.
#[test]
fn next_daemon_resumes_a_killed_daemons_fill() {
    let (origin, open, len) = stalling();
    let home = UserHome::new(ACTOR);
    let loader = loader(home.address(), open).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let mut epoch = Epoch::default();
    eventually("a part is recorded", || cached_file(&home.shards(), ".part").is_some());
    kill(loader.stats().daemon_pid.unwrap());
    let recorded = recorded(&home.shards());
    origin.server.release(&Origin::key("0.tar"));
    loop {
        match next(&loader).unwrap() {
            Next::Batch(batch) => epoch.take(&batch),
            Next::End(end) => break assert_eq!(end.errors, []),
        }
    }
    epoch.assert_whole(1, SAMPLES, &SIZES);
    eventually("it is whole", || home.status().is_some_and(|status| status["cache"]["fills"] == 1));
    assert!(cached_file(&home.shards(), ".part").is_none());
    assert!(
        fs::read(cached_file(&home.shards(), "-0.tar").unwrap()).unwrap() == origin.bytes("0.tar")
    );
    let status = home.status().unwrap();
    assert_eq!(status["cache"]["resumed_bytes"], recorded);
    assert_eq!(status["cache"]["origin_bytes"], len - recorded);
    assert!(origin.served("0.tar") < len * 3 / 2, "{} of {len}", origin.served("0.tar"));
}

/// Bears promise 1 for what a fill resumes: a part that changed at rest is fetched again.
#[test]
fn corrupt_part_at_rest_is_fetched_again() {
    let (origin, open, len) = stalling();
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    let daemon = Daemon::start(disk.path());
    {
        let loader = loader(daemon.address(), open.clone()).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
    }
    daemon.stop();
    let recorded = recorded(&shards);
    let data = cached_file(&shards, "-0.tar").unwrap();
    let opened = fs::OpenOptions::new().write(true).open(&data).unwrap();
    opened.write_all_at(&[0x5a; 64], (5 << 20) + 7).unwrap();
    origin.server.release(&Origin::key("0.tar"));
    let daemon = Daemon::start(disk.path());
    let used = || daemon.node().store().counters().used_bytes;
    eventually("the part counts", || used() == len);
    epoch(daemon.address(), open).unwrap().assert_whole(1, SAMPLES, &SIZES);
    let counters = || daemon.node().store().counters();
    eventually("it is whole", || counters().fills == 1);
    assert_eq!(counters().resumed_bytes, recorded - BLOCK_BYTES);
    assert_eq!(used(), len);
    assert!(fs::read(&data).unwrap() == origin.bytes("0.tar"));
}

/// A warm-up of a shard that an earlier daemon had begun reports the bytes that came.
#[test]
fn resumed_bytes_are_not_reported_as_fetched() {
    let (origin, open, len) = stalling();
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    let daemon = Daemon::start(disk.path());
    {
        let loader = loader(daemon.address(), open).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
    }
    daemon.stop();
    let recorded = recorded(&shards);
    origin.server.release(&Origin::key("0.tar"));
    let daemon = Daemon::start(disk.path());
    let warm = Command::new(ACTOR)
        .args(["dataset", "warm", &Origin::url("0.tar"), "--wait", "--json"])
        .env("FOREBAY_DAEMON", format!("unix:{}", daemon.socket().display()))
        .envs(origin.environment())
        .output()
        .unwrap();
    assert!(warm.status.success(), "{}", String::from_utf8_lossy(&warm.stderr));
    let report: Warming = serde_json::from_slice(&warm.stdout).unwrap();
    assert_eq!((report.fetched, report.bytes), (1, len - recorded));
}

/// A record that is damaged, or one without its data, is no obstacle to a new fill.
#[test]
fn damaged_record_restarts_the_fill() {
    let (origin, open, len) = stalling();
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    origin.server.release(&Origin::key("0.tar"));
    for harm in ["record", "data"] {
        origin.server.stall(&Origin::key("0.tar"), len / 5 * 4);
        let daemon = Daemon::start(disk.path());
        {
            let loader = loader(daemon.address(), open.clone()).unwrap();
            loader.start(Begin::at(0, 0)).unwrap();
            eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
        }
        daemon.stop();
        match harm {
            "record" => fs::write(cached_file(&shards, ".part").unwrap(), "nonsense").unwrap(),
            _ => fs::remove_file(cached_file(&shards, "-0.tar").unwrap()).unwrap(),
        }
        origin.server.release(&Origin::key("0.tar"));
        let daemon = Daemon::start(disk.path());
        let loader = loader(daemon.address(), open.clone()).unwrap();
        play(&loader, 0, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
        eventually("it is whole", || daemon.node().store().counters().fills == 1);
        assert_eq!(daemon.node().store().counters().resumed_bytes, 0, "{harm}");
        assert!(cached_file(&shards, ".part").is_none());
        drop(loader);
        daemon.stop();
        fs::remove_file(cached_file(&shards, ".idx").unwrap()).unwrap();
    }
}

/// Killed again before it had come as far as the first time, a fill has lost nothing.
#[test]
fn recorded_parts_stay_recorded() {
    let (origin, open, _) = stalling();
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    let (mut before, mut batches) = (0, 7);
    for from in [RECORDED + (20 << 20), 0] {
        // The second time nothing more comes than what is here.
        origin.server.stall(&Origin::key("0.tar"), from);
        let daemon = Daemon::start(disk.path());
        {
            let loader = loader(daemon.address(), open.clone()).unwrap();
            loader.start(Begin::at(0, 0)).unwrap();
            eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
            for _ in 0..batches {
                assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
            }
        }
        daemon.stop();
        let now = recorded(&shards);
        assert!(now >= before, "{now} after {before}");
        before = now;
        // Parts land in any order: what comes before the first that is missing can be served.
        batches = leading(&shards) / BATCH_BYTES;
    }
}

/// An origin that goes away in mid-shard costs what was not recorded, within one daemon, too; and
/// when room is needed the part goes before any whole shard.
#[test]
fn partial_shard_outlives_an_outage_and_is_evicted_first() {
    let (origin, open, len) = stalling();
    let key = Origin::key("0.tar");
    for (name, seed) in [("1.tar", 1), ("2.tar", 2)] {
        origin.put(name, &forebay_testkit::shard(10, seed, &SIZES));
    }
    let small = origin.bytes("1.tar").len().max(origin.bytes("2.tar").len()) as u64;
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    let mut config = Daemon::config(disk.path(), len + small);
    config.tiers[0].writes_per_day = Some(ALLOWANCE);
    let daemon = Daemon::try_start(config).unwrap();
    let counters = || daemon.node().store().counters();
    let fail = || {
        origin.server.stall(&key, len / 10 * 7);
        let loader = loader(daemon.address(), open.clone()).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
        let failed = counters().failed_fills;
        origin.server.deny(&key, true);
        origin.server.break_off(&key, true);
        eventually("the fill failed", || counters().failed_fills > failed);
        origin.server.release(&key);
        // A job that is still there would fetch the shard again as soon as its origin is back.
        drop(loader);
        eventually("the job is gone", || daemon.status()["jobs"] == serde_json::json!([]));
        assert!(cached_file(&shards, ".part").is_some());
        origin.server.deny(&key, false);
        origin.server.break_off(&key, false);
    };
    let play = |name: &str| {
        let open = job(&origin, vec![Origin::url(name)]);
        let fills = counters().fills;
        assert_eq!(epoch(daemon.address(), open).unwrap().errors, []);
        eventually("it is whole", || counters().fills == fills + 1);
    };
    play("1.tar");
    fail();
    play("0.tar");
    assert!(counters().resumed_bytes >= RECORDED, "{:?}", counters());
    fs::read(cached_file(&shards, "-0.tar").unwrap()).unwrap();
    assert_eq!(counters().evictions, 0);
    // What was written twice is what was not recorded in time: a part of the shard, not all of it.
    let written = counters().written_bytes;
    assert!(written < small + len * 3 / 2, "{written} written for {len}");
    let tiers = daemon.node().store().tiers();
    let left = u64::try_from(tiers[0].writes_left_bytes.unwrap()).unwrap();
    assert!(left >= ALLOWANCE - written, "{left} left after {written}");
}

/// The first to go where room is needed, though it was used last.
#[test]
fn partial_shard_is_evicted_before_whole_ones() {
    let (origin, open, len) = stalling();
    for (name, seed) in [("1.tar", 1), ("2.tar", 2)] {
        origin.put(name, &forebay_testkit::shard(10, seed, &SIZES));
    }
    let small = origin.bytes("1.tar").len().max(origin.bytes("2.tar").len()) as u64;
    let disk = Daemon::disk();
    let shards = disk.path().join("shards");
    let config = Daemon::config(disk.path(), len + small);
    let start = || Daemon::try_start(config.clone()).unwrap();
    let play = |daemon: &Daemon, name: &str| {
        epoch(daemon.address(), job(&origin, vec![Origin::url(name)])).unwrap();
        let counters = || daemon.node().store().counters();
        eventually("it is whole", || counters().misses == counters().fills);
    };
    let daemon = start();
    play(&daemon, "1.tar");
    {
        let loader = loader(daemon.address(), open).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        eventually("a part is recorded", || cached_file(&shards, ".part").is_some());
    }
    daemon.stop();
    let daemon = start();
    play(&daemon, "2.tar");
    assert!(cached_file(&shards, "-0.tar").is_none() && cached_file(&shards, ".part").is_none());
    assert!(cached_file(&shards, "-1.tar").is_some());
}
