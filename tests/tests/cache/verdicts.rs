//! Shards that turn out wrong at their end: whoever had samples of them before that is told, once.
//!
//! The store holds a shard's end back until the trainers have the samples that they want, so that
//! no verdict comes before.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crc_fast::CrcAlgorithm;
use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_client::{Loader, Next};
use forebay_error::{Error, ErrorKind};
use forebay_source::Options;
use forebay_store::{Mode, PART_BYTES, ShardHandle, Urgency};
use forebay_testkit::{Fault, FaultProxy, When, shard};
use forebay_tests::{Daemon, Epoch, Origin, epoch, eventually, job_with, loader, next, play, rest};
use forebay_wire::message::{Begin, Open};
use tempfile::TempDir;

const SIZES: std::ops::Range<usize> = 90_000..110_000;

/// Samples of a shard, in batches of eight.
const SAMPLES: u64 = 120;
const BATCHES: u64 = SAMPLES / 8;

/// Samples of a job that needs a part of a shard: within its first part.
const FEW: u64 = 16;

/// Zeros behind each tar: more than is asked for at once, so that what is held back holds no
/// sample.
const PADDING: usize = 5 * PART_BYTES;

/// Time a job waits at its run's end: longer than any test needs.
const PATIENCE_MS: u64 = 40_000;

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(600);

/// The store's checksum of its objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Says {
    Right,
    Wrong,
    Nothing,
}

/// A node on one disk, and an origin behind a proxy.
struct Bench {
    origin: Origin,
    proxy: FaultProxy,
    daemon: Daemon,
    _disk: TempDir,
}

impl Bench {
    /// With these objects.
    fn new(objects: &[(&str, &[u8])]) -> Self {
        let (origin, disk) = (Origin::new(), Daemon::disk());
        for (name, bytes) in objects {
            origin.put(name, bytes);
        }
        let proxy = FaultProxy::start(origin.server.address()).unwrap();
        let mut config = Daemon::config(disk.path(), 1 << 30);
        config.limits.read_timeout = NEVER;
        Self { origin, proxy, daemon: Daemon::try_start(config).unwrap(), _disk: disk }
    }

    /// With two shards.
    fn with_tars() -> Self {
        let tars = [0, 1].map(|seed| {
            let mut tar = shard(SAMPLES, seed, &SIZES);
            tar.resize(tar.len() + PADDING, 0);
            tar
        });
        Self::new(&[("0.tar", &tars[0]), ("1.tar", &tars[1])])
    }

    /// A job on shards that takes all of a manifest's samples, or a few.
    fn job(&self, names: &[&str], few: bool) -> Open {
        let through = Options::from(self.origin.environment());
        let through = through.with("AWS_ENDPOINT_URL", &self.proxy.endpoint()).into_map();
        let urls: Vec<_> = names.iter().map(|name| Origin::url(name)).collect();
        let mut open = job_with(through, urls);
        open.patience_ms = PATIENCE_MS;
        match few {
            true => open.order.epoch_samples = Some(FEW),
            false => open.counts = Some(vec![SAMPLES; names.len()]),
        }
        open
    }

    fn begin(&self, open: Open) -> Loader {
        let loader = loader(self.daemon.address(), open).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        loader
    }

    /// Sets the store's checksum of an object from now on.
    fn with_checksum(&self, name: &str, says: Says) -> Option<(When, Fault)> {
        let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &self.origin.bytes(name));
        let sum = match says {
            Says::Right => sum,
            Says::Wrong => !sum,
            Says::Nothing => return None,
        };
        Some((When::head().of(name), Fault::crc64_nvme(sum)))
    }

    /// From now on the end of an object does not come.
    fn hold(&self, name: &str, says: Says) {
        let last = self.origin.bytes(name).len() as u64 - 1;
        let end = (When::get().of(name).covering(last), Fault::StallBeforeHead);
        self.proxy.set(self.with_checksum(name, says).into_iter().chain([end]));
    }

    /// Waits until an end is held back, and the store has said what it says of that fill.
    fn is_held(&self) {
        self.proxy.wait_until(|traffic| traffic.stalled > 0);
        // Once in each fill.
        let before = self.differed() + self.daemon.number("/sources/0/checksums/agreed");
        self.proxy.wait_until(|traffic| traffic.answered("HEAD", 200) > before);
    }

    /// It comes.
    fn release(&self, name: &str, says: Says) {
        match says {
            Says::Nothing => self.proxy.wait_until(|traffic| traffic.stalled > 0),
            Says::Right | Says::Wrong => self.is_held(),
        }
        self.proxy.set(self.with_checksum(name, says));
    }

    /// The shard that a job of the daemon's reads just now.
    fn arriving(&self, url: &str, origin: BTreeMap<String, String>) -> ShardHandle {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = Options::from(origin);
        let asked = self.daemon.node().store().shard(url, &options, Urgency::Needed);
        let shard = runtime.block_on(asked).unwrap();
        assert!(!shard.progress().counted);
        shard
    }

    /// Waits until a copy that turned out wrong has left.
    fn is_gone(&self, name: &str) {
        let is_there = || {
            let files = self.daemon.files();
            files.iter().any(|file| file.to_string_lossy().ends_with(&format!("-{name}")))
        };
        eventually("the wrong copy is gone", || self.differed() == 1 && !is_there());
    }

    fn differed(&self) -> u64 {
        self.daemon.number("/sources/0/checksums/differed")
    }

    fn wrong_shards(&self, job: usize) -> u64 {
        self.daemon.number(&format!("/jobs/{job}/wrong_shards"))
    }
}

/// Takes batches that are right, and with which nothing is told.
fn take(loader: &Loader, batches: u64) {
    let mut taken = Epoch::default();
    for _ in 0..batches {
        match next(loader).unwrap() {
            Next::Batch(batch) => taken.take(&batch),
            Next::End(_) => panic!("the run ended early"),
        }
    }
    assert_eq!((taken.samples.len() as u64, &taken.errors), (batches * 8, &vec![]));
    taken.assert_bytes(&SIZES);
}

/// Returns the errors reported at the end, which comes next.
fn end(loader: &Loader) -> Vec<Error> {
    match next(loader).unwrap() {
        Next::End(end) => end.errors,
        Next::Batch(batch) => panic!("there is a batch {}", batch.index),
    }
}

/// Asserts that one shard was told, and what of it.
fn assert_told(errors: &[Error], name: &str) {
    let [error] = errors else { panic!("not told once: {errors:?}") };
    assert_eq!((error.kind(), error.place("url")), (ErrorKind::Corrupt, Some(&*Origin::url(name))));
    assert_eq!(error.place("samples"), Some("served"), "{error}");
}

/// Bears promise 1: two jobs have every sample before the store's checksum is compared.
#[test]
fn mismatch_is_reported_at_the_end_of_a_complete_job() {
    for says in [Says::Wrong, Says::Right] {
        let bench = Bench::with_tars();
        bench.hold("0.tar", says);
        let jobs = [(); 2].map(|()| bench.begin(bench.job(&["0.tar"], false)));
        for job in &jobs {
            take(job, BATCHES);
        }
        assert_eq!(bench.differed(), 0);
        bench.release("0.tar", says);
        for (number, job) in jobs.iter().enumerate() {
            match says {
                Says::Wrong => {
                    let told = end(job);
                    assert_told(&told, "0.tar");
                    assert_eq!(told[0].place("checksum"), Some("CRC64NVME"));
                    assert_eq!(bench.wrong_shards(number), 1);
                }
                _ => {
                    assert_eq!(end(job), []);
                    assert_eq!(bench.wrong_shards(number), 0);
                }
            }
        }
    }
}

/// A job with fewer samples than the shard has. The copy of its next epochs is another one, and
/// correct.
#[test]
fn mismatch_is_reported_once_to_a_job_with_some_samples() {
    let bench = Bench::with_tars();
    bench.hold("0.tar", Says::Wrong);
    let job = bench.begin(bench.job(&["0.tar"], true));
    take(&job, FEW / 8);
    bench.release("0.tar", Says::Right);
    assert_told(&end(&job), "0.tar");
    for number in 1..3 {
        let again = play(&job, number, 0).unwrap();
        assert_eq!((again.samples.len() as u64, &again.errors), (FEW, &vec![]));
    }
    bench.daemon.settle();
    assert_eq!((bench.differed(), bench.daemon.number("/sources/0/checksums/agreed")), (1, 1));
    assert_eq!(bench.wrong_shards(0), 1);
}

/// A shard is reported once however often a run fetches it, and again in the next run.
#[test]
fn mismatching_shard_is_reported_once_a_run() {
    let bench = Bench::with_tars();
    bench.hold("0.tar", Says::Wrong);
    let job = bench.begin(Open { prefetch: 1, ..bench.job(&["0.tar"], false) });
    take(&job, 1);
    bench.is_held();
    // The end that is held back comes, and that of the next fetch does not.
    bench.hold("0.tar", Says::Wrong);
    eventually("it turned out wrong", || bench.differed() == 1);
    let mut rest = Epoch::default();
    for _ in 1..BATCHES {
        match next(&job).unwrap() {
            Next::Batch(batch) => rest.take(&batch),
            Next::End(_) => panic!("the run ended early"),
        }
    }
    assert_told(&rest.errors, "0.tar");
    rest.assert_bytes(&SIZES);
    bench.release("0.tar", Says::Wrong);
    assert_eq!(end(&job), []);
    assert_eq!(bench.differed(), 2);
    bench.hold("0.tar", Says::Wrong);
    job.start(Begin::at(1, 0)).unwrap();
    take(&job, BATCHES);
    bench.release("0.tar", Says::Wrong);
    assert_told(&end(&job), "0.tar");
    assert_eq!(bench.wrong_shards(0), 2);
}

/// A mismatch found while the job runs is reported with a batch, not at the end.
#[test]
fn next_batch_reports_a_late_mismatch() {
    let bench = Bench::with_tars();
    bench.hold("0.tar", Says::Wrong);
    let job = bench.begin(Open { prefetch: 1, ..bench.job(&["0.tar", "1.tar"], false) });
    take(&job, BATCHES);
    // Of the other shard no more is ahead than the job's slots hold.
    bench.release("0.tar", Says::Wrong);
    bench.is_gone("0.tar");
    let mut told = Vec::new();
    for _ in 0..BATCHES {
        match next(&job).unwrap() {
            Next::Batch(batch) => told.extend(batch.errors.iter().cloned()),
            Next::End(_) => panic!("the run ended early"),
        }
    }
    assert_told(&told, "0.tar");
    assert_eq!(end(&job), []);
}

/// A job that waits no longer ends its run, and hears of it in the next.
#[test]
fn mismatch_after_a_run_is_reported_in_the_next() {
    let bench = Bench::with_tars();
    bench.hold("0.tar", Says::Wrong);
    let job = bench.begin(Open { patience_ms: 0, ..bench.job(&["0.tar"], true) });
    take(&job, FEW / 8);
    assert_eq!(end(&job), []);
    bench.release("0.tar", Says::Right);
    let (mut number, mut told) = (0, Vec::new());
    eventually("a later run is told", || {
        number += 1;
        told = play(&job, number, 0).unwrap().errors;
        !told.is_empty()
    });
    assert_told(&told, "0.tar");
    assert_eq!(play(&job, number + 1, 0).unwrap().errors, []);
}

/// A stream's own checksum comes at its end, too.
#[test]
fn failed_checksum_of_a_stream_is_reported() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&shard(SAMPLES, 0, &SIZES)).unwrap();
    let mut packed = encoder.finish().unwrap();
    // Its checksum stands before its length.
    let at = packed.len() - 5;
    packed[at] ^= 0x10;
    let bench = Bench::new(&[("0.tar.gz", &packed)]);
    bench.hold("0.tar.gz", Says::Nothing);
    let job = bench.begin(bench.job(&["0.tar.gz"], true));
    take(&job, FEW / 8);
    bench.release("0.tar.gz", Says::Nothing);
    let told = end(&job);
    assert_told(&told, "0.tar.gz");
    assert_eq!(told[0].place("reason"), Some("damaged"), "{told:?}");
}

/// A header that changes on the way breaks a tar: the store's checksum tells that from one that is
/// broken where it lies, and so whether what is here may stay.
#[test]
fn tar_broken_in_transit_is_fetched_again() {
    let bench = Bench::with_tars();
    let tar = bench.origin.bytes("0.tar");
    // In its first part, behind the samples that are good.
    let mut archive = tar::Archive::new(&tar[..]);
    let twentieth = archive.entries().unwrap().nth(40).unwrap().unwrap();
    let at = twentieth.raw_header_position();
    let garbled = (When::get().covering(at).times(1), Fault::Garble(at));
    let end_of_it = (When::get().covering(tar.len() as u64 - 1), Fault::StallBeforeHead);
    bench.proxy.set([bench.with_checksum("0.tar", Says::Right).unwrap(), garbled, end_of_it]);
    let job = bench.begin(Open { counts: None, ..bench.job(&["0.tar"], false) });
    take(&job, FEW / 8);
    bench.release("0.tar", Says::Right);
    assert_told(&rest(&job).unwrap().errors, "0.tar");
    play(&job, 1, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
}

/// A shard that no tier holds is compared as well.
#[test]
fn mismatch_of_a_read_through_shard_is_reported() {
    let bench = Bench::with_tars();
    bench.daemon.change("nvme", Mode::Disabled).unwrap();
    bench.hold("0.tar", Says::Wrong);
    let job = bench.begin(bench.job(&["0.tar"], true));
    take(&job, FEW / 8);
    bench.release("0.tar", Says::Right);
    assert_told(&end(&job), "0.tar");
    let again = play(&job, 1, 0).unwrap();
    assert_eq!((again.samples.len() as u64, &again.errors), (FEW, &vec![]));
}

/// A run does not wait for a shard without an origin checksum: neither for an answer nor for the
/// shard's end.
#[test]
fn run_does_not_wait_without_an_origin_checksum() {
    let bench = Bench::with_tars();
    bench.hold("0.tar", Says::Nothing);
    let url = format!("{}/{}", bench.proxy.endpoint(), Origin::key("0.tar"));
    let few = bench.job(&["0.tar"], true);
    let job = bench.begin(Open { urls: vec![url.clone()], origin: BTreeMap::new(), ..few });
    take(&job, FEW / 8);
    let shard = bench.arriving(&url, BTreeMap::new());
    eventually("it is known", || shard.verdict().known() == Some(Ok(())));
    drop(shard);
    // Its end is still held back.
    assert_eq!(end(&job), []);
    assert_eq!(bench.daemon.node().store().counters().fills, 0);
}

/// A fill that its store ends early has no result: no run waits for it.
#[test]
fn run_does_not_wait_for_a_failed_fill() {
    let bench = Bench::with_tars();
    let end_of_it = When::get().covering(bench.origin.bytes("0.tar").len() as u64 - 1);
    bench.proxy.set([
        bench.with_checksum("0.tar", Says::Wrong).unwrap(),
        (end_of_it.clone(), Fault::StallBeforeHead),
        (end_of_it, Fault::status(403)),
    ]);
    let open = bench.job(&["0.tar"], true);
    let job = bench.begin(open.clone());
    take(&job, FEW / 8);
    let shard = bench.arriving(&open.urls[0], open.origin);
    assert_eq!(shard.verdict().known(), None);
    bench.proxy.wait_until(|traffic| traffic.stalled > 0);
    bench.proxy.clear();
    assert_eq!(end(&job), []);
    eventually("it is settled", || shard.verdict().known() == Some(Ok(())));
}

/// A batch's knowledge of a bad copy does not drop the good one that came after it.
#[test]
fn good_copy_is_not_dropped_for_a_bad_predecessor() {
    // One in each part, so that a wrong byte in each part is one in each sample.
    const LARGE: std::ops::Range<usize> = PART_BYTES + 5_000..PART_BYTES + 5_001;
    const MANY: u64 = 12;
    let mut tar = shard(MANY, 0, &LARGE);
    tar.resize(tar.len() + PADDING, 0);
    let bench = Bench::new(&[("0.tar", &tar)]);
    let last = tar.len() as u64 - 1;
    bench.proxy.set([
        bench.with_checksum("0.tar", Says::Right).unwrap(),
        (When::get().covering(last), Fault::StallBeforeHead),
        (When::get(), Fault::Garble(PART_BYTES as u64 / 2)),
    ]);
    let mut open = Open { prefetch: 1, ..bench.job(&["0.tar"], false) };
    (open.order.batch_size, open.counts) = (1, Some(vec![MANY]));
    let job = bench.begin(open.clone());
    assert!(matches!(next(&job).unwrap(), Next::Batch(_)));
    // All are known by then, and the slots are taken: one batch knows its sample, and waits for a
    // slot.
    let shard = bench.arriving(&open.urls[0], open.origin);
    eventually("the job is ahead", || {
        shard.progress().samples == MANY && bench.daemon.number("/jobs/0/lent_slots") == 1
    });
    drop(shard);
    bench.release("0.tar", Says::Right);
    bench.is_gone("0.tar");
    // Another job has it fetched anew.
    assert_eq!(epoch(bench.daemon.address(), bench.job(&["0.tar"], true)).unwrap().errors, []);
    bench.daemon.settle();
    let rest = rest(&job).unwrap();
    let differ =
        |error: &&Error| error.kind() == ErrorKind::Corrupt && error.place("samples").is_none();
    assert!(rest.errors.iter().any(|error| differ(&error)), "none was known: {:?}", rest.errors);
    assert_told(
        &rest.errors.into_iter().filter(|error| !differ(&error)).collect::<Vec<_>>(),
        "0.tar",
    );
    assert_eq!(bench.daemon.number("/cache/corruptions"), 0);
    assert_eq!(bench.daemon.number("/cache/misses"), 2);
}
