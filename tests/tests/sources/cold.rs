//! A cold epoch: samples before shards, one fetch for all, nothing kept by who left.

use forebay_client::Next;
use forebay_config::settings::NodeConfig;
use forebay_source::Options;
use forebay_store::{FILLS, FILLS_MAX, PART_BYTES, Urgency};
use forebay_tests::{
    BareStoreConfig, Daemon, Epoch, FRAMES, Origin, epoch, eventually, job, loader, next, play,
    rest,
};
use forebay_wire::message::{Begin, Open, Shuffle};

/// Bears promise 10's basis: a sample is served as soon as its own bytes are complete. With the
/// origin stuck after 20 % of a shard, at least 15 % of its samples come all the same.
#[test]
fn samples_of_an_arriving_shard_are_delivered() {
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
            Next::End(_) => panic!("the epoch ended at {}", early.samples.len()),
        }
    }
    origin.server.wait_until(|counts| counts.stalled > 0);
    early.assert_bytes(&SIZES);
    assert_eq!(daemon.node().store().counters().fills, 0);
    origin.server.release(&key);
    loop {
        match next(&loader).unwrap() {
            Next::Batch(batch) => early.take(&batch),
            Next::End(end) => {
                assert_eq!((end.batches, end.samples), (SAMPLES / 8, SAMPLES));
                assert_eq!(end.errors, []);
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
    daemon.settle();
    assert_eq!(daemon.node().store().counters().fills, 6);
}

/// Bears promise 3 (budgets) where it is easiest to break: a job that leaves in mid-epoch leaves
/// nothing behind, neither while its shards still arrive nor when they are there.
#[test]
fn job_closed_in_mid_epoch_frees_all_memory() {
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
fn daemon_ends_while_a_shard_hangs_at_its_origin() {
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

/// A caller that needs all of a shard says so at once: its parts are requested beside its first,
/// not after it.
#[test]
fn shard_needed_whole_is_requested_at_once() {
    const SIZES: std::ops::Range<usize> = 100_000..110_000;
    const SAMPLES: u64 = 400;
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let (key, disk) = (Origin::key("0.tar"), Daemon::disk());
    origin.server.stall(&key, 0);
    let bare = BareStoreConfig::new(disk.path().join("cache"), 1 << 30).open();
    let url = format!("{}/{key}", origin.server.endpoint());
    let options = Options::default();
    let begun = bare.store.shard(&url, &options, Urgency::Needed);
    let lease = bare.runtime.block_on(begun).unwrap();
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| bare.runtime.block_on(lease.wait(u64::MAX)).unwrap());
        // One that is late may be asked for twice.
        origin.server.wait_until(|counts| counts.stalled > 2);
        origin.server.release(&key);
        assert_eq!(whole.join().unwrap().samples, SAMPLES);
    });
}

/// Bytes of a part.
const PART: u64 = PART_BYTES as u64;

/// A job over `lanes` lanes, of a shard each, in batches of 256: the order of a cold epoch.
fn over_lanes(origin: &Origin, lanes: u32, samples: u64) -> Open {
    let mut open = job(origin, Origin::urls(u64::from(lanes)));
    open.counts = Some(vec![samples; lanes as usize]);
    open.order.shuffle = Shuffle::Window;
    open.order.lanes = Some(lanes);
    open.order.batch_size = 256;
    open
}

/// Holds back every byte until as many fills are at work and in line as there can be, so that each
/// sees the others; then lets the first part of each shard come. A fill that asks for more keeps
/// its place and gets nothing.
fn begin_in_line(origin: &Origin, daemon: &Daemon, lanes: u32, (running, waiting): (u64, u64)) {
    eventually("fills are at work and in line", || {
        let fills = |which: &str| daemon.number(&format!("/fills/{which}"));
        fills("running") == running && fills("waiting") == waiting
    });
    for n in 0..lanes {
        origin.server.stall(&Origin::key(&format!("{n}.tar")), PART);
    }
}

/// Parts that were asked of each shard, as far as they came.
fn parts_served(origin: &Origin, lanes: u32) -> Vec<u64> {
    (0..lanes).map(|n| origin.served(&format!("{n}.tar")).div_ceil(PART)).collect()
}

/// The first batch of a cold epoch needs the first samples of each lane's first shard, and waits
/// for no more: with more lanes than fills it comes though no shard can be whole, and those shards
/// whose samples are there wait for the others'.
#[test]
fn first_batch_of_twelve_lanes_waits_for_no_whole_shard() {
    for (memory, fills) in [(FRAMES + (128 << 20), FILLS), (4 << 30, FILLS_MAX)] {
        twelve_lanes(memory, fills as u64);
    }
}

/// In a daemon with this memory, which has so many fills at work.
fn twelve_lanes(memory: usize, fills: u64) {
    const SIZES: std::ops::Range<usize> = 45_000..50_000;
    const LANES: u32 = 12;
    const SAMPLES: u64 = 380;
    let origin = Origin::with_shards(u64::from(LANES), SAMPLES, &SIZES);
    assert!(origin.bytes("0.tar").len() as u64 > 4 * PART);
    for n in 0..LANES {
        origin.server.stall(&Origin::key(&format!("{n}.tar")), 0);
    }
    let disk = Daemon::disk();
    let config = NodeConfig { memory, ..Daemon::config(disk.path(), 1 << 30) };
    let daemon = Daemon::try_start(config).unwrap();
    let loader = loader(daemon.address(), over_lanes(&origin, LANES, SAMPLES)).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    begin_in_line(&origin, &daemon, LANES, (fills, u64::from(LANES) - fills));
    let mut early = Epoch::default();
    match next(&loader).unwrap() {
        Next::Batch(batch) => early.take(&batch),
        Next::End(_) => panic!("the epoch ended at once"),
    }
    early.assert_bytes(&SIZES);
    assert_eq!(daemon.node().store().counters().fills, 0);
    assert_eq!(parts_served(&origin, LANES), [1; LANES as usize]);
    for n in 0..LANES {
        origin.server.release(&Origin::key(&format!("{n}.tar")));
    }
    loop {
        match next(&loader).unwrap() {
            Next::Batch(batch) => early.take(&batch),
            Next::End(end) => {
                assert_eq!(end.errors, []);
                break;
            }
        }
    }
    early.assert_whole(LANES, SAMPLES, &SIZES);
    for n in 0..LANES {
        let name = format!("{n}.tar");
        assert_eq!(origin.served(&name), origin.bytes(&name).len() as u64, "{name}");
    }
}

/// Until a job's first batch is there, nothing of its shards comes that the batch does not wait
/// for, however long one of them keeps it waiting; and what another job wants of them comes all the
/// same.
#[test]
fn first_batch_is_fetched_before_anything_else() {
    const SIZES: std::ops::Range<usize> = 45_000..50_000;
    const LANES: u32 = 8;
    const SAMPLES: u64 = 380;
    let origin = Origin::with_shards(u64::from(LANES), SAMPLES, &SIZES);
    let late = Origin::key("3.tar");
    origin.server.stall(&late, 0);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let starting = loader(daemon.address(), over_lanes(&origin, LANES, SAMPLES)).unwrap();
    starting.start(Begin::at(0, 0)).unwrap();
    eventually("all but one have what the batch needs, and let others go first", || {
        daemon.number("/fills/running") == 1
            && daemon.number("/fills/paused") == u64::from(LANES) - 1
            && daemon.number("/fills/waiting") == 0
    });
    eventually("the batch's memory is made meanwhile", || daemon.number("/slab_bytes") > 0);
    let parts: Vec<_> = (0..LANES).map(|n| u64::from(n != 3)).collect();
    assert_eq!(parts_served(&origin, LANES), parts);
    let urls: Vec<_> =
        (0..LANES).filter(|n| *n != 3).map(|n| Origin::url(&format!("{n}.tar"))).collect();
    let whole = epoch(daemon.address(), job(&origin, urls)).unwrap();
    assert_eq!(whole.samples.len() as u64, (u64::from(LANES) - 1) * SAMPLES);
    origin.server.release(&late);
    let all = rest(&starting).unwrap();
    all.assert_whole(LANES, SAMPLES, &SIZES);
    for n in 0..LANES {
        let name = format!("{n}.tar");
        assert_eq!(origin.served(&name), origin.bytes(&name).len() as u64, "{name}");
    }
}

/// The same with the most lanes that a small world has unless asked otherwise. All that have begun
/// together hold more than there is memory for, if they held what they brought.
#[test]
fn the_first_batch_of_ninety_six_lanes_waits_for_no_whole_shard() {
    const SIZES: std::ops::Range<usize> = 45_000..50_000;
    const LANES: u32 = 96;
    const SAMPLES: u64 = 200;
    /// Shards that a batch waits for at once, beside those whose fills are at work.
    const IN_LINE: u64 = 12;
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let len = origin.bytes("0.tar").len() as u64;
    assert!(len > 2 * PART);
    for n in 1..LANES {
        std::fs::hard_link(origin.path("0.tar"), origin.path(&format!("{n}.tar"))).unwrap();
    }
    for n in 0..LANES {
        origin.server.stall(&Origin::key(&format!("{n}.tar")), 0);
    }
    let disk = Daemon::disk();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), 2 << 30)).unwrap();
    let loader = loader(daemon.address(), over_lanes(&origin, LANES, SAMPLES)).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    begin_in_line(&origin, &daemon, LANES, (FILLS as u64, IN_LINE));
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    assert_eq!(daemon.node().store().counters().fills, 0);
    assert_eq!(parts_served(&origin, LANES), [1; LANES as usize]);
    for n in 0..LANES {
        origin.server.release(&Origin::key(&format!("{n}.tar")));
    }
    let left = rest(&loader).unwrap();
    assert_eq!(left.errors, []);
    assert_eq!(left.samples.len() as u64, u64::from(LANES) * SAMPLES - 256);
}
