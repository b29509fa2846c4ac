//! Changes of a data set: each run reads one version of it, or ends with an error that names the
//! shard.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use forebay_client::{Deadline, Loader, LoaderConfig, Next};
use forebay_error::ErrorKind;
use forebay_testkit::{image, shard};
use forebay_tests::{
    Daemon, Epoch, PATIENCE, admin, config, epoch, eventually, job_with, loader, next, play, rest,
};
use forebay_wire::message::{Begin, Open};
use serde_json::Value;
use tempfile::TempDir;

const SIZES: std::ops::Range<usize> = 5_000..5_001;
const SAMPLES: u64 = 16;

/// More shards than a job opens ahead of its first batch.
const SHARDS: u64 = 40;

struct Bench {
    disk: TempDir,
    daemon: Daemon,
}

impl Bench {
    /// Begins with the first generation of the data set.
    fn new() -> Self {
        let disk = Daemon::disk();
        fs::create_dir(disk.path().join("data")).unwrap();
        let daemon = Daemon::start(&disk.path().join("cache"));
        let bench = Self { disk, daemon };
        (0..SHARDS).for_each(|n| bench.write(n, 0));
        bench
    }

    fn file(&self, n: u64) -> PathBuf {
        self.disk.path().join(format!("data/{n:02}.tar"))
    }

    /// Replaces a shard by the one of this generation, of the same length.
    fn write(&self, n: u64, generation: u64) {
        let new = self.disk.path().join("new");
        fs::write(&new, shard(SAMPLES, seed(n, generation), &SIZES)).unwrap();
        fs::rename(new, self.file(n)).unwrap();
    }

    fn job(&self) -> Open {
        let urls = (0..SHARDS).map(|n| self.file(n).display().to_string()).collect();
        let job = job_with(BTreeMap::new(), urls);
        Open { prefetch: 1, ..job }
    }

    /// A run of the job that has looked at all its shards and received its first batch.
    fn begun(&self, serves_changes: bool) -> (Loader, Epoch) {
        let mut config = config(self.daemon.address(), self.job());
        config.session.serves_changes = serves_changes;
        let loader = Loader::open(config).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        let mut begun = Epoch::default();
        match next(&loader).unwrap() {
            Next::Batch(batch) => begun.take(&batch),
            Next::End(_) => panic!("an empty epoch"),
        }
        let last = self.file(SHARDS - 1).display().to_string().replace('/', "%2F");
        eventually("the last shard is looked at", || {
            let path = format!("/api/v1/shards?url={last}");
            let admin = admin(self.daemon.socket()).unwrap();
            let told: Value = admin.get(&path, &Deadline::after(PATIENCE)).unwrap();
            told["origin"]["bytes"] != Value::Null
        });
        (loader, begun)
    }
}

fn seed(n: u64, generation: u64) -> u64 {
    1000 * generation + n
}

/// Asserts that all samples are there, and of the generation.
fn assert_generation(epoch: &Epoch, generation: u64) {
    assert_eq!((epoch.errors.len(), epoch.samples.len() as u64), (0, SHARDS * SAMPLES));
    for sample in &epoch.samples {
        let i = sample.key.parse().unwrap();
        let right = image(seed(u64::from(sample.shard), generation), i, &SIZES);
        assert!(sample.fields["jpg"] == right, "{}/{} is another's", sample.shard, sample.key);
    }
}

#[test]
fn new_job_reads_files_replaced_before_it() {
    let bench = Bench::new();
    let played = epoch(bench.daemon.address(), bench.job()).unwrap();
    assert_generation(&played, 0);
    for generation in 1..3 {
        (0..SHARDS).for_each(|n| bench.write(n, generation));
        let played = epoch(bench.daemon.address(), bench.job()).unwrap();
        assert_generation(&played, generation);
    }
}

#[test]
fn next_epoch_reads_files_replaced_before_it() {
    let bench = Bench::new();
    let loader = loader(bench.daemon.address(), bench.job()).unwrap();
    for generation in 0..3 {
        (0..SHARDS).for_each(|n| bench.write(n, generation));
        assert_generation(&play(&loader, generation, 0).unwrap(), generation);
    }
}

/// Also if that epoch was begun, and its first batches read, before the files were replaced.
#[test]
fn epoch_begun_ahead_reads_files_replaced_before_it() {
    let bench = Bench::new();
    let config = config(bench.daemon.address(), bench.job());
    let loader = Loader::open(LoaderConfig { looks_ahead: true, ..config }).unwrap();
    for generation in 0..6 {
        // Some are replaced while the epoch is being begun.
        if generation > 1 && generation % 2 == 0 {
            eventually("the epoch was begun", || loader.ready() > 0);
        }
        (0..SHARDS).for_each(|n| bench.write(n, generation));
        assert_generation(&play(&loader, generation, 0).unwrap(), generation);
    }
    // Files that stay are served from what was read ahead: each of these epochs is one run.
    let runs = (6..10).map(|epoch| {
        eventually("the epoch was begun", || loader.ready() > 0);
        loader.start(Begin::at(epoch, 0)).unwrap();
        let mut played = Epoch::default();
        let run = loop {
            match next(&loader).unwrap() {
                Next::Batch(batch) => played.take(&batch),
                Next::End(end) => break end.run,
            }
        };
        assert_generation(&played, 5);
        run
    });
    let runs: Vec<_> = runs.collect();
    assert!(runs.is_sorted_by(|one, next| one + 1 == *next), "{runs:?}");
}

#[test]
fn change_during_a_run_ends_it_and_names_the_shard() {
    let bench = Bench::new();
    let (loader, _) = bench.begun(false);
    let last = SHARDS - 1;
    bench.write(last, 1);
    let error = rest(&loader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.place("reason"), Some("changed"), "{error}");
    assert_eq!(error.place("url"), bench.file(last).to_str(), "{error}");
    // The next run takes the data set as it is.
    (0..last).for_each(|n| bench.write(n, 1));
    assert_generation(&play(&loader, 1, 0).unwrap(), 1);
}

#[test]
fn change_is_served_to_a_job_that_asks_for_it() {
    let bench = Bench::new();
    let (loader, mut played) = bench.begun(true);
    let last = SHARDS - 1;
    bench.write(last, 1);
    let after = rest(&loader).unwrap();
    played.samples.extend(after.samples);
    assert_eq!(played.samples.len() as u64, SHARDS * SAMPLES);
    for sample in &played.samples {
        let generation = u64::from(u64::from(sample.shard) == last);
        let i = sample.key.parse().unwrap();
        let right = image(seed(u64::from(sample.shard), generation), i, &SIZES);
        assert!(sample.fields["jpg"] == right, "{}/{} is another's", sample.shard, sample.key);
    }
}

/// A file that is gone is an error; a file system that is gone leaves its cached shards.
#[test]
fn missing_files_fail_and_missing_file_systems_do_not() {
    let bench = Bench::new();
    let job = bench.job();
    let played = epoch(bench.daemon.address(), job.clone()).unwrap();
    assert_generation(&played, 0);
    let (data, away) = (bench.disk.path().join("data"), bench.disk.path().join("away"));
    fs::rename(&data, &away).unwrap();
    let played = epoch(bench.daemon.address(), job.clone()).unwrap();
    assert_generation(&played, 0);
    fs::rename(&away, &data).unwrap();
    fs::remove_file(bench.file(3)).unwrap();
    let error = epoch(bench.daemon.address(), job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(error.place("url"), bench.file(3).to_str(), "{error}");
}
