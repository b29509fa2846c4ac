//! A trainer's waits by cause: each cause is produced by a known delay, and nearly all of the added
//! wait is charged to it.
//!
//! An epoch is played twice, of the same samples in the same order, once without and once with the
//! delay. Waits are measured around `next` as a trainer would measure them, apart from the loader's
//! own counts. Delays are long against a busy machine's noise, and no test runs beside another, for
//! whose work it would wait. The cause `h2d` needs a device: its test lies in
//! `tests/emulator/tests/loader.rs`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_client::{Batch, Loader, LoaderConfig, Next};
use forebay_decode::{FieldKind, FieldSpec, ImageSpec};
use forebay_source::Rules;
use forebay_testkit::{Fault, FaultProxy, When, shard};
use forebay_tests::{
    ClusterFiles, Daemon, FRAMES, Origin, alone, config, eventually, job, job_with, loader, next,
    play, png,
};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use forebay_wire::message::Begin;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::sync::oneshot;

const SIZES: Range<usize> = 20_000..30_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 40;

/// Booked to the cause of a delay, of all that the delay adds.
const BOOKED: f64 = 0.95;

/// Largest relative difference between charged and measured waits.
const SUM: f64 = 0.01;

/// Waits of an epoch's batches.
#[derive(Debug)]
struct Waited {
    /// Seconds around each `next` that brought a batch.
    measured: f64,
    booked: BTreeMap<&'static str, f64>,
}

/// Plays an epoch; `done` is given each batch before the next is asked for.
fn waited(loader: &Loader, mut done: impl FnMut(Box<Batch>)) -> Waited {
    loader.reset_stats();
    loader.start(Begin::at(0, 0)).unwrap();
    let mut measured = Duration::ZERO;
    loop {
        let asked = Instant::now();
        let found = next(loader).unwrap();
        let took = asked.elapsed();
        let Next::Batch(batch) = found else { break };
        assert_eq!(batch.errors, []);
        measured += took;
        done(batch);
    }
    let wait = loader.stats().wait;
    Waited { measured: measured.as_secs_f64(), booked: wait.by_cause.into_iter().collect() }
}

/// Asserts that at least `least` was added, that it is booked to `cause`, and that all that is
/// booked is all that was waited.
fn assert_booked(cause: &str, without: &Waited, with: &Waited, least: Duration) {
    let added = with.measured - without.measured;
    // As long as the delay, less what the machine took of the epoch without one.
    assert!(added >= 0.8 * least.as_secs_f64(), "{least:?}: {without:?} {with:?}");
    let booked = with.booked[cause] - without.booked[cause];
    assert!(booked >= BOOKED * added, "{booked} of {added} for {cause}: {without:?} {with:?}");
    let sum: f64 = with.booked.values().sum();
    assert!((sum - with.measured).abs() <= SUM * with.measured, "{sum}: {with:?}");
}

/// The delay that a test makes.
#[allow(clippy::disallowed_methods, reason = "the delay itself is what is made here")]
fn delay(by: Duration) {
    std::thread::sleep(by);
}

/// A daemon's directory that has all shards of the origin.
fn warm(origin: &Origin) -> TempDir {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = loader(daemon.address(), job(origin, Origin::urls(SHARDS))).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    drop(loader);
    daemon.settle();
    disk
}

/// An epoch of a trainer that has one batch at a time.
fn one_at_a_time(daemon: &Daemon, origin: &Origin, done: impl FnMut(Box<Batch>)) -> Waited {
    let mut open = job(origin, Origin::urls(SHARDS));
    open.prefetch = 1;
    waited(&loader(daemon.address(), open).unwrap(), done)
}

/// A store that answers late: its bytes are what the trainer waits for.
#[test]
fn late_origin_is_charged_to_origin() {
    const LATE: Duration = Duration::from_secs(2);
    let _alone = alone();
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let url = |n| format!("{}/{}", proxy.endpoint(), Origin::key(&format!("{n}.tar")));
    let cold = || {
        let disk = Daemon::disk();
        let daemon = Daemon::start(disk.path());
        let open = job(&origin, (0..SHARDS).map(url).collect());
        waited(&loader(daemon.address(), open).unwrap(), drop)
    };
    let without = cold();
    proxy.set([(When::any(), Fault::Delay(LATE))]);
    assert_booked("origin", &without, &cold(), LATE);
}

/// Nodes whose origin answers late: a wait for a shard of another owner is a wait for that node,
/// whatever it waits for itself, and a wait for an own shard one for the origin.
#[test]
fn late_node_is_charged_to_peer() {
    const LATE: Duration = Duration::from_secs(2);
    // Names among which each node owns two: with the port that the machine draws for the proxy, it
    // owns fewer once in 10^17 times.
    const NAMES: u64 = 64;
    let _alone = alone();
    let origin = Origin::new();
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let files = ClusterFiles::new(2);
    let cold = |owner: &str| {
        let disks = [Daemon::disk(), Daemon::disk()];
        let start = |number: usize| {
            let mut config = files.config(number, disks[number].path(), 1 << 30, &origin);
            config.sources = Rules::new(vec![ClusterFiles::rule(proxy.endpoint())]).unwrap();
            Daemon::try_start(config).unwrap()
        };
        let nodes = [start(0), start(1)];
        let store = nodes[0].node().store();
        let is_owned =
            |url: &String| store.owner(url).unwrap().owner.is_some_and(|name| name == owner);
        let urls: Vec<_> = Origin::urls(NAMES).into_iter().filter(is_owned).take(2).collect();
        assert_eq!(urls.len(), 2);
        for (n, url) in (0..).zip(&urls) {
            let name = url.strip_prefix(&Origin::url("")).unwrap();
            origin.put(name, &shard(SAMPLES, n, &SIZES));
        }
        let open = job_with(BTreeMap::new(), urls);
        waited(&Loader::open(config(nodes[0].address(), open)).unwrap(), drop)
    };
    let [own, others] = ["node0", "node1"].map(cold);
    proxy.set([(When::any(), Fault::Delay(LATE))]);
    assert_booked("origin", &own, &cold("node0"), LATE);
    assert_booked("peer", &others, &cold("node1"), LATE);
}

/// Delays every read of a device.
struct Slow(Duration);

impl Faults for Slow {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        if attempt.kind != AttemptKind::Read {
            return Fate::Pass;
        }
        let (over, is_over) = oneshot::channel();
        let by = self.0;
        std::thread::spawn(move || {
            delay(by);
            // Whoever reads may be gone by now.
            let _ = over.send(());
        });
        Fate::Wait(Box::pin(async move { drop(is_over.await) }))
    }

    fn landed(&self, _attempt: &Attempt<'_>, _is_ok: bool) {}
}

/// A device that reads slowly.
#[test]
fn slow_device_is_charged_to_tier_read() {
    const LATE: Duration = Duration::from_millis(150);
    let _alone = alone();
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = warm(&origin);
    let epoch = |faults| {
        let mut config = Daemon::config(disk.path(), 1 << 30);
        config.faults = faults;
        let daemon = Daemon::try_start(config).unwrap();
        one_at_a_time(&daemon, &origin, drop)
    };
    let without = epoch(None);
    let with = epoch(Some(Arc::new(Slow(LATE))));
    // Each batch is read once at least.
    let batches = u32::try_from(SHARDS * SAMPLES / 8).unwrap();
    assert_booked("tier_read", &without, &with, LATE * batches);
}

/// A sidecar in whose place a pipe gives its bytes `late`: whoever opens it waits for so long.
fn held_back(sidecar: PathBuf, late: Duration) -> JoinHandle<()> {
    let bytes = std::fs::read(&sidecar).unwrap();
    let aside = sidecar.with_extension("aside");
    std::fs::rename(&sidecar, &aside).unwrap();
    mknodat(CWD, &sidecar, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::thread::spawn(move || {
        // Opened once it is read.
        let mut pipe = OpenOptions::new().write(true).open(&sidecar).unwrap();
        delay(late);
        // Whoever reads it again finds it as it was.
        std::fs::rename(&aside, &sidecar).unwrap();
        pipe.write_all(&bytes).unwrap();
    })
}

fn sidecars(disk: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(disk.join("shards")).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|is| is == "idx")).collect()
}

/// Indexes that come late, where the bytes are here.
#[test]
fn late_index_is_charged_to_index() {
    const LATE: Duration = Duration::from_secs(4);
    let _alone = alone();
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = warm(&origin);
    let epoch = |late: Option<Duration>| {
        let home = TempDir::new().unwrap();
        let config = Daemon::config(disk.path(), 1 << 30);
        // Once it has listed its directory, nothing reads a sidecar but who opens the shard.
        let socket = home.path().join("d.sock");
        let daemon = Daemon::try_start_after(config, &socket, |_| {}).unwrap();
        let sidecars = sidecars(disk.path());
        assert_eq!(sidecars.len() as u64, SHARDS);
        let held = sidecars.into_iter().filter_map(|sidecar| Some(held_back(sidecar, late?)));
        let held: Vec<_> = held.collect();
        let waited = one_at_a_time(&daemon, &origin, drop);
        held.into_iter().for_each(|held| held.join().unwrap());
        waited
    };
    assert_booked("index", &epoch(None), &epoch(Some(LATE)), LATE);
}

/// A slab of one slot, which the trainer keeps: nothing can be done for the next batch, and nobody
/// is busy.
#[test]
fn held_slot_is_charged_to_ring_empty() {
    const KEPT: Duration = Duration::from_millis(150);
    let _alone = alone();
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = warm(&origin);
    let daemon = Daemon::start(disk.path());
    let without = one_at_a_time(&daemon, &origin, drop);
    let mut keeping = Vec::new();
    let with = one_at_a_time(&daemon, &origin, |batch| {
        keeping.push(std::thread::spawn(move || {
            delay(KEPT);
            drop(batch);
        }));
    });
    // Nobody waits for the slot of the last.
    let waits = u32::try_from(SHARDS * SAMPLES / 8 - 1).unwrap();
    assert_booked("ring_empty", &without, &with, KEPT * waits);
    keeping.into_iter().for_each(|kept| kept.join().unwrap());
}

/// A job whose memory another holds says so while it waits, and afterwards.
#[test]
fn memory_of_other_jobs_is_charged_to_slab() {
    const HELD: Duration = Duration::from_millis(500);
    let _alone = alone();
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = warm(&origin);
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.memory = FRAMES + (4 << 20);
    let daemon = Daemon::try_start(config).unwrap();
    let mut open = job(&origin, Origin::urls(SHARDS));
    open.prefetch = 8;
    open.patience_ms = 60_000;
    let holding = loader(daemon.address(), open.clone()).unwrap();
    holding.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&holding).unwrap(), Next::Batch(_)));
    open.prefetch = 1;
    let waiting = loader(daemon.address(), open).unwrap();
    let with = std::thread::scope(|scope| {
        let waits = scope.spawn(|| waited(&waiting, drop));
        eventually("the wait is shown", || {
            daemon.status()["jobs"][1]["awaited"]["waited_for"] == "slab"
        });
        delay(HELD);
        drop(holding);
        waits.join().unwrap()
    });
    assert!(with.booked["slab"] >= HELD.as_secs_f64(), "{with:?}");
    let sum: f64 = with.booked.values().sum();
    assert!((sum - with.measured).abs() <= SUM * with.measured, "{sum}: {with:?}");
    assert!(daemon.status()["jobs"][0]["progress"]["waited_seconds"]["slab"].as_f64().is_some());
}

/// A shard of such images.
fn images(path: &Path, side: u32, samples: usize) {
    let mut tar = tar::Builder::new(File::create(path).unwrap());
    let image = png(side);
    for sample in 0..samples {
        let mut header = tar::Header::new_ustar();
        header.set_size(image.len() as u64);
        tar.append_data(&mut header, format!("{sample:06}.png"), &image[..]).unwrap();
    }
    tar.finish().unwrap();
}

/// Images of many pixels, one thread to decode them.
#[test]
fn slow_decoding_is_charged_to_decode() {
    const SIDE: u32 = 4000;
    let _alone = alone();
    let origin = Origin::new();
    let decoding = |name: &str, side: u32| {
        images(&origin.path(name), side, 24);
        let disk = Daemon::disk();
        let daemon = Daemon::start(disk.path());
        let image = ImageSpec { size: Some((32, 32)), ..ImageSpec::default() };
        let fields = vec![FieldSpec::new("image", "png", FieldKind::Image(image))];
        let mut open = job(&origin, vec![Origin::url(name)]);
        open.fields = Some(FieldSpec::wanted(&fields));
        // Two batches.
        open.order.batch_size = 12;
        let plain = config(daemon.address(), open);
        let loader = Loader::open(LoaderConfig { fields: Some(fields), ..plain }).unwrap();
        // It fills the cache.
        waited(&loader, drop);
        let waited = waited(&loader, drop);
        // Dropped from the last on.
        (disk, daemon, loader, waited)
    };
    let (_disk, _daemon, _loader, without) = decoding("small.tar", 8);
    let (_disk, _daemon, loader, with) = decoding("large.tar", SIDE);
    // A processor that takes no longer for so many pixels than this has yet to be built.
    assert_booked("decode", &without, &with, Duration::from_millis(200));

    // Nor is it the ring that a batch waits for while the decoder is busy with what nobody wants
    // any more: here with the second batch, as soon as the first is there.
    loader.start(Begin::at(1, 0)).unwrap();
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    loader.reset_stats();
    loader.start(Begin::at(2, 0)).unwrap();
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    let booked: BTreeMap<_, _> = loader.stats().wait.by_cause.into_iter().collect();
    let sum: f64 = booked.values().sum();
    // It would be half of it.
    assert!(booked["ring_empty"] <= 0.25 * sum, "{booked:?}");
}
