//! Power cuts: whatever was not synced may be gone, in any combination.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use forebay_client::{Address, Next};
use forebay_config::settings::NodeConfig;
use forebay_store::fsck;
use forebay_testkit::{Lost, Random, UnsyncedFiles, for_seeds, say};
use forebay_tests::{
    CacheContents, Catalog, Daemon, Epoch, PATIENCE, epoch, eventually, job, loader, next,
};
use forebay_wire::message::Begin;
use tempfile::TempDir;

/// Seeds in a normal run: some 20 s on two cores.
const SEEDS: u64 = 5;

/// Cuts of one directory: the second meets what the first left.
const CUTS: u64 = 3;

/// Calls after which the power goes: a fill of two parts takes nine or so, an eviction three.
const CALLS: std::ops::Range<u64> = 1..150;

/// Trainers that read meanwhile.
const TRAINERS: u64 = 2;

/// Shards of one to three parts …
static SMALL: LazyLock<Catalog> = LazyLock::new(|| Catalog::new(&[40, 90, 110, 150, 230, 260]));

/// … and one of 26 parts, whose fill is recorded on its way: what is left of it is resumed.
static LARGE: LazyLock<Catalog> = LazyLock::new(|| Catalog::new(&[40, 2700, 110]));

/// A cache on a disk that forgets.
struct Bench {
    catalog: &'static Catalog,
    disk: TempDir,
    capacity: u64,
}

impl Bench {
    /// Room for `percent` of the shards.
    fn new(catalog: &'static Catalog, percent: u64) -> Self {
        let capacity = catalog.bytes() * percent / 100;
        let largest = catalog.lengths.iter().max().copied().unwrap_or_default();
        Self { catalog, disk: Daemon::disk(), capacity: capacity.max(largest) }
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    fn files(&self) -> std::sync::Arc<UnsyncedFiles> {
        UnsyncedFiles::new(&self.cache(), &self.disk.path().join("aside"))
    }

    fn config(&self, files: &std::sync::Arc<UnsyncedFiles>) -> NodeConfig {
        let mut config = Daemon::config(&self.cache(), self.capacity);
        config.files = files.clone();
        config.faults = Some(files.clone());
        config
    }

    fn all(&self) -> Vec<u32> {
        (0..).take(self.catalog.samples.len()).collect()
    }

    /// The directory is as the daemon says, and every byte of an epoch is the origin's.
    fn assert_sound(&self, daemon: &Daemon) {
        let store = daemon.node().store();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(store.scanned()).unwrap();
        self.assert_same(daemon, "at the start");
        let open = job(&self.catalog.origin, self.catalog.urls());
        let epoch = epoch(daemon.address(), open).unwrap();
        self.catalog.assert_whole(&epoch, &self.all());
        self.assert_same(daemon, "after an epoch");
        for (data, (url, _)) in CacheContents::of(&self.cache()).whole {
            self.catalog.assert_file(&self.cache().join("shards").join(data), &url);
        }
    }

    /// Bytes that count are bytes on the disk, and no more than there may be.
    fn assert_same(&self, daemon: &Daemon, when: &str) {
        eventually(when, || {
            let counters = daemon.node().store().counters();
            let rest = CacheContents::of(&self.cache());
            counters.misses == counters.ended()
                && counters.used_bytes == rest.bytes()
                && counters.used_bytes <= self.capacity
                && rest.others.is_empty()
        });
    }

    /// Reads shards in a random order until the power goes.
    fn read(&self, address: &Address, files: &UnsyncedFiles, mut random: Random) {
        while !files.power().is_off() {
            let mut shards = self.all();
            for at in (1..shards.len()).rev() {
                shards.swap(at, random.below(at as u64 + 1) as usize);
            }
            shards.truncate(random.within(1..shards.len() as u64 + 1) as usize);
            let urls = shards.iter().map(|n| forebay_tests::Origin::url(&format!("{n}.tar")));
            let mut open = job(&self.catalog.origin, urls.collect());
            open.prefetch = 2;
            let Ok(loader) = loader(address.clone(), open) else {
                assert!(files.power().is_off());
                return;
            };
            loader.start(Begin::at(0, 0)).unwrap();
            loop {
                let mut epoch = Epoch::default();
                match next(&loader) {
                    Ok(Next::Batch(batch)) => epoch.take(&batch),
                    Ok(Next::End(end)) => {
                        assert!(end.errors.is_empty() || files.power().is_off(), "{end:?}");
                        break;
                    }
                    Err(error) => {
                        assert!(files.power().is_off(), "{error}");
                        return;
                    }
                }
                self.catalog.assert_right(&epoch, &shards);
                if files.power().is_off() {
                    return;
                }
            }
        }
    }

    /// Works until the power goes, in one of the next calls.
    fn work(&self, daemon: &Daemon, files: &UnsyncedFiles, random: &mut Random) {
        std::thread::scope(|scope| {
            for _ in 0..TRAINERS {
                let (address, random) = (daemon.address(), random.split());
                scope.spawn(move || self.read(&address, files, random));
            }
            if random.percent(30) {
                let store = daemon.node().store().clone();
                scope.spawn(move || {
                    let runtime = tokio::runtime::Runtime::new().unwrap();
                    // Whatever it is cut off from is an error, and told as one.
                    runtime.block_on(async { drop(store.scrub(false, |_| ()).await) });
                });
            }
            assert!(files.power().wait(PATIENCE), "the power never went");
        });
    }
}

/// Counts of what came of a seed.
#[derive(Debug, Default)]
struct Told {
    lost: Vec<Lost>,
    resumed: u64,
    corrupt: u64,
    starts_cut: u64,
}

fn cuts(seed: u64) -> Told {
    let mut random = Random::new(seed);
    // The large ones take longer.
    let catalog = if seed % 5 == 4 { &LARGE } else { &SMALL };
    let bench = Bench::new(catalog, random.within(30..110));
    let mut told = Told::default();
    for _ in 0..CUTS {
        let files = bench.files();
        if random.percent(25) {
            // In the start itself, or soon after.
            files.power().goes_after(random.within(1..12));
        }
        match Daemon::try_start(bench.config(&files)) {
            Err(error) => {
                assert!(files.power().is_off(), "a start failed after a cut: {error}");
                told.starts_cut += 1;
            }
            Ok(daemon) => {
                if !files.power().is_off() && random.percent(70) {
                    // Now and then the next cut comes before anybody looked.
                    files.power().goes_after(u64::MAX);
                    bench.assert_sound(&daemon);
                }
                files.power().goes_after(random.within(CALLS));
                bench.work(&daemon, &files, &mut random);
                let counters = daemon.node().store().counters();
                told.resumed += counters.resumed_bytes;
                told.corrupt += counters.corruptions;
            }
        }
        told.lost.push(files.cut(random.number()));
    }
    let files = bench.files();
    let daemon = Daemon::try_start(bench.config(&files)).unwrap();
    bench.assert_sound(&daemon);
    let counters = daemon.node().store().counters();
    told.resumed += counters.resumed_bytes;
    told.corrupt += counters.corruptions;
    daemon.stop();
    let checkup = fsck(&bench.cache(), false, None, |_, _| {}).unwrap();
    assert_eq!(checkup.faults, [], "an orderly end leaves nothing behind");
    told
}

/// Bears promise 4 (a power cut at any instant): three cuts of one directory each, in the middle of
/// fills, evictions, resumes and starts.
#[test]
fn power_cut_at_any_time_loses_no_start_and_no_byte() {
    let told = for_seeds("FOREBAY_POWER_SEED", "FOREBAY_POWER_ROUNDS", SEEDS, |seed| {
        let told = cuts(seed);
        say(&format!("seed {seed}: {told:?}"));
        told
    });
    if told.len() > 1 {
        let lost = |of: fn(&Lost) -> usize| told.iter().flat_map(|told| &told.lost).map(of).sum();
        let (names, sectors): (usize, usize) = (lost(|lost| lost.names), lost(|lost| lost.sectors));
        assert!(names > 0 && sectors > 0, "the cuts took nothing");
    }
}

/// Bears promise 4: what counts as cached is there after any cut, byte for byte.
#[test]
fn cached_shards_survive_any_power_cut() {
    for_seeds("FOREBAY_CACHED_SEED", "FOREBAY_CACHED_ROUNDS", 2, |seed| {
        let mut random = Random::new(seed);
        let bench = Bench::new(&SMALL, random.within(40..120));
        let files = bench.files();
        let daemon = Daemon::try_start(bench.config(&files)).unwrap();
        bench.assert_sound(&daemon);
        files.power().off();
        drop(daemon);
        let before = CacheContents::of(&bench.cache());
        assert!(!before.whole.is_empty());
        files.cut(random.number());
        let after = CacheContents::of(&bench.cache());
        for (data, (url, len)) in before.whole {
            assert_eq!(after.whole.get(&data), Some(&(url.clone(), len)), "it is gone");
            bench.catalog.assert_file(&bench.cache().join("shards").join(data), &url);
        }
        assert!(fs::exists(bench.cache().join("FORMAT")).unwrap());
    });
}
