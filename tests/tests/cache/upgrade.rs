//! Releases that follow each other on one cache, forward and back, under a job that stays.
//!
//! The daemons are of this release; what another would have written is made of what they wrote, by
//! the layout that `docs/ON_DISK.md` promises all releases.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use forebay_client::{Address, Loader, Next};
use forebay_tests::{
    CacheContents, Daemon, Epoch, FORMAT, FRAMES, Installation, Installed, Origin, cached_file,
    eventually, format_of, job, loader, next, play, status, to_future_format, to_previous_format,
};
use forebay_wire::message::Begin;
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 8;
const SAMPLES: u64 = 40;

/// Batches after which the first daemon ends: in the third shard, of which the job then has eight
/// batches ready at most, with four shards left to fetch.
const BEFORE: u64 = 11;

/// Memory of a daemon, most of it frames.
const MEMORY: u64 = FRAMES as u64 + (64 << 20);

/// Room for every shard, twice.
const CAPACITY: u64 = 256 << 20;

struct Bench {
    origin: Origin,
    disk: TempDir,
    installation: Installation,
}

impl Bench {
    fn new() -> Self {
        let disk = Daemon::disk();
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let rest = format!(
            "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '{CAPACITY}B'\n{}",
            disk.path().join("cache"),
            origin.rule(),
        );
        let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
        Self { origin, disk, installation }
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    fn loader(&self, shards: u64) -> Loader {
        let mut open = job(&self.origin, Origin::urls(shards));
        open.prefetch = 2;
        loader(Address::Unix(self.installation.socket()), open).unwrap()
    }

    fn number(&self, pointer: &str) -> u64 {
        let status = status(&self.installation.socket());
        status.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{status}"))
    }

    /// Waits until nothing is on its way in.
    fn settle(&self) {
        eventually("nothing is under way", || {
            let ended = self.number("/cache/fills") + self.number("/cache/failed_fills");
            self.number("/cache/misses") == ended
        });
    }

    /// Ends a daemon in order, once what it fetches is whole.
    fn stop(&self, daemon: Installed) {
        self.settle();
        daemon.stop();
    }

    fn sidecar(&self, data: &str) -> PathBuf {
        self.cache().join("shards").join(format!("{data}.idx"))
    }

    /// Whole shards: which file each object is.
    fn whole(&self) -> BTreeMap<String, String> {
        let whole = CacheContents::of(&self.cache()).whole.into_iter();
        let object = |url: String| url.rsplit('/').next().unwrap().to_owned();
        whole.map(|(data, (url, _))| (object(url), data)).collect()
    }

    fn served(&self) -> Vec<u64> {
        (0..SHARDS).map(|n| self.origin.served(&format!("{n}.tar"))).collect()
    }

    fn len(&self, n: u64) -> u64 {
        self.origin.bytes(&format!("{n}.tar")).len() as u64
    }
}

/// Takes so many batches of what the job plays.
fn take(loader: &Loader, epoch: &mut Epoch, batches: u64) {
    for _ in 0..batches {
        let Next::Batch(batch) = next(loader).unwrap() else { panic!("the epoch ended early") };
        epoch.take(&batch);
    }
}

/// Plays on to the end; every sample came once, in order, with its bytes.
fn finish(loader: &Loader, mut epoch: Epoch, shards: u64) {
    loop {
        match next(loader).unwrap() {
            Next::Batch(batch) => epoch.take(&batch),
            Next::End(end) => {
                assert_eq!((end.samples, end.errors), (shards * SAMPLES, Vec::new()));
                break;
            }
        }
    }
    epoch.assert_whole(shards as u32, SAMPLES, &SIZES);
    assert!(epoch.samples.iter().map(|sample| sample.position).is_sorted(), "the order was lost");
}

/// Bears promises 4, 6 and 7: a job begins under the release before and ends under this one. What
/// that one cached is served as it is; what is new is written as this release writes.
#[test]
fn cache_is_upgraded_under_its_job() {
    let bench = Bench::new();
    let daemon = bench.installation.start();
    let (loader, mut epoch) = (bench.loader(SHARDS), Epoch::default());
    // So that the first daemon leaves something to the second.
    bench.origin.server.stall(&Origin::key("6.tar"), 0);
    bench.origin.server.stall(&Origin::key("7.tar"), 0);
    loader.start(Begin::at(0, 0)).unwrap();
    take(&loader, &mut epoch, BEFORE);
    eventually("six are there", || bench.whole().len() == 6);
    daemon.stop();
    bench.origin.server.release(&Origin::key("6.tar"));
    bench.origin.server.release(&Origin::key("7.tar"));
    let (old, served) = (bench.whole(), bench.served());
    assert_eq!(old.len(), 6);
    old.values().for_each(|data| to_previous_format(&bench.sidecar(data)));

    let daemon = bench.installation.start();
    finish(&loader, epoch, SHARDS);
    bench.settle();
    assert_eq!(loader.stats().reconnects, 1);
    assert_eq!(bench.served()[..6], served[..6], "what was there was fetched again");
    assert_eq!((bench.number("/cache/fills"), bench.number("/cache/corruptions")), (2, 0));
    for (object, data) in bench.whole() {
        let format = if old.contains_key(&object) { FORMAT - 1 } else { FORMAT };
        assert_eq!(format_of(&bench.sidecar(&data)), format, "{object}");
    }
    // Once more, with all of it there: both formats beside each other.
    play(&loader, 1, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert_eq!(bench.number("/cache/fills"), 2);
    bench.stop(daemon);
}

/// The same the other way: a job begins under a release to come and goes on under this one, which
/// fetches again what it cannot read and leaves the rest alone. Rolled forward, what was left is
/// served again.
#[test]
fn cache_is_rolled_back_and_forward_under_its_job() {
    let bench = Bench::new();
    let daemon = bench.installation.start();
    let (loader, mut epoch) = (bench.loader(SHARDS), Epoch::default());
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    loader.start(Begin::at(1, 0)).unwrap();
    take(&loader, &mut epoch, BEFORE);
    bench.stop(daemon);
    let mine = bench.whole();
    assert_eq!(mine.len() as u64, SHARDS);
    // All but the first three, which the job has behind it or under way.
    let newer: Vec<u64> = (3..SHARDS).collect();
    let files = |n: &u64| {
        let data = &mine[&format!("{n}.tar")];
        (bench.cache().join("shards").join(data), bench.sidecar(data))
    };
    let readable: Vec<_> = newer.iter().map(|n| fs::read(files(n).1).unwrap()).collect();
    newer.iter().for_each(|n| to_future_format(&files(n).1));
    let read = |n: &u64| (fs::read(files(n).0).unwrap(), fs::read(files(n).1).unwrap());
    let left: Vec<_> = newer.iter().map(read).collect();
    let served = bench.served();

    let daemon = bench.installation.start();
    finish(&loader, epoch, SHARDS);
    bench.settle();
    assert_eq!(loader.stats().reconnects, 1);
    for n in 0..SHARDS {
        let again = bench.served()[n as usize] - served[n as usize];
        let right = if newer.contains(&n) { bench.len(n) } else { 0 };
        // A late request is sent twice.
        let most = right * (1 + bench.number("/sources/0/hedges"));
        assert!((right..=most).contains(&again), "{n}.tar: {again} of {right}");
    }
    assert_eq!(bench.number("/cache/fills"), newer.len() as u64);
    let all: u64 = (0..SHARDS).chain(newer.iter().copied()).map(|n| bench.len(n)).sum();
    assert_eq!(bench.number("/cache/used_bytes"), all, "both copies count");
    let log = daemon.log();
    for n in &newer {
        let named = log.lines().filter(|line| {
            line.contains(" WARN ") && line.contains(mine[&format!("{n}.tar")].as_str())
        });
        assert_eq!(named.count(), 1, "{n}.tar in {log}");
    }
    play(&loader, 2, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert_eq!(bench.number("/cache/fills"), newer.len() as u64, "once is enough");
    let mut epoch = Epoch::default();
    loader.start(Begin::at(3, 0)).unwrap();
    take(&loader, &mut epoch, BEFORE);
    bench.stop(daemon);
    assert!(newer.iter().map(read).eq(left), "what a newer release wrote was touched");

    // Who can read them is back; what was fetched beside them is not needed for it.
    for (n, bytes) in newer.iter().zip(readable) {
        let (data, sidecar) = files(n);
        fs::write(sidecar, bytes).unwrap();
        let name = data.file_name().unwrap().to_str().unwrap().replacen('-', "+", 1);
        let beside = cached_file(&bench.cache().join("shards"), &name).expect("it lies beside");
        fs::remove_file(bench.sidecar(&name)).unwrap();
        fs::remove_file(beside).unwrap();
    }
    let served = bench.served();
    let daemon = bench.installation.start();
    finish(&loader, epoch, SHARDS);
    bench.settle();
    assert_eq!(loader.stats().reconnects, 2);
    assert_eq!(bench.served(), served, "what is there was fetched");
    assert_eq!((bench.number("/cache/fills"), bench.number("/cache/corruptions")), (0, 0));
    assert!(!daemon.log().contains(" WARN "), "{}", daemon.log());
    bench.stop(daemon);
}
