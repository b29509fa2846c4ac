//! Stores that send next to nothing: the shards of other stores come all the same, and those of the
//! slow store once it recovers.

use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_store::{FILLS, PART_BYTES};
use forebay_testkit::{Fault, FaultProxy, When, shard};
use forebay_tests::{Daemon, Origin, epoch, eventually, job, job_with, loader, rest};
use forebay_wire::message::Begin;

const SIZES: std::ops::Range<usize> = 45_000..50_000;
/// Samples of a shard of five parts.
const SAMPLES: u64 = 380;
/// Shards of each store: more than there are fills.
const SHARDS: u64 = FILLS as u64 + 2;

fn stall_all(origin: &Origin, names: impl Iterator<Item = String>) {
    names.for_each(|name| origin.server.stall(&Origin::key(&name), 0));
}

fn tars() -> impl Iterator<Item = String> {
    (0..SHARDS).map(|n| format!("{n}.tar"))
}

fn running(daemon: &Daemon) -> u64 {
    daemon.number("/fills/running")
}

/// Plays every shard of a good store.
fn play_good(daemon: &Daemon, good: &Origin) {
    let played = epoch(daemon.address(), job(good, Origin::urls(SHARDS))).unwrap();
    played.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
}

/// Four shards of a store that accepts requests and sends no byte hold all fills; a job of another
/// store plays on, and the first job goes on where it was once the store sends.
#[test]
fn stalled_store_keeps_no_turn_from_another() {
    let [bad, good] = [(); 2].map(|()| Origin::with_shards(SHARDS, SAMPLES, &SIZES));
    stall_all(&bad, tars());
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let waiting = loader(daemon.address(), job(&bad, Origin::urls(SHARDS))).unwrap();
    waiting.start(Begin::at(0, 0)).unwrap();
    eventually("a fill of the bad store is at work", || running(&daemon) > 0);
    play_good(&daemon, &good);
    tars().for_each(|name| bad.server.release(&Origin::key(&name)));
    rest(&waiting).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
}

/// The same of several jobs, whose shards hold every turn, with the first part of each here.
#[test]
fn stalled_jobs_lend_their_turns_and_resume() {
    let [bad, good] = [(); 2].map(|()| Origin::with_shards(SHARDS, SAMPLES, &SIZES));
    tars().for_each(|name| bad.server.stall(&Origin::key(&name), PART_BYTES as u64));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let waiting: Vec<_> = tars()
        .map(|name| {
            let one = loader(daemon.address(), job(&bad, vec![Origin::url(&name)])).unwrap();
            one.start(Begin::at(0, 0)).unwrap();
            one
        })
        .collect();
    eventually("all turns are taken", || running(&daemon) == FILLS as u64);
    play_good(&daemon, &good);
    tars().for_each(|name| bad.server.release(&Origin::key(&name)));
    for one in &waiting {
        assert_eq!(rest(one).unwrap().samples.len() as u64, SAMPLES);
    }
}

/// Fills of a job that left do not keep those of the same store waiting.
#[test]
fn fill_nobody_waits_for_gives_up_its_turn() {
    let origin = Origin::with_shards(2 * SHARDS, SAMPLES, &SIZES);
    stall_all(&origin, tars());
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let leaving: Vec<_> = tars()
        .map(|name| {
            let one = loader(daemon.address(), job(&origin, vec![Origin::url(&name)])).unwrap();
            one.start(Begin::at(0, 0)).unwrap();
            one
        })
        .collect();
    eventually("all turns are taken", || running(&daemon) == FILLS as u64);
    drop(leaving);
    let urls = (SHARDS..2 * SHARDS).map(|n| Origin::url(&format!("{n}.tar"))).collect();
    let played = epoch(daemon.address(), job(&origin, urls)).unwrap();
    assert_eq!(played.samples.len() as u64, SHARDS * SAMPLES);
}

/// Shards that cannot be entered in their middle keep no turn either.
#[test]
fn compressed_shards_of_a_stalled_store_lend_their_turns() {
    let good = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let bad = Origin::new();
    let packed = || (0..SHARDS).map(|n| format!("{n}.tar.gz"));
    for (n, name) in (0..).zip(packed()) {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut gzip, &shard(SAMPLES, n, &SIZES)).unwrap();
        bad.put(&name, &gzip.finish().unwrap());
    }
    stall_all(&bad, packed());
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let urls: Vec<_> = packed().map(|name| Origin::url(&name)).collect();
    let waiting = loader(daemon.address(), job(&bad, urls)).unwrap();
    waiting.start(Begin::at(0, 0)).unwrap();
    eventually("a fill of the bad store is at work", || running(&daemon) > 0);
    play_good(&daemon, &good);
}

/// A store that is never silent, and one that does not answer at all.
#[test]
fn dripping_and_silent_stores_keep_no_turn_from_another() {
    let drip = Fault::Drip(0, Duration::from_millis(4));
    for fault in [drip, Fault::StallBeforeHead] {
        let [bad, good] = [(); 2].map(|()| Origin::with_shards(SHARDS, SAMPLES, &SIZES));
        let proxy = FaultProxy::start(bad.server.address()).unwrap();
        proxy.set([(When::any(), fault)]);
        let disk = Daemon::disk();
        let daemon = Daemon::start(disk.path());
        let mut environment = bad.environment();
        environment.insert("AWS_ENDPOINT_URL".to_owned(), proxy.endpoint());
        let waiting =
            loader(daemon.address(), job_with(environment, Origin::urls(SHARDS))).unwrap();
        waiting.start(Begin::at(0, 0)).unwrap();
        eventually("the store is asked", || proxy.traffic().requests > 0);
        play_good(&daemon, &good);
        proxy.set([]);
        rest(&waiting).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
}
