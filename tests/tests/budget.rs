//! The cache's limits: capacity, a full disk, a directory that cannot be used.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_error::ErrorKind;
use forebay_tests::{Daemon, Origin, epoch, job, loader, play};
use forebay_wire::message::Shuffle;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 60;

/// Bears promise 3 (budgets are hard): a data set three times the cache plays epoch after epoch, and
/// at no moment is more reserved, or more on the disk, than the capacity.
#[test]
fn a_data_set_larger_than_the_cache_plays_within_the_capacity() {
    let origin = Origin::with_shards(6, SAMPLES, &SIZES);
    let largest = (0..6).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).max().unwrap();
    // Padding of one sector, cut off at a fill's end, must fit too.
    let capacity = 2 * largest + 8192;
    let disk = Daemon::disk();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), capacity)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = SetOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let counters = daemon.node().store().counters();
                assert!(counters.used_bytes <= capacity, "{counters:?}");
                assert!(resting(disk.path()) <= capacity);
            }
        });
        let mut open = job(&origin, Origin::urls(6));
        for shuffle in [Shuffle::None, Shuffle::Window] {
            open.order.shuffle = shuffle;
            let loader = loader(daemon.address(), open.clone()).unwrap();
            for number in 0..3 {
                play(&loader, number, 0).unwrap().assert_whole(6, SAMPLES, &SIZES);
            }
        }
    });
    let counters = daemon.node().store().counters();
    assert!(counters.evictions >= 4, "{counters:?}");
    assert!(counters.fills >= 6 + 4, "{counters:?}");
}

/// Ends whoever watches for as long as the flag is not set, even where a test panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bears promise 3: what cannot fit is refused with the figure to change.
#[test]
fn a_shard_larger_than_the_cache_is_refused_naming_the_capacity() {
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), 1 << 20)).unwrap();
    let error = epoch(daemon.address(), job(&origin, Origin::urls(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(error.place("capacity"), Some("1048576"));
    assert_eq!(error.place("url"), Some("s3://bucket/0.tar"));
    assert_eq!(daemon.files(), Vec::<PathBuf>::new());
}

/// Bears promises 3 and 9: a disk that is full before the capacity is reached is told to the
/// trainer, leaves nothing behind, and serves what is there.
#[test]
fn a_full_disk_ends_the_epoch_with_full_and_leaves_nothing_half_done() {
    let Some(mount) = Mount::new("size=16m") else { return };
    let origin = Origin::with_shards(9, SAMPLES, &SIZES);
    let daemon = Daemon::start(&mount.path().join("cache"));
    let error = epoch(daemon.address(), job(&origin, Origin::urls(9))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.place("url").is_some(), "{error}");
    // Fetches that were under way when the epoch failed may still end well.
    let whole = || daemon.node().store().counters().fills;
    forebay_tests::eventually("only whole shards are left", || {
        whole() > 0 && daemon.files().len() as u64 == 2 * whole()
    });
    let there = (0..9).filter(|n| {
        daemon.files().iter().any(|file| file.to_string_lossy().ends_with(&format!("-{n}.tar")))
    });
    let urls = there.map(|n: u64| Origin::url(&format!("{n}.tar"))).collect::<Vec<_>>();
    let samples = urls.len() as u64 * SAMPLES;
    assert_eq!(epoch(daemon.address(), job(&origin, urls)).unwrap().announced.1, samples);
}

/// Bears promise 9 (bad input is named) for cache directories.
#[test]
fn a_directory_that_cannot_hold_a_cache_is_refused_with_its_path() {
    let disk = Daemon::disk();
    let refused = |cache: &Path, kind: ErrorKind| {
        let error = Daemon::try_start(Daemon::config(cache, 1 << 30)).err().expect("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.place("directory"), cache.to_str(), "{error}");
        error.to_string()
    };
    let file = disk.path().join("file");
    fs::write(&file, "x").unwrap();
    refused(&file.join("cache"), ErrorKind::Invalid);
    refused(&file, ErrorKind::Invalid);

    let foreign = disk.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "x").unwrap();
    assert!(refused(&foreign, ErrorKind::Invalid).contains("empty directory"));
    assert!(foreign.join("thesis.tex").exists());

    let newer = disk.path().join("newer");
    fs::create_dir(&newer).unwrap();
    fs::write(newer.join("FORMAT"), "forebay 99\n").unwrap();
    assert!(refused(&newer, ErrorKind::Invalid).contains("forebay 99"));

    if let Some(mount) = Mount::new("size=1m,ro") {
        refused(&mount.path().join("cache"), ErrorKind::PermissionDenied);
        refused(mount.path(), ErrorKind::PermissionDenied);
    }
    let closed = disk.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    // Modes do not bind the superuser.
    if !rustix::process::geteuid().is_root() {
        refused(&closed.join("cache"), ErrorKind::PermissionDenied);
    }
}

/// Bears promise 3: two daemons would each think that they own the whole capacity.
#[test]
fn a_second_daemon_on_a_directory_is_refused_naming_the_first() {
    let disk = Daemon::disk();
    let first = Daemon::start(disk.path());
    let error = Daemon::try_start(Daemon::config(disk.path(), 1 << 30)).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.place("pid"), Some(std::process::id().to_string().as_str()), "{error}");
    first.stop();
    Daemon::start(disk.path()).stop();
}

/// Bytes of shards on the disk; one that goes while this looks counts for nothing.
fn resting(cache: &Path) -> u64 {
    let files = fs::read_dir(cache.join("shards")).into_iter().flatten().flatten();
    let data = files.filter(|file| !file.file_name().to_string_lossy().contains(".idx"));
    data.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum()
}

/// A file system of its own, unmounted when dropped.
struct Mount(Option<tempfile::TempDir>);

impl Mount {
    /// `None`, with the reason printed, where this process may not mount.
    fn new(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "forebay-test"]).arg(directory.path());
        match command.output() {
            Ok(done) if done.status.success() => Some(Self(Some(directory))),
            refused => {
                println!("skipped: cannot mount a tmpfs here: {refused:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a daemon that a failed test left may still hold files.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
        drop(self.0.take());
    }
}
