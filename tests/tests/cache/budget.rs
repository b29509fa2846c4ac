//! The cache's limits: capacity, a full disk, a directory that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::Loader;
use forebay_config::settings::{NodeConfig, NodeTier};
use forebay_error::ErrorKind;
use forebay_store::{Class, Dataset, Evict, KeepFree, Watermarks};
use forebay_tests::{Daemon, Mount, Origin, config, epoch, eventually, job, loader, play};
use forebay_wire::message::{Extent, Open, Shuffle};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 60;

/// A user without rights.
const NOBODY: u32 = 65_534;

/// Bears promise 3 (budgets are hard): a data set three times the cache plays epoch after epoch,
/// and at no moment is more reserved, or more on the disk, than the capacity.
#[test]
fn data_set_larger_than_the_cache_stays_within_capacity() {
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

/// Bears promise 3: the window of a job is compared with its share of the cache before anything is
/// fetched for it.
#[test]
fn oversized_job_is_rejected_with_a_fitting_window() {
    let origin = Origin::with_shards(4, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let mut node = Daemon::config(&disk.path().join("cache"), 100 << 20);
    let limited = Dataset {
        max_bytes: Some(50 << 20),
        ..Dataset::new("limited", "s3://bucket/**", Evict::default()).unwrap()
    };
    node.datasets = vec![limited];
    let daemon = Daemon::try_start(node).unwrap();
    let mut open = job(&origin, Origin::urls(4));
    open.counts = Some(vec![SAMPLES; 4]);
    (open.order.shuffle, open.order.window, open.order.lanes) = (Shuffle::Window, 3, Some(1));
    (open.order.batch_size, open.order.world_size) = (4, 2);
    let with = |open: &Open, bytes: [u64; 4], ranks| {
        let mut config = config(daemon.address(), open.clone());
        config.session.extent = Some(Extent { bytes: bytes.to_vec(), ranks });
        Loader::open(config).map(drop)
    };
    let mib = |mib: u64| [mib << 20; 4];
    let error = with(&open, mib(20), (0, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.advice().unwrap().contains("window=2"), "{error}");
    assert_eq!(error.place("room"), Some("52428800"), "{error}");
    with(&open, mib(16), (0, 1)).unwrap();
    // Two lanes, one a rank: a node of both ranks has twice as much open.
    (open.order.lanes, open.order.window) = (Some(2), 2);
    with(&open, mib(30), (0, 1)).unwrap();
    assert_eq!(with(&open, mib(30), (0, 2)).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(with(&open, mib(30), (1, 2)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(daemon.node().store().counters().misses, 0, "nothing was fetched");
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
fn oversized_shard_is_rejected_with_the_capacity() {
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), 1 << 20)).unwrap();
    let error = epoch(daemon.address(), job(&origin, Origin::urls(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(error.place("capacity"), Some("1048576"));
    assert_eq!(error.place("url"), Some("s3://bucket/0.tar"));
    assert_eq!(daemon.files(), Vec::<PathBuf>::new());
}

/// Bears promise 3: a disk that others fill below the capacity costs the cache room, and jobs
/// nothing; nothing half done is left.
#[test]
fn disk_filled_by_others_fails_no_job() {
    const SIZE: u64 = 16 << 20;
    let Some(mount) = Mount::new("size=16m") else { return };
    fs::write(mount.path().join("others"), vec![1; 6 << 20]).unwrap();
    let origin = Origin::with_shards(9, SAMPLES, &SIZES);
    let all = (0..9).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum::<u64>();
    assert!(all > SIZE - (6 << 20), "the shards fit beside what others wrote");
    let config = Daemon::config(&mount.path().join("cache"), SIZE);
    let daemon = Daemon::try_start(config).unwrap();
    epoch(daemon.address(), job(&origin, Origin::urls(9)))
        .unwrap()
        .assert_whole(9, SAMPLES, &SIZES);
    let counters = || daemon.node().store().counters();
    eventually("all fills ended", || counters().misses == counters().ended());
    assert!(counters().limit_bytes <= SIZE - (6 << 20), "{:?}", counters());
    assert!(counters().evictions > 0, "{:?}", counters());
    eventually("what counts is there", || {
        resting(&mount.path().join("cache")) == counters().used_bytes
    });
    let tier = &daemon.status()["tiers"][0];
    assert_eq!(tier["class"], "memory", "what lies on tmpfs takes memory: {tier}");
    let slabs = daemon.number("/slab_limit_bytes");
    let disk = Daemon::disk();
    let plain = Daemon::start(disk.path()).number("/slab_limit_bytes");
    assert_eq!(slabs, plain - SIZE, "and counts as such");
}

/// So many jobs at once play four shards of `samples` samples, epoch after epoch, each whole.
fn play_at_once(daemon: &Daemon, origin: &Origin, jobs: usize, rounds: u64, samples: u64) {
    let mut open = job(origin, Origin::urls(4));
    open.order.shuffle = Shuffle::Window;
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let loader = loader(daemon.address(), open.clone()).unwrap();
                for number in 0..rounds {
                    play(&loader, number, 0).unwrap().assert_whole(4, samples, &SIZES);
                }
            });
        }
    });
}

/// Bears promise 3: jobs that race for what others leave of a disk read through what it cannot
/// take.
#[test]
fn jobs_racing_for_a_full_disk_all_end() {
    const SIZE: u64 = 8 << 20;
    const JOBS: usize = 3;
    const ROUNDS: u64 = 4;
    let Some(mount) = Mount::new("size=8m") else { return };
    let origin = Origin::with_shards(4, SAMPLES, &SIZES);
    let shard = origin.bytes("0.tar").len() as u64;
    // One shard fits beside what others wrote, and half of another.
    let others = usize::try_from(SIZE - shard * 3 / 2).unwrap();
    let config = Daemon::config(&mount.path().join("cache"), SIZE / 2);
    let daemon = Daemon::try_start(config).unwrap();
    fs::write(mount.path().join("others"), vec![1; others]).unwrap();
    play_at_once(&daemon, &origin, JOBS, ROUNDS, SAMPLES);
}

/// Jobs that take turns in a cache of one shard and a half: who lets go of a shard just as another
/// looks for room is no reason to refuse it.
#[test]
fn jobs_taking_turns_in_a_small_cache_all_end() {
    const JOBS: usize = 6;
    const ROUNDS: u64 = 20;
    const SAMPLES: u64 = 2;
    let origin = Origin::with_shards(4, SAMPLES, &SIZES);
    let shard = origin.bytes("0.tar").len() as u64;
    let disk = Daemon::disk();
    let config = Daemon::config(&disk.path().join("cache"), shard * 3 / 2);
    let daemon = Daemon::try_start(config).unwrap();
    play_at_once(&daemon, &origin, JOBS, ROUNDS, SAMPLES);
}

/// Bears promise 9 for tiers that cannot be: each is refused by name, and nothing is touched.
#[test]
fn invalid_tiers_are_rejected() {
    let disk = Daemon::disk();
    let at = |name: &str, folder: &str, capacity| {
        NodeTier::at(name, Class::Nvme, disk.path().join(folder), capacity)
    };
    let ram = |capacity| NodeTier { path: None, class: Class::Memory, ..at("ram", "", capacity) };
    let marks = Some(Watermarks { low: 0.9, high: 0.5 });
    let share = KeepFree::Share(1.5);
    let most = &*(1_u64 << 60).to_string();
    let memory = &*(1_u64 << 50).to_string();
    for (tiers, places) in [
        (vec![at("a", "a", 1 << 60)], [("tier", "a"), ("capacity", most)]),
        (vec![at("a", "a", 0)], [("tier", "a"), ("key", "capacity")]),
        (vec![at("a", "a", 1), at("a", "b", 1)], [("tier", "a"), ("key", "name")]),
        (vec![at("a", "a", 1), at("b", "a", 1)], [("tier", "b"), ("other", "a")]),
        (vec![at("a", "a", 1), at("b", "a/b", 1)], [("tier", "b"), ("other", "a")]),
        (vec![at("a", "a", 1), at("b", "b/../a", 1)], [("tier", "b"), ("other", "a")]),
        (vec![NodeTier { path: None, ..at("a", "a", 1) }], [("tier", "a"), ("key", "path")]),
        (
            vec![NodeTier { watermarks: marks, ..at("a", "a", 1) }],
            [("tier", "a"), ("key", "watermarks")],
        ),
        (
            vec![NodeTier { keep_free: share, ..at("a", "a", 1) }],
            [("tier", "a"), ("key", "keep_free")],
        ),
        (vec![ram(1 << 50)], [("tiers_in_memory", memory); 2]),
        (vec![], [("tiers", "0"); 2]),
    ] {
        fs::create_dir_all(disk.path().join("b")).unwrap();
        fs::create_dir_all(disk.path().join("a")).unwrap();
        let config = NodeConfig { tiers, ..Daemon::config(disk.path(), 1) };
        let error = Daemon::try_start(config).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        for (name, value) in places {
            assert_eq!(error.place(name), Some(value), "{error}");
        }
    }
}

/// Bears promise 9 (bad input is named) for cache directories.
#[test]
fn unusable_cache_directory_is_rejected_with_its_path() {
    let disk = Daemon::disk();
    let refused = |cache: &Path, kind: ErrorKind| {
        let error = Daemon::try_start(Daemon::config(cache, 1 << 30)).err().expect("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.place("directory"), cache.to_str(), "{error}");
        error.place("found").map(str::to_owned)
    };
    let file = disk.path().join("file");
    fs::write(&file, "x").unwrap();
    refused(&file.join("cache"), ErrorKind::Invalid);
    refused(&file, ErrorKind::Invalid);

    let foreign = disk.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "x").unwrap();
    assert_eq!(refused(&foreign, ErrorKind::Invalid).as_deref(), Some("thesis.tex"));
    assert!(foreign.join("thesis.tex").exists());

    let newer = disk.path().join("newer");
    fs::create_dir(&newer).unwrap();
    fs::write(newer.join("FORMAT"), "forebay 99\n").unwrap();
    assert_eq!(refused(&newer, ErrorKind::Invalid).as_deref(), Some("forebay 99"));

    if let Some(mount) = Mount::new("size=1m,ro") {
        refused(&mount.path().join("cache"), ErrorKind::PermissionDenied);
        refused(mount.path(), ErrorKind::PermissionDenied);
    }
    let closed = disk.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Modes do not bind root: the folder is another user's, and so is the thread that opens it,
        // with the threads that it starts.
        std::os::unix::fs::chown(&closed, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = Uid::from_raw(NOBODY);
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            refused(&closed.join("cache"), ErrorKind::PermissionDenied);
        });
        other.join().unwrap();
    });
}

/// Bears promise 3: two daemons would each think that they own the whole capacity.
#[test]
fn second_daemon_on_a_directory_is_rejected_with_first_pid() {
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
