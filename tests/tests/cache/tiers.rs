//! Several tiers: where shards come to rest, move to, and are read from.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

use forebay_client::Loader;
use forebay_config::settings::{NodeConfig, NodeTier};
use forebay_error::{Error, ErrorKind};
use forebay_store::{
    Class, Dataset, Evict, Extent, Files, KeepFree, LocalFiles, Mode, TierReport, Watermarks,
};
use forebay_tests::{
    Daemon, FRAMES, Origin, UserHome, cached_file, epoch, eventually, job, loader, play,
    reported_error,
};

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..30_001;
const SAMPLES: u64 = 20;
/// Memory takes shards in parts of this size.
const PART: u64 = forebay_store::PART_BYTES as u64;

/// A node with tiers of given classes and shards' worth of room, and an origin with ten.
struct Bench {
    origin: Origin,
    daemon: Daemon,
    config: NodeConfig,
    shard_bytes: u64,
    disk: tempfile::TempDir,
}

impl Bench {
    fn new(tiers: &[(&str, Class, u64)]) -> Self {
        Self::with(tiers, |_, _| {})
    }

    fn with(tiers: &[(&str, Class, u64)], change: impl FnOnce(&mut NodeConfig, u64)) -> Self {
        let origin = Origin::with_shards(10, SAMPLES, &SIZES);
        let shard_bytes = origin.bytes("0.tar").len() as u64;
        let disk = Daemon::disk();
        let tier = |&(name, class, shards): &(&str, Class, u64)| match class {
            Class::Memory => {
                NodeTier { path: None, ..NodeTier::at(name, class, "/".into(), shards * PART) }
            }
            _ => NodeTier::at(name, class, disk.path().join(name), shards * shard_bytes),
        };
        let mut config = Daemon::config(disk.path(), 1);
        config.tiers = tiers.iter().map(tier).collect();
        config.memory = 3 * FRAMES;
        config.look_after = Duration::from_millis(50);
        change(&mut config, shard_bytes);
        let daemon = Daemon::try_start(config.clone()).unwrap();
        Self { origin, daemon, config, shard_bytes, disk }
    }

    fn loader(&self, shards: impl IntoIterator<Item = u64>) -> Loader {
        let urls = shards.into_iter().map(|n| Origin::url(&format!("{n}.tar"))).collect();
        loader(self.daemon.address(), job(&self.origin, urls)).unwrap()
    }

    /// Plays these shards, in an epoch of its own, and waits until nothing is under way.
    fn play(&self, shards: impl IntoIterator<Item = u64>) {
        let shards: Vec<_> = shards.into_iter().collect();
        let count = shards.len() as u32;
        let urls = shards.iter().map(|n| Origin::url(&format!("{n}.tar"))).collect();
        let mut epoch = epoch(self.daemon.address(), job(&self.origin, urls)).unwrap();
        for sample in &mut epoch.samples {
            // A shard's number tells its bytes.
            sample.shard = shards[sample.shard as usize] as u32;
        }
        assert_eq!(epoch.errors, []);
        assert_eq!(epoch.announced.1, u64::from(count) * SAMPLES);
        epoch.assert_bytes(&SIZES);
        self.daemon.settle();
    }

    fn tier(&self, name: &str) -> TierReport {
        self.daemon.tier(name)
    }

    fn change(&self, name: &str, mode: Mode) -> Result<(), Error> {
        self.daemon.change(name, mode)
    }

    /// Bytes of shards in a tier's directory.
    fn resting(&self, name: &str) -> u64 {
        let files = fs::read_dir(self.disk.path().join(name).join("shards")).unwrap().flatten();
        let tars = files.filter(|file| file.path().extension().is_some_and(|end| end == "tar"));
        tars.map(|file| file.metadata().unwrap().len()).sum()
    }
}

/// A shard used again moves into memory, is read from there, and stays on its disk.
#[test]
fn reused_shards_move_into_memory() {
    let bench = Bench::new(&[("nvme", Class::Nvme, 10), ("ram", Class::Memory, 4)]);
    bench.play([0, 1]);
    assert_eq!(bench.tier("ram").counters.shards, 0, "one use may be the last");
    bench.play([0, 1]);
    eventually("both moved", || bench.tier("ram").counters.moved_in == 2);
    let before = bench.tier("nvme").counters.tier_read_bytes;
    // What moved was read from the disk, and was no hit.
    let hits: u64 = bench.tier("nvme").traffic.iter().map(|of| of.hit_bytes).sum();
    assert!(before - hits >= 2 * bench.shard_bytes, "{before} read, {hits} for batches");
    bench.play([0, 1]);
    assert_eq!(bench.tier("nvme").counters.tier_read_bytes, before, "the disk was not read");
    assert!(bench.tier("ram").counters.tier_read_bytes > 0);
    assert_eq!(bench.tier("ram").counters.used_bytes, 2 * PART);
    assert_eq!(bench.tier("nvme").counters.shards, 2);
    assert_eq!(bench.origin.served("0.tar"), bench.shard_bytes, "one fetch");
}

/// Memory alone is a cache, too; and what it holds ends with the daemon.
#[test]
fn node_without_disks_caches_in_memory() {
    let bench = Bench::new(&[("ram", Class::Memory, 3)]);
    bench.play([0, 1, 2]);
    bench.play([0, 1, 2]);
    assert_eq!(bench.origin.served("0.tar"), bench.shard_bytes);
    bench.play([3, 4]);
    let counters = bench.tier("ram").counters;
    assert_eq!((counters.shards, counters.evictions, counters.used_bytes), (3, 2, 3 * PART));
}

/// Two disks of one class share what comes, by the room they have.
#[test]
fn disks_of_one_class_share_new_shards() {
    let bench = Bench::new(&[("a", Class::Nvme, 4), ("b", Class::Nvme, 8)]);
    // One after the other: a busy disk gets less than its room.
    (0..9).for_each(|shard| bench.play([shard]));
    let (a, b) = (bench.tier("a").counters, bench.tier("b").counters);
    assert_eq!((a.shards + b.shards, a.evictions + b.evictions), (9, 0));
    assert_eq!((a.shards, b.shards), (3, 6), "each disk has about the same room left");
    assert_eq!(bench.resting("a") + bench.resting("b"), 9 * bench.shard_bytes);
    bench.play(0..9);
    assert_eq!(bench.daemon.node().store().counters().fills, 9);
}

/// Above its high watermark a disk gives to the slower one, down to its low; nothing is fetched
/// again.
#[test]
fn full_disk_demotes_to_the_slower_one() {
    let bench = Bench::with(&[("nvme", Class::Nvme, 5), ("hdd", Class::Hdd, 10)], |config, _| {
        config.tiers[0].watermarks = Some(Watermarks { low: 0.4, high: 0.8 });
    });
    bench.play(0..4);
    assert_eq!(bench.tier("hdd").counters.shards, 0, "not above the high watermark yet");
    bench.play([4]);
    eventually("shards moved down", || {
        bench.tier("nvme").counters.used_bytes == 2 * bench.shard_bytes
            && bench.tier("hdd").counters.moved_in == 3
    });
    bench.play(0..5);
    assert_eq!(bench.daemon.node().store().counters().fills, 5);
    assert!(bench.tier("hdd").counters.tier_read_bytes > 0);
    eventually("what moved is where it counts", || {
        bench.resting("nvme") == bench.tier("nvme").counters.used_bytes
            && bench.resting("hdd") == bench.tier("hdd").counters.used_bytes
    });
}

/// A shard used again moves up to a faster disk with room, and only to tiers its rule names.
#[test]
fn reused_shards_are_promoted() {
    let bench = Bench::with(&[("nvme", Class::Nvme, 2), ("hdd", Class::Hdd, 6)], |config, _| {
        let slow = Dataset::new("slow", "**/9.tar", Evict::Lru).unwrap();
        config.datasets = vec![Dataset { tiers: vec!["hdd".into()], ..slow }];
        config.tiers[0].watermarks = Some(Watermarks { low: 0.5, high: 0.9 });
    });
    bench.play([0]);
    bench.play([1]);
    eventually("one moved down", || {
        bench.tier("hdd").counters.moved_in == 1 && bench.tier("nvme").counters.shards == 1
    });
    bench.play([9]);
    let fills = bench.daemon.node().store().counters().fills;
    (0..4).for_each(|_| bench.play([9]));
    assert_eq!(bench.tier("nvme").counters.moved_in, 0, "its rule names the slower disk");
    bench.play([0]);
    bench.play([0]);
    eventually("it moved up", || bench.tier("nvme").counters.moved_in == 1);
    let before = bench.tier("hdd").counters.tier_read_bytes;
    bench.play([0]);
    assert_eq!(bench.tier("hdd").counters.tier_read_bytes, before, "read from the faster one");
    assert_eq!(bench.daemon.node().store().counters().fills, fills, "nothing was fetched again");
}

/// A drained disk gives to a disk: copies in memory are none that last.
#[test]
fn drained_disk_promotes_nothing_to_memory() {
    let tiers = [("ram", Class::Memory, 2), ("a", Class::Nvme, 6), ("b", Class::Nvme, 6)];
    let bench = Bench::with(&tiers, |config, _| {
        let first = Dataset::new("first", "**", Evict::Lru).unwrap();
        config.datasets = vec![Dataset { tiers: vec!["a".into(), "b".into()], ..first }];
    });
    bench.play(0..5);
    bench.change("a", Mode::Draining).unwrap();
    eventually("the tier is empty", || bench.tier("a").counters.used_bytes == 0);
    assert_eq!(bench.tier("b").counters.shards, 5);
    assert_eq!(bench.daemon.node().store().counters().fills, 5);

    let bench = Bench::new(&tiers);
    bench.play(0..5);
    bench.play(0..2);
    eventually("two have copies in memory", || bench.tier("ram").counters.moved_in == 2);
    bench.change("a", Mode::Draining).unwrap();
    eventually("the tier is empty", || bench.tier("a").counters.used_bytes == 0);
    assert_eq!(bench.tier("b").counters.shards, 5, "all of them, though memory has two");
}

/// A drained tier is empty once its files are gone, not once nothing reads them: its disk may be
/// unmounted then.
#[test]
fn drained_tier_has_no_files_left() {
    let files = Arc::new(GatedFiles::default());
    let gate = files.clone();
    let bench = Bench::with(&[("a", Class::Nvme, 10), ("b", Class::Nvme, 10)], |config, _| {
        config.files = gate;
    });
    bench.play([0]);
    let closed = files.0.lock().unwrap();
    bench.change("a", Mode::Draining).unwrap();
    eventually("the shard moved", || bench.tier("b").counters.moved_in == 1);
    eventually("it has left", || bench.tier("a").counters.shards == 0);
    let counters = bench.tier("a").counters;
    assert_eq!(counters.leaving, 1);
    assert!(counters.used_bytes >= bench.shard_bytes, "{counters:?}");
    drop(closed);
    eventually("its files are gone", || bench.tier("a").counters.leaving == 0);
    assert_eq!(bench.tier("a").counters.used_bytes, 0);
}

/// Files of which those of tier `a` are removed while nobody holds the lock.
#[derive(Debug, Default)]
struct GatedFiles(Mutex<()>);

impl Files for GatedFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        LocalFiles.write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        LocalFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let is_gated = path.components().any(|part| part.as_os_str() == "a");
        let _open = is_gated.then(|| self.0.lock().unwrap());
        LocalFiles.remove(path)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        LocalFiles.truncate(path, len)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.sync_directory(path)
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        LocalFiles.extent(path)
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        LocalFiles.identity(path)
    }
}

/// A copy older than its `ttl` is stale wherever it moved.
#[test]
fn move_does_not_reset_the_age_of_a_copy() {
    let bench = Bench::with(&[("ram", Class::Memory, 4), ("a", Class::Nvme, 6)], |config, _| {
        let all = Dataset::new("all", "**", Evict::Lru).unwrap();
        config.datasets = vec![Dataset { ttl: Some(Duration::from_secs(2)), ..all }];
    });
    bench.play([0]);
    bench.play([0]);
    let begun = std::time::Instant::now();
    eventually("it is older than allowed", || begun.elapsed() > Duration::from_secs(3));
    let fills = bench.daemon.node().store().counters().fills;
    bench.play([0]);
    assert_eq!(bench.daemon.node().store().counters().fills, fills + 1, "fetched anew");
}

/// Nor does a restart after the move: the next daemon takes the age from the sidecar's.
#[test]
fn moved_copy_keeps_its_age_on_disk() {
    let bench = Bench::new(&[("a", Class::Nvme, 4), ("b", Class::Hdd, 4)]);
    bench.play([0]);
    let sidecar = |tier: &str| cached_file(&bench.disk.path().join(tier).join("shards"), ".idx");
    assert!(sidecar("a").is_some());
    let before = std::time::SystemTime::now();
    bench.change("a", Mode::Draining).unwrap();
    eventually("it moved", || bench.tier("b").counters.moved_in == 1);
    let moved = sidecar("b").unwrap().metadata().unwrap().modified().unwrap();
    assert!(moved < before, "{:?} younger", moved.duration_since(before));
}

/// A tier is drained, let go of and taken back while a job runs, and no sample is missed.
#[test]
fn tier_is_drained_and_enabled_under_a_job() {
    let bench = Bench::new(&[("a", Class::Nvme, 10), ("b", Class::Nvme, 10)]);
    bench.play(0..6);
    let loader = bench.loader(0..6);
    let whole = |epoch: u64| {
        let played = play(&loader, epoch, 0).unwrap();
        assert_eq!((played.announced.1, played.errors.len()), (6 * SAMPLES, 0));
        played.assert_bytes(&SIZES);
        bench.daemon.settle();
    };
    bench.change("a", Mode::Draining).unwrap();
    whole(0);
    eventually("the tier is empty", || bench.tier("a").counters.used_bytes == 0);
    assert_eq!(bench.tier("b").counters.shards, 6, "everything moved");
    assert_eq!(bench.resting("a"), 0);
    assert_eq!(bench.daemon.node().store().counters().fills, 6, "nothing was fetched again");

    bench.change("a", Mode::Disabled).unwrap();
    // Its directory is another daemon's to take now.
    eventually("the directory is free", || {
        let other = Daemon::config(&bench.disk.path().join("a"), bench.shard_bytes);
        Daemon::try_start(other).is_ok()
    });
    whole(1);
    bench.change("b", Mode::Disabled).unwrap();
    bench.change("a", Mode::Enabled).unwrap();
    whole(2);
    assert_eq!(bench.tier("a").counters.shards, 6, "fetched anew, to the tier that is there");
    eventually("b is free", || bench.change("b", Mode::Enabled).is_ok());
    whole(3);
    eventually("what it held counts again", || bench.tier("b").counters.shards == 6);
    assert_eq!(bench.daemon.node().store().counters().fills, 12);
    assert_eq!(bench.change("c", Mode::Draining).unwrap_err().kind(), ErrorKind::NotFound);
}

/// With no tier at all to use, jobs read through: slower, right, and nothing is kept.
#[test]
fn jobs_read_through_without_a_tier() {
    let bench = Bench::new(&[("a", Class::Nvme, 10)]);
    bench.change("a", Mode::Disabled).unwrap();
    bench.play(0..3);
    let counters = bench.daemon.node().store().counters();
    assert_eq!((counters.fills, counters.shards), (0, 0));
    assert!(counters.through_bytes + counters.copied_bytes > 0, "{counters:?}");
    bench.change("a", Mode::Enabled).unwrap();
    bench.play(0..3);
    assert_eq!(bench.daemon.node().store().counters().fills, 3);
}

/// Space that admins leave to others on a disk stays free.
#[test]
fn keep_free_leaves_disk_space_to_others() {
    let Some(mount) = forebay_tests::Mount::new("size=8m") else { return };
    let bench = Bench::with(&[("a", Class::Nvme, 10)], |config, shard_bytes| {
        config.tiers[0].path = Some(mount.path().join("cache"));
        config.tiers[0].capacity = 4 * shard_bytes;
        config.tiers[0].keep_free = KeepFree::Share(0.25);
    });
    bench.play(0..4);
    fs::write(mount.path().join("others"), vec![1; 4 << 20]).unwrap();
    let left = || bench.tier("a").counters.limit_bytes;
    eventually("the limit follows", || left() < 4 * bench.shard_bytes);
    eventually("shards leave", || bench.tier("a").counters.used_bytes <= left());
    bench.play(0..6);
    fs::remove_file(mount.path().join("others")).unwrap();
    eventually("the limit comes back", || left() == 4 * bench.shard_bytes);
}

/// A day's writing spent, nothing is fetched ahead or moved; what a trainer waits for still comes.
#[test]
fn spent_write_budget_still_admits_needed_shards() {
    let bench = Bench::with(&[("a", Class::Nvme, 10), ("b", Class::Nvme, 10)], |config, bytes| {
        config.tiers[0].writes_per_day = Some(2 * bytes);
        config.tiers[1].writes_per_day = Some(3 * bytes);
    });
    (0..5).for_each(|n| bench.play([n]));
    let (a, b) = (bench.tier("a").counters.fills, bench.tier("b").counters.fills);
    assert_eq!((a, b), (2, 3), "each as far as its allowance goes");
    bench.play([5]);
    let left =
        bench.tier("a").writes_left_bytes.unwrap().min(bench.tier("b").writes_left_bytes.unwrap());
    assert!(left < 0, "what is needed is overdrawn: {left}");
    let config = bench.config.clone();
    let Bench { daemon, disk: _disk, .. } = bench;
    daemon.stop();
    let daemon = Daemon::try_start(config).unwrap();
    let tiers = daemon.node().store().tiers();
    let left = tiers.iter().filter_map(|tier| tier.writes_left_bytes).min().unwrap();
    assert!(left < 0, "a restart gives nothing back: {left}");
}

/// A shard read once passes through; a shard used again stays.
#[test]
fn scan_does_not_evict_shards_in_use() {
    let bench = Bench::with(&[("a", Class::Nvme, 3)], |config, _| {
        let all = Dataset::new("all", "**", Evict::Lru).unwrap();
        config.datasets = vec![Dataset { scan_bypass: true, ..all }];
    });
    bench.play([0]);
    bench.play([0]);
    bench.play([1]);
    bench.play([1]);
    (2..10).for_each(|n| bench.play([n]));
    let before = bench.daemon.node().store().counters();
    bench.play([0, 1]);
    assert_eq!(bench.daemon.node().store().counters().fills, before.fills, "both are still there");
}

/// "Forget this URL now" removes every copy, on every tier, whatever its version.
#[test]
fn evicted_url_leaves_every_tier() {
    let bench = Bench::new(&[("nvme", Class::Nvme, 10), ("ram", Class::Memory, 4)]);
    bench.play([0, 1]);
    bench.play([0, 1]);
    eventually("both moved", || bench.tier("ram").counters.moved_in == 2);
    bench.origin.put("0.tar", &forebay_testkit::shard(SAMPLES, 99, &SIZES));
    let forget = |dry| bench.daemon.forget(&Origin::url("0.tar"), dry).unwrap();
    assert_eq!((forget(true), forget(false), forget(false)), (2, 2, 0));
    assert_eq!((bench.tier("ram").counters.shards, bench.tier("nvme").counters.shards), (1, 1));
    assert_eq!(bench.resting("nvme"), bench.shard_bytes);
    bench.play([1]);
    let urls = vec![Origin::url("0.tar")];
    let fresh = epoch(bench.daemon.address(), job(&bench.origin, urls)).unwrap();
    assert_eq!(fresh.errors, []);
    bench.daemon.settle();
    assert_eq!(bench.tier("nvme").counters.shards, 2, "the new version came");
}

/// "Forgotten" is not said while a tier that may hold a copy cannot be asked.
#[test]
fn url_is_not_reported_evicted_while_a_tier_is_away() {
    let bench = Bench::new(&[("a", Class::Nvme, 10), ("b", Class::Hdd, 10)]);
    bench.play([0]);
    bench.change("b", Mode::Disabled).unwrap();
    let forget = || bench.daemon.forget(&Origin::url("0.tar"), false);
    let error = forget().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.place("tier"), Some("b"));
    assert_eq!(bench.tier("a").counters.shards, 0, "those that can be asked have forgotten it");
    eventually("b is free", || bench.change("b", Mode::Enabled).is_ok());
    assert_eq!(forget().unwrap(), 0);
}

/// The command line as an admin uses it: lists, rehearses, drains with a bar, and takes back.
#[test]
fn admins_change_tiers_by_the_command_line() {
    let bench = Bench::new(&[("a", Class::Nvme, 10), ("b", Class::Nvme, 10)]);
    bench.play(0..4);
    let home = UserHome::new(ACTOR);
    let run = |arguments: &[&str]| {
        let mut command = home.forebay(arguments);
        command.env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
        let done = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        let (code, out, err) = run(arguments);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let listed = run(&["tier", "ls"]).1;
    let heads: Vec<_> = listed.lines().filter(|line| !line.starts_with(' ')).collect();
    let [a, b] = heads[..] else { panic!("{listed}") };
    assert!(a.starts_with("a  nvme, enabled") && b.starts_with("b  nvme, enabled"), "{listed}");
    assert_eq!(json(&["tier", "ls", "--json"]).as_array().unwrap().len(), 2);
    assert_eq!(run(&["tier", "drain", "a", "--dry-run"]).0, Some(0));
    assert_eq!(bench.tier("a").mode, Mode::Enabled);
    let drained = json(&["tier", "drain", "a", "--wait", "--json"]);
    assert_eq!((&drained["mode"], &drained["used_bytes"]), (&"draining".into(), &0.into()));
    assert_eq!(bench.tier("b").counters.shards, 4);
    assert_eq!(json(&["tier", "disable", "a", "--json"])["mode"], "disabled");
    assert_eq!(json(&["tier", "enable", "a", "--json"])["mode"], "enabled");
    let (code, _, err) = run(&["tier", "drain", "c"]);
    assert_eq!(code, Some(1));
    let error = reported_error(&err);
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::NotFound, Some("c")), "{err}");
    assert!(err.contains("a, b"), "{err}");

    let url = Origin::url("0.tar");
    let told = json(&["dataset", "evict", &url, "--dry-run", "--json"]);
    assert_eq!((&told[0]["copies"], &told[0]["dropped"]), (&1.into(), &false.into()));
    let (_, told, _) = run(&["dataset", "evict", &url, "s3://bucket/none.tar"]);
    assert_eq!(told.lines().count(), 2, "{told}");
    assert_eq!(bench.tier("b").counters.shards, 3);
}

/// Pins that could not be kept are refused before anything starts.
#[test]
fn pins_beyond_the_capacity_are_rejected() {
    let bench = Bench::new(&[("a", Class::Nvme, 2)]);
    let pinned = |max| Dataset {
        pin: true,
        max_bytes: Some(max),
        ..Dataset::new("pinned", "**/0.tar", Evict::Lru).unwrap()
    };
    let start = |max| {
        let disk = Daemon::disk();
        let mut config = Daemon::config(disk.path(), 2 * bench.shard_bytes);
        config.datasets = vec![pinned(max)];
        Daemon::try_start(config).map(drop)
    };
    start(2 * bench.shard_bytes).unwrap();
    let error = start(2 * bench.shard_bytes + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let promised = |bytes: u64| Some(bytes.to_string());
    let of = |error: &Error| error.place("promised").map(str::to_owned);
    assert_eq!(of(&error), promised(2 * bench.shard_bytes + 1), "what is pinned: {error}");
    // What may lie on one tier only must fit that one, whatever the others hold.
    let disk = Daemon::disk();
    let mut config = bench.config.clone();
    let tier = |name: &str, shards| {
        NodeTier::at(name, Class::Nvme, disk.path().join(name), shards * bench.shard_bytes)
    };
    config.tiers = vec![tier("a", 2), tier("b", 9)];
    let bound = Dataset { tiers: vec!["a".into()], ..pinned(2 * bench.shard_bytes) };
    let least = Dataset { pin: false, min_bytes: 1, name: "least".to_owned(), ..bound.clone() };
    config.datasets = vec![bound.clone(), Dataset { tiers: Vec::new(), ..least.clone() }];
    Daemon::try_start(config.clone()).map(drop).unwrap();
    config.datasets = vec![bound, least.clone()];
    let error = Daemon::try_start(config.clone()).map(drop).unwrap_err();
    assert_eq!(of(&error), promised(2 * bench.shard_bytes + 1), "pins and minima: {error}");
    assert_eq!(error.place("tiers"), Some("a"));
    let (min_bytes, max_bytes) = (2 * bench.shard_bytes + 1, None);
    config.datasets = vec![Dataset { min_bytes, max_bytes, ..least }];
    let error = Daemon::try_start(config).map(drop).unwrap_err();
    assert_eq!(of(&error), promised(min_bytes), "minima: {error}");
    let mut config = bench.config.clone();
    config.datasets = vec![Dataset { tiers: vec!["b".into()], ..pinned(1) }];
    config.tiers[0].path = Some(Daemon::disk().path().to_owned());
    let error = Daemon::try_start(config).map(drop).unwrap_err();
    let places = [error.place("dataset"), error.place("tier")];
    assert_eq!(places, [Some("pinned"), Some("b")], "{error}");
}
