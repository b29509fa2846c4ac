//! A cold epoch: samples before shards, one fetch for all, nothing kept by who left.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_client::Next;
use forebay_tests::{Daemon, Epoch, Origin, epoch, eventually, job, loader, next, play};
use forebay_wire::message::Begin;

/// Bears promise 10's ground: a sample is served as soon as its own bytes are complete. With the
/// origin stuck after 20 % of a shard, at least 15 % of its samples come all the same.
#[test]
fn samples_of_a_shard_that_is_still_arriving_are_delivered() {
    const SIZES: std::ops::Range<usize> = 100_000..110_000;
    const SAMPLES: u64 = 800;
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let key = Origin::key("0.tar");
    origin.server.stall(&key, origin.bytes("0.tar").len() as u64 / 5);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = loader(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let mut early = Epoch::default();
    while (early.samples.len() as u64) < SAMPLES * 15 / 100 {
        match next(&loader).unwrap() {
            Next::Batch(batch) => early.take(&batch),
            Next::End { .. } => panic!("the epoch ended at {}", early.samples.len()),
        }
    }
    origin.server.wait_until(|counts| counts.stalled > 0);
    early.assert_bytes(&SIZES);
    assert_eq!(daemon.node().store().counters().fills, 0);
    origin.server.release(&key);
    loop {
        match next(&loader).unwrap() {
            Next::Batch(batch) => early.take(&batch),
            Next::End { batches, samples, errors } => {
                assert_eq!((batches, samples), (SAMPLES / 8, SAMPLES));
                assert_eq!(errors, []);
                break;
            }
        }
    }
    early.assert_whole(1, SAMPLES, &SIZES);
}

/// Bears promise 2 (one fetch): eight jobs that start cold on the same shards move each shard's
/// bytes over the network once.
#[test]
fn many_jobs_on_the_same_shards_fetch_each_byte_once() {
    const SIZES: std::ops::Range<usize> = 40_000..60_000;
    let origin = Origin::with_shards(6, 50, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    std::thread::scope(|scope| {
        for job_number in 0..8 {
            let (address, mut open) = (daemon.address(), job(&origin, Origin::urls(6)));
            // Each job begins elsewhere, so that all shards are wanted at once.
            open.urls.rotate_left(job_number % 6);
            let urls = open.urls.clone();
            scope.spawn(move || {
                let mut got = epoch(address, open).unwrap();
                for sample in &mut got.samples {
                    let url = &urls[sample.shard as usize];
                    let place = Origin::urls(6).iter().position(|one| one == url);
                    sample.shard = place.unwrap() as u32;
                }
                got.assert_whole(6, 50, &SIZES);
            });
        }
    });
    for n in 0..6 {
        let name = format!("{n}.tar");
        assert_eq!(origin.served(&name), origin.bytes(&name).len() as u64, "{name}");
    }
    assert_eq!(daemon.node().store().counters().fills, 6);
}

/// Bears promise 3 (budgets) where it is easiest to break: a job that leaves in mid-epoch leaves
/// nothing behind, neither while its shards still arrive nor when they are there.
#[test]
fn a_job_that_leaves_in_mid_epoch_gives_all_memory_back() {
    const SIZES: std::ops::Range<usize> = 90_000..110_000;
    let origin = Origin::with_shards(3, 120, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let key = Origin::key("1.tar");
    for round in 0..3 {
        if round == 0 {
            origin.server.stall(&key, 5 << 20);
        }
        let loader = loader(daemon.address(), job(&origin, Origin::urls(3))).unwrap();
        loader.start(Begin::at(round, 0)).unwrap();
        for _ in 0..16 {
            assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
        }
        assert!(daemon.number("/slab_bytes") > 0);
        drop(loader);
        eventually("the slab is gone", || daemon.number("/slab_bytes") == 0);
        eventually("the job is gone", || daemon.status()["jobs"].as_array().unwrap().is_empty());
        origin.server.release(&key);
        eventually("the frames are free", || daemon.number("/frames/in_use_bytes") == 0);
    }
    let loader = loader(daemon.address(), job(&origin, Origin::urls(3))).unwrap();
    play(&loader, 9, 0).unwrap().assert_whole(3, 120, &SIZES);
}

/// A daemon that is told to stop does, though its origin has stopped answering in mid-shard.
#[test]
fn a_daemon_ends_while_a_shard_hangs_at_its_origin() {
    const SIZES: std::ops::Range<usize> = 90_000..110_000;
    let origin = Origin::with_shards(1, 200, &SIZES);
    origin.server.stall(&Origin::key("0.tar"), 6 << 20);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = loader(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    origin.server.wait_until(|counts| counts.stalled > 0);
    drop(loader);
    let stopping = std::thread::spawn(move || daemon.stop());
    eventually("the daemon has ended", || stopping.is_finished());
    stopping.join().unwrap();
}
