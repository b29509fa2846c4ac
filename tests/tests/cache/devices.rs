//! Devices that fail, fill up, forget how to write or go away: jobs go on, and it is told once.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::settings::{NodeConfig, NodeTier};
use forebay_store::{Class, Condition, Mode, TierReport};
use forebay_tests::{Daemon, FaultyDevice, Mount, Origin, epoch, eventually, job, loader, play};
use forebay_wire::message::Begin;
use rustix::fs::{CWD, RenameFlags, renameat_with};

const SIZES: std::ops::Range<usize> = 30_000..30_001;
const SAMPLES: u64 = 20;
const SHARDS: u64 = 6;
/// Linux's number of an input/output error.
const EIO: i32 = 5;
/// A read-only file system.
const EROFS: i32 = 30;

/// A node with one or more disks, of which `a` can be made to fail.
struct Bench {
    origin: Origin,
    daemon: Daemon,
    faulty: Arc<FaultyDevice>,
    config: NodeConfig,
    disk: tempfile::TempDir,
}

impl Bench {
    fn new(tiers: &[&str]) -> Self {
        Self::with(tiers, |_, _| {})
    }

    /// Two disks of which neither holds all shards: each gets some, however busy one is.
    fn of_two() -> Self {
        Self::with(&["a", "b"], |config, bytes| {
            config.tiers.iter_mut().for_each(|tier| tier.capacity = 5 * bytes);
        })
    }

    fn with(tiers: &[&str], change: impl FnOnce(&mut NodeConfig, u64)) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let bytes = origin.bytes("0.tar").len() as u64;
        let disk = Daemon::disk();
        let faulty = FaultyDevice::below(&disk.path().join("a"));
        let mut config = Daemon::config(disk.path(), 1);
        let tier =
            |name: &&str| NodeTier::at(name, Class::Nvme, disk.path().join(name), 10 * bytes);
        config.tiers = tiers.iter().map(tier).collect();
        config.faults = Some(faulty.clone());
        config.look_after = Duration::from_millis(50);
        change(&mut config, bytes);
        let daemon = Daemon::try_start(config.clone()).unwrap();
        Self { origin, daemon, faulty, config, disk }
    }

    fn restarted(self) -> Self {
        self.daemon.stop();
        Self { daemon: Daemon::try_start(self.config.clone()).unwrap(), ..self }
    }

    /// Plays every shard: no sample is missed and none is wrong.
    fn play(&self) {
        let open = job(&self.origin, Origin::urls(SHARDS));
        let epoch = epoch(self.daemon.address(), open).unwrap();
        epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        self.daemon.settle();
    }

    fn tier(&self, name: &str) -> TierReport {
        self.daemon.tier(name)
    }

    fn becomes(&self, name: &str, condition: Condition) {
        eventually(&format!("{name} is {condition:?}"), || self.tier(name).condition == condition);
    }
}

/// A disk that fails every read in mid-epoch costs nothing but speed: the job reads on from the
/// origin, the disk is let alone, probed, and used again when it is well.
#[test]
fn failing_reads_in_mid_epoch_lose_no_sample() {
    let bench = Bench::new(&["a"]);
    bench.play();
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap();
    bench.faulty.fail_reads(EIO);
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let tier = bench.tier("a");
    assert!(tier.condition != Condition::Normal, "{tier:?}");
    assert!(tier.why.is_some_and(|why| why.contains("os error 5")));
    assert!(bench.daemon.node().store().counters().through_bytes > 0);
    bench.becomes("a", Condition::Down);
    play(&loader, 1, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    bench.faulty.fail_reads(0);
    bench.becomes("a", Condition::Normal);
    play(&loader, 2, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let through = bench.daemon.node().store().counters().through_bytes;
    bench.play();
    assert_eq!(bench.daemon.node().store().counters().through_bytes, through, "cached again");
    eventually("what counts is there", || {
        bench.tier("a").counters.used_bytes == bytes_in(&bench, "a")
    });
}

/// A disk that takes no writes keeps no shard, and a second one takes what comes.
#[test]
fn failing_writes_move_to_the_other_disk() {
    let bench = Bench::new(&["a", "b"]);
    bench.faulty.fail_writes(EIO);
    bench.play();
    bench.becomes("a", Condition::Down);
    bench.play();
    bench.play();
    assert_eq!(bench.tier("b").counters.shards, SHARDS as usize, "all of it is on the other");
    eventually("nothing is left", || bench.tier("a").counters.used_bytes == 0);
    bench.faulty.fail_writes(0);
    bench.becomes("a", Condition::Normal);
}

/// With one disk, broken from the first byte, jobs still run.
#[test]
fn disk_broken_from_the_start_stops_no_job() {
    let bench = Bench::new(&["a"]);
    bench.faulty.fail_writes(EIO);
    (0..3).for_each(|_| bench.play());
    eventually("nothing is left", || bench.tier("a").counters.used_bytes == 0);
    assert!(bench.faulty.failed() > 0);
    bench.faulty.fail_writes(0);
    bench.becomes("a", Condition::Normal);
    bench.play();
    assert_eq!(bench.tier("a").counters.shards, SHARDS as usize);
}

/// One bad sector is no bad disk: that copy goes, and comes again.
#[test]
fn single_io_error_drops_one_copy() {
    let bench = Bench::new(&["a"]);
    bench.play();
    let url = vec![Origin::url("0.tar")];
    bench.faulty.fail_reads(EIO);
    let one = loader(bench.daemon.address(), job(&bench.origin, url)).unwrap();
    one.start(Begin::at(0, 0)).unwrap();
    eventually("a read failed", || bench.faulty.failed() > 0);
    bench.faulty.fail_reads(0);
    drop(one);
    bench.play();
    let tier = bench.tier("a");
    assert!(tier.counters.io_errors > 0);
    eventually("all is there again", || bench.tier("a").counters.shards == SHARDS as usize);
}

/// A file system that was remounted read-only serves what it has; what comes goes elsewhere.
#[test]
fn read_only_disk_is_read_and_not_written() {
    let bench = Bench::new(&["a", "b"]);
    bench.faulty.fail_writes(EROFS);
    bench.play();
    bench.becomes("a", Condition::ReadOnly);
    bench.play();
    assert_eq!(bench.tier("a").counters.fills, 0);
    assert!(bench.tier("b").counters.fills > 0);
    bench.faulty.fail_writes(0);
    bench.becomes("a", Condition::Normal);
}

/// The same by a real mount.
#[test]
fn file_system_remounted_read_only_is_read() {
    let Some(mount) = Mount::new("size=16m") else { return };
    let mut bench = Bench::with(&["a"], |config, bytes| {
        config.tiers[0] = NodeTier::at("a", Class::Nvme, mount.path().join("a"), 3 * bytes);
    });
    let play = |bench: &Bench, n: u64| {
        let open = job(&bench.origin, vec![Origin::url(&format!("{n}.tar"))]);
        let epoch = epoch(bench.daemon.address(), open).unwrap();
        assert_eq!((epoch.announced.1, epoch.errors.len()), (SAMPLES, 0));
    };
    play(&bench, 0);
    eventually("it is whole", || bench.tier("a").counters.fills == 1);
    // A kernel that found the disk broken does not ask who has files open for writing; `mount`
    // does.
    bench = bench.restarted();
    mount.remount("ro");
    play(&bench, 0);
    assert_eq!(bench.tier("a").counters.hits, 1, "what it has is served");
    (1..3).for_each(|n| play(&bench, n));
    bench.becomes("a", Condition::ReadOnly);
    mount.remount("rw");
    bench.becomes("a", Condition::Normal);
    play(&bench, 1);
    eventually("it is used again", || bench.tier("a").counters.fills == 1);
}

/// A disk out of inodes has room no file can have.
#[test]
fn disk_without_inodes_stops_no_job() {
    // The root, four files and a folder of ours, and one shard with its sidecar.
    let Some(mount) = Mount::new("size=16m,nr_inodes=14") else { return };
    let bench = Bench::with(&["a"], |config, bytes| {
        config.tiers[0] = NodeTier::at("a", Class::Nvme, mount.path().join("a"), 6 * bytes);
    });
    (0..2).for_each(|_| bench.play());
    assert_eq!(bench.tier("a").counters.corruptions, 0);
    bench.becomes("a", Condition::Full);
    assert!(bench.tier("a").why.is_some());
}

/// A cache whose files somebody removed, and one whose directory was swapped for another.
#[test]
fn foreign_changes_to_the_directory_lose_no_sample() {
    let bench = Bench::new(&["a"]);
    bench.play();
    let shards = bench.disk.path().join("a/shards");
    for file in fs::read_dir(&shards).unwrap().flatten() {
        fs::remove_file(file.path()).unwrap();
    }
    bench.play();
    // A job holds the files it reads; the next one finds them gone.
    bench.play();

    // At once: a tier that sees no directory in between is down for that.
    let (place, away) = (bench.disk.path().join("a"), bench.disk.path().join("away"));
    fs::create_dir_all(away.join("shards")).unwrap();
    renameat_with(CWD, &place, CWD, &away, RenameFlags::EXCHANGE).unwrap();
    eventually("a is down for what took its place", || {
        let tier = bench.tier("a");
        let is_replaced = tier.why.is_some_and(|why| why.contains("reason=replaced"));
        tier.condition == Condition::Down && is_replaced
    });
    bench.play();
    assert_eq!(
        fs::read_dir(&shards).unwrap().count(),
        0,
        "nothing was written to what is not ours"
    );
    fs::remove_dir_all(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    bench.becomes("a", Condition::Normal);
    bench.play();
}

/// A disk that stops to answer, without an error: jobs over its shards and over new ones go on, no
/// request of an admin waits for it, and it is used again once it answers.
#[test]
fn silent_disk_is_down_and_passed_by() {
    let bench = Bench::of_two();
    bench.play();
    let shards = |name: &str| bench.tier(name).counters.shards;
    assert!(shards("a") > 0 && shards("b") > 0, "each has some");
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap();
    bench.faulty.hang(true);
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    bench.becomes("a", Condition::Down);
    assert!(bench.tier("a").why.is_some_and(|why| why.contains("no-answer")));
    let waiting = bench.faulty.waiting();
    play(&loader, 1, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert!(bench.faulty.waiting() <= waiting + 1, "only a probe asks it for more");
    bench.faulty.hang(false);
    bench.becomes("a", Condition::Normal);
    play(&loader, 2, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    bench.play();
}

/// A read that a silent disk keeps has all memory of a job with one batch in flight: the job goes
/// on in other memory. So does one that begins anew meanwhile.
#[test]
fn silent_disk_keeps_no_job_from_its_memory() {
    // The only disk: whichever shards a batch reads, it reads them there.
    let bench = Bench::new(&["a"]);
    bench.play();
    let mut open = job(&bench.origin, Origin::urls(SHARDS));
    open.prefetch = 1;
    let jobs = [0; 2].map(|_| loader(bench.daemon.address(), open.clone()).unwrap());
    let [goes_on, begins_anew] = &jobs;
    for job in &jobs {
        play(job, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    bench.faulty.hang(true);
    begins_anew.start(Begin::at(1, 0)).unwrap();
    eventually("a read of its only batch waits", || bench.faulty.waiting() > 0);
    for job in [begins_anew, goes_on] {
        play(job, 2, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    bench.becomes("a", Condition::Down);
    bench.faulty.hang(false);
    bench.becomes("a", Condition::Normal);
}

/// A disk that stops to answer while shards come to it: they come past it.
#[test]
fn silent_disk_stops_no_fill() {
    let bench = Bench::new(&["a"]);
    bench.faulty.hang(true);
    let open = job(&bench.origin, Origin::urls(SHARDS));
    let epoch = epoch(bench.daemon.address(), open).unwrap();
    epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    bench.becomes("a", Condition::Down);
    bench.play();
    bench.faulty.hang(false);
    bench.becomes("a", Condition::Normal);
    eventually("nothing is left", || bench.tier("a").counters.used_bytes == 0);
    bench.play();
    assert_eq!(bench.tier("a").counters.shards, SHARDS as usize);
}

/// An admin takes a silent disk out of use, and the daemon ends.
#[test]
fn silent_disk_delays_neither_admin_nor_end() {
    let bench = Bench::of_two();
    bench.play();
    assert!(bench.tier("a").counters.shards > 0);
    bench.faulty.hang(true);
    // All of its batches are read ahead, wherever the shards lie.
    let mut open = job(&bench.origin, Origin::urls(SHARDS));
    open.prefetch = 16;
    let loader = loader(bench.daemon.address(), open).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    eventually("an operation waits", || bench.faulty.waiting() > 0);
    bench.daemon.change("a", Mode::Disabled).unwrap();
    assert_eq!(bench.tier("a").mode, Mode::Disabled);
    bench.play();
    drop(loader);
    let Bench { daemon, faulty, .. } = bench;
    daemon.stop();
    assert!(faulty.waiting() > 0, "it ended before the disk answered");
    faulty.hang(false);
}

/// One of two disks cannot be used at the start: the other is, and the first once it can.
#[test]
fn unusable_disk_keeps_no_other_from_starting() {
    for damage in [damage_format, damage_pins, lock_out] {
        let bench = Bench::new(&["a", "b"]);
        bench.play();
        let Bench { origin, daemon, faulty, config, disk } = bench;
        daemon.stop();
        let mend = damage(&disk.path().join("a"));
        let daemon = Daemon::try_start(config.clone()).unwrap();
        let bench = Bench { origin, daemon, faulty, config, disk };
        assert_eq!(bench.tier("a").condition, Condition::Down);
        assert!(bench.tier("a").why.is_some());
        bench.play();
        mend();
        bench.becomes("a", Condition::Normal);
        bench.play();
        // With no other, it is an error.
        let Bench { daemon, mut config, disk, .. } = bench;
        daemon.stop();
        config.tiers.truncate(1);
        let _mend = damage(&disk.path().join("a"));
        assert!(Daemon::try_start(config).is_err());
    }
}

type Mend = Box<dyn FnOnce()>;

/// Overwrites a file, and returns the way back.
fn overwrite(path: std::path::PathBuf) -> Mend {
    let before = fs::read(&path).ok();
    fs::write(&path, "{ damaged").unwrap();
    Box::new(move || match before {
        Some(before) => fs::write(path, before).unwrap(),
        None => fs::remove_file(path).unwrap(),
    })
}

fn damage_format(tier: &std::path::Path) -> Mend {
    overwrite(tier.join("FORMAT"))
}

fn damage_pins(tier: &std::path::Path) -> Mend {
    overwrite(tier.join("PINS"))
}

/// Another daemon holds it.
fn lock_out(tier: &std::path::Path) -> Mend {
    let lock = fs::File::open(tier.join("LOCK")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    Box::new(move || drop(lock))
}

/// A disk that is not mounted at the start: the disk below its mount point is not filled, jobs go
/// on, and the disk is used once it is mounted.
#[test]
fn unmounted_disk_is_not_filled_below_its_mount_point() {
    let Some(mount) = Mount::new("size=16m") else { return };
    let state = tempfile::tempdir().unwrap();
    let bench = Bench::with(&["a"], |config, bytes| {
        let tier = NodeTier::at("a", Class::Nvme, mount.path().join("a"), 3 * bytes);
        (config.tiers[0], config.state) = (tier, Some(state.path().to_owned()));
    });
    bench.play();
    let Bench { origin, daemon, faulty, config, disk } = bench;
    daemon.stop();
    mount.unmount();
    let daemon = Daemon::try_start(config.clone()).unwrap();
    let bench = Bench { origin, daemon, faulty, config, disk };
    let tier = bench.tier("a");
    assert_eq!(tier.condition, Condition::Down);
    assert!(tier.why.is_some_and(|why| why.contains("not-mounted")));
    bench.play();
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0, "nothing was written there");
    // A tmpfs starts anew: another file system, which an admin has to accept.
    mount.mount_again("size=16m");
    eventually("it is another file system", || {
        bench.tier("a").why.is_some_and(|why| why.contains("another-file-system"))
    });
    // Not while the tier looks at its directory.
    eventually("an admin accepts it", || bench.daemon.change("a", Mode::Enabled).is_ok());
    bench.becomes("a", Condition::Normal);
    bench.play();
    assert!(mount.path().join("a/FORMAT").exists());
}

/// A tier that must lie on a disk of its own, and does not.
#[test]
fn tier_without_its_required_mount_is_down() {
    let bench = Bench::with(&["a"], |config, _| config.tiers[0].require_mount = true);
    let root = std::process::Command::new("findmnt");
    let point = |path: &std::path::Path| {
        let found = { root }.args(["-n", "-o", "TARGET", "-T"]).arg(path).output().unwrap();
        String::from_utf8(found.stdout).unwrap().trim().to_owned()
    };
    let is_root = point(bench.disk.path()) == "/";
    let expected = if is_root { Condition::Down } else { Condition::Normal };
    assert_eq!(bench.tier("a").condition, expected);
    bench.play();
    assert_eq!(bench.disk.path().join("a").exists(), !is_root);
}

/// Bytes of shards in a tier's directory.
fn bytes_in(bench: &Bench, name: &str) -> u64 {
    let files = fs::read_dir(bench.disk.path().join(name).join("shards")).unwrap().flatten();
    let tars = files.filter(|file| file.path().extension().is_some_and(|end| end == "tar"));
    tars.map(|file| file.metadata().unwrap().len()).sum()
}
