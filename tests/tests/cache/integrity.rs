//! Bytes at rest that went wrong: never served, dropped, fetched again, counted.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_tests::{Daemon, Origin, cached_file, epoch, eventually, flip, job, loader, play};

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;
const SHARDS: u64 = 2;

struct Bench {
    origin: Origin,
    disk: tempfile::TempDir,
}

impl Bench {
    /// A cache that a daemon filled and left.
    fn filled() -> Self {
        let bench =
            Self { origin: Origin::with_shards(SHARDS, SAMPLES, &SIZES), disk: Daemon::disk() };
        let daemon = bench.start();
        bench.assert_epoch(&daemon);
        // The last samples come before their shard is committed.
        eventually("all is whole", || daemon.node().store().counters().fills == SHARDS);
        daemon.stop();
        bench
    }

    fn start(&self) -> Daemon {
        let daemon = Daemon::start(self.disk.path());
        // What the start finds is part of what these tests compare.
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(daemon.node().store().scanned())
            .unwrap();
        daemon
    }

    fn assert_epoch(&self, daemon: &Daemon) {
        let open = job(&self.origin, Origin::urls(SHARDS));
        epoch(daemon.address(), open).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }

    fn file(&self, ending: &str) -> PathBuf {
        cached_file(&self.disk.path().join("shards"), ending).unwrap()
    }

    /// Starts a daemon on the harmed cache: the epoch is right, `corruptions` copies counted as
    /// corrupt, `fills` shards fetched again, and what rests is the origin's bytes once more.
    fn assert_healed(&self, what: &str, corruptions: u64, fills: u64) {
        let daemon = self.start();
        self.assert_epoch(&daemon);
        // The last samples come before their shard is committed.
        eventually(what, || daemon.node().store().counters().fills == fills);
        assert_eq!(daemon.node().store().counters().corruptions, corruptions, "{what}");
        self.assert_resting(&daemon);
        daemon.stop();
        let again = self.start();
        self.assert_epoch(&again);
        assert_eq!(again.node().store().counters().fills, 0, "{what}: healed for good");
    }

    fn assert_resting(&self, daemon: &Daemon) {
        assert_eq!(daemon.files().len() as u64, 2 * SHARDS, "nothing else lies there");
        for n in 0..SHARDS {
            let name = format!("{n}.tar");
            assert!(fs::read(daemon.data_file(&name)).unwrap() == self.origin.bytes(&name));
        }
    }
}

/// Bears promise 1 (origin bytes or nothing): one wrong bit in a member drops the copy.
#[test]
fn flipped_bit_in_a_cached_shard_is_never_served() {
    let bench = Bench::filled();
    let data = bench.file("-0.tar");
    flip(&data, fs::metadata(&data).unwrap().len() / 2);
    bench.assert_healed("one bit", 1, 1);
}

/// Bears promise 1: a copy with many wrong bits is one corrupt copy, however many batches meet it
/// at once.
#[test]
fn wholly_corrupt_copy_is_dropped_and_counted_once() {
    let bench = Bench::filled();
    let data = bench.file("-1.tar");
    let mut bytes = fs::read(&data).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    fs::write(&data, bytes).unwrap();
    bench.assert_healed("every bit", 1, 1);
}

/// Bears promise 1 under a running daemon that has the shard open.
#[test]
fn shard_corrupted_while_in_use_is_fetched_again() {
    let bench = Bench::filled();
    let daemon = bench.start();
    let loader = loader(daemon.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let data = daemon.data_file("0.tar");
    let len = fs::metadata(&data).unwrap().len();
    let harms: [&dyn Fn(); 2] = [&|| flip(&data, len / 3), &|| {
        fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(len / 2).unwrap();
    }];
    for (harmed, harm) in (1..).zip(harms) {
        harm();
        play(&loader, harmed, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        eventually("it is whole again", || daemon.node().store().counters().fills == harmed);
        assert_eq!(daemon.node().store().counters().corruptions, harmed);
        bench.assert_resting(&daemon);
    }
}

/// Bears promise 4 (whole and verified, or gone) for what a start finds on the disk.
#[test]
fn start_keeps_whole_shards_and_discards_the_rest() {
    let bench = Bench::filled();
    let (data, sidecar) = (bench.file("-0.tar"), bench.file("-0.tar.idx"));
    let (other_data, other_sidecar) = (bench.file("-1.tar"), bench.file("-1.tar.idx"));
    let len = fs::metadata(&data).unwrap().len();
    let cut = |path: &Path, to: u64| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
    };

    cut(&data, len - 1);
    bench.assert_healed("data cut by a byte", 0, 1);
    cut(&data, len + 1);
    bench.assert_healed("data longer by a byte", 0, 1);
    fs::remove_file(&data).unwrap();
    bench.assert_healed("data missing", 0, 1);
    fs::remove_file(&sidecar).unwrap();
    bench.assert_healed("sidecar missing", 0, 1);
    flip(&sidecar, 20);
    bench.assert_healed("sidecar's head wrong", 0, 1);
    cut(&sidecar, 7);
    bench.assert_healed("sidecar cut in its head", 0, 1);
    let body = fs::metadata(&sidecar).unwrap().len();
    flip(&sidecar, body - 100);
    bench.assert_healed("sidecar's body wrong", 1, 1);
    cut(&sidecar, body - 1);
    bench.assert_healed("sidecar cut in its body", 1, 1);
    fs::copy(&other_sidecar, &sidecar).unwrap();
    bench.assert_healed("sidecar of another shard", 0, 1);
    fs::copy(&other_data, &data).unwrap();
    cut(&data, len);
    bench.assert_healed("data of another shard", 1, 1);
    fs::write(data.with_extension("tar.idx.new"), b"half a sidecar").unwrap();
    let unfinished = format!("{:032x}-of-a-fill", 1);
    fs::write(data.with_file_name(unfinished), b"half a shard").unwrap();
    bench.assert_healed("leftovers", 0, 0);
}

/// Bears promise 1 when the origin changes: a new version is a new shard, and the old copy is not
/// served for it.
#[test]
fn replaced_object_is_a_new_shard() {
    let bench = Bench::filled();
    bench.origin.put("0.tar", &forebay_testkit::shard(SAMPLES, 9, &SIZES));
    let daemon = bench.start();
    let open = job(&bench.origin, vec![Origin::url("0.tar")]);
    let got = epoch(daemon.address(), open).unwrap();
    assert_eq!(got.samples.len() as u64, SAMPLES);
    for (i, sample) in (0..).zip(&got.samples) {
        assert_eq!(sample.fields["jpg"], forebay_testkit::image(9, i, &SIZES));
    }
    eventually("it is whole", || daemon.node().store().counters().fills == 1);
    let counters = daemon.node().store().counters();
    assert_eq!(counters.corruptions, 0);
    assert_eq!(counters.shards, 3, "the old version stays until its room is needed");
}

/// Bears promise 4: a start that was killed while it made the directory leaves nothing in the way.
#[test]
fn half_made_directory_is_completed() {
    let disk = Daemon::disk();
    fs::write(disk.path().join("FORMAT.new"), "for").unwrap();
    let daemon = Daemon::start(disk.path());
    assert_eq!(daemon.number("/cache/shards"), 0);
}

/// A shard may be called as it likes: one whose name ends like a sidecar's is found again.
#[test]
fn shard_named_like_a_sidecar_survives_a_restart() {
    let origin = Origin::with_shards(1, 10, &SIZES);
    let bytes = origin.bytes("0.tar");
    let disk = Daemon::disk();
    for name in ["odd.idx", "odd.idx.new"] {
        origin.put(name, &bytes);
        for _ in 0..2 {
            let daemon = Daemon::start(disk.path());
            let got = epoch(daemon.address(), job(&origin, vec![Origin::url(name)])).unwrap();
            got.assert_whole(1, 10, &SIZES);
            // The last sample comes before the commit.
            daemon.settle();
        }
        assert_eq!(origin.served(name), bytes.len() as u64, "{name}");
    }
}
