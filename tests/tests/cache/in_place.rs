//! Data sets that are never cached: indexed once, read where they are, checked as ever.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_error::ErrorKind;
use forebay_store::{Cache, Dataset, Evict};
use forebay_testkit::shard;
use forebay_tests::{Daemon, epoch, eventually, job_with, loader, play};
use forebay_wire::message::Open;
use tempfile::TempDir;

use crate::ACTOR;

/// Several parts.
const SIZES: std::ops::Range<usize> = 90_000..90_001;
const SAMPLES: u64 = 100;

struct Bench {
    disk: TempDir,
}

impl Bench {
    fn new() -> Self {
        let disk = Daemon::disk();
        fs::create_dir(disk.path().join("data")).unwrap();
        let bench = Self { disk };
        for n in 0..2 {
            fs::write(bench.file(n), shard(SAMPLES, n, &SIZES)).unwrap();
        }
        bench
    }

    fn file(&self, n: u64) -> PathBuf {
        self.disk.path().join(format!("data/{n}.tar"))
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    fn daemon(&self) -> Daemon {
        let mut config = Daemon::config(&self.cache(), 1 << 28);
        let matches = format!("{}/**", self.disk.path().join("data").display());
        let rule = Dataset::new("fast", &matches, Evict::Lru).unwrap();
        config.datasets = vec![Dataset { cache: Cache::Never, ..rule }];
        Daemon::try_start(config).unwrap()
    }

    fn job(&self, files: u64) -> Open {
        let urls = (0..files).map(|n| self.file(n).display().to_string()).collect();
        job_with(BTreeMap::new(), urls)
    }

    /// The files of indexes, by their numbers.
    fn indexes(&self) -> Vec<u64> {
        let listed = fs::read_dir(self.cache().join("indexes")).into_iter().flatten();
        listed.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect()
    }
}

/// Writes over a file and leaves it as long and as old as it was.
fn write_over(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap();
    assert_eq!(before.len(), bytes.len() as u64);
    let mut file = File::options().write(true).open(path).unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}

#[test]
fn members_are_read_in_place_and_not_cached() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let loader = loader(daemon.address(), bench.job(2)).unwrap();
    for number in 0..3 {
        play(&loader, number, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
    }
    assert_eq!(daemon.number("/cache/used_bytes"), 0);
    assert_eq!(daemon.files(), Vec::<PathBuf>::new());
    // Two epochs at least came from the files themselves.
    let payload = 2 * 2 * SAMPLES * SIZES.start as u64;
    assert!(daemon.number("/cache/through_bytes") >= payload);
    eventually("both indexes are kept", || bench.indexes().len() == 2);
}

/// The index outlives the daemon: one that was made anew would be another file.
#[test]
fn stored_index_saves_a_pass_over_the_shard() {
    let bench = Bench::new();
    let play = |daemon: &Daemon| {
        epoch(daemon.address(), bench.job(1)).unwrap().assert_whole(1, SAMPLES, &SIZES);
    };
    let daemon = bench.daemon();
    play(&daemon);
    eventually("the index is kept", || bench.indexes().len() == 1);
    daemon.stop();
    let kept = bench.indexes();
    let daemon = bench.daemon();
    play(&daemon);
    daemon.settle();
    assert_eq!(daemon.number("/cache/copied_bytes"), 0, "samples came out of a pass");
    daemon.stop();
    assert_eq!(bench.indexes(), kept, "the index was made anew");
    // One that is damaged is.
    let index = bench.cache().join("indexes");
    let index = fs::read_dir(index).unwrap().next().unwrap().unwrap().path();
    fs::write(&index, b"no sidecar").unwrap();
    let daemon = bench.daemon();
    play(&daemon);
    eventually("the index is whole", || fs::metadata(&index).unwrap().len() > 4096);
}

#[test]
fn overwritten_file_is_reported_and_never_served_as_before() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let loader = loader(daemon.address(), bench.job(1)).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
    // One bit in the middle of each image.
    let mut bytes = fs::read(bench.file(0)).unwrap();
    for at in (50_000..bytes.len()).step_by(91_000) {
        bytes[at] ^= 1;
    }
    write_over(&bench.file(0), &bytes);
    match play(&loader, 1, 0) {
        Ok(played) => {
            assert!(
                played.errors.iter().any(|error| error.kind() == ErrorKind::Corrupt),
                "unnoticed"
            );
        }
        // One batch finds it out, and another meets the index of what is there now.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(error.place("reason"), Some("changed"), "{error}");
        }
    }
}

#[test]
fn replaced_file_is_indexed_again() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    epoch(daemon.address(), bench.job(1)).unwrap().assert_whole(1, SAMPLES, &SIZES);
    fs::write(bench.file(1), shard(SAMPLES + 8, 0, &SIZES)).unwrap();
    fs::rename(bench.file(1), bench.file(0)).unwrap();
    // At once, though the other was looked at just now.
    let played = epoch(daemon.address(), bench.job(1)).unwrap();
    played.assert_whole(1, SAMPLES + 8, &SIZES);
}

#[test]
fn never_cached_data_set_is_reported() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let forebay = |arguments: &[&str]| {
        let address = format!("unix:{}", daemon.socket().display());
        let told = Command::new(ACTOR).args(arguments).env("FOREBAY_DAEMON", address).output();
        let told = told.unwrap();
        (told.status.code(), String::from_utf8(told.stdout).unwrap())
    };
    let (_, status) = forebay(&["status"]);
    let line = status.lines().find(|line| line.contains(" fast ")).unwrap();
    assert!(line.contains("never"), "{line}");
    assert_eq!(daemon.status()["cache"]["datasets"][0]["cache"], "never");
    // There is nothing that a warm-up could wait for.
    let file = bench.file(0).display().to_string();
    let (code, told) = forebay(&["dataset", "warm", &file, "--wait"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("Invalid") && told.contains("cache=never"), "{told}");
    assert_eq!(daemon.number("/cache/misses"), 0);
}
