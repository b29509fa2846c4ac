//! Shards that their origin keeps compressed: unpacked on the way in, plain tars on the tier.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crc_fast::CrcAlgorithm;
use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_client::Next;
use forebay_config::settings::{NodeConfig, NodeTier};
use forebay_error::ErrorKind;
use forebay_shard::{BLOCK_BYTES, Sidecar};
use forebay_source::Options;
use forebay_store::{Class, Dataset, Evict, Mode, Tenant};
use forebay_testkit::{Fault, FaultProxy, When};
use forebay_tests::{
    BareStore, BareStoreConfig, Daemon, Epoch, FRAMES, FaultyDevice, Origin, UserHome, cached_file,
    epoch, eventually, flip, followed, job, job_with, kill, loader, next, play,
};
use forebay_wire::message::{Begin, Reply, Request};
use hyper::header::{ETAG, LAST_MODIFIED};

use crate::ACTOR;

/// A member large enough that a shard of some dozens has several parts.
const MEMBER: usize = 700_000;

/// The bytes of a sample: of sixteen values only, so that they compress by half.
fn image(seed: u64, i: u64, len: usize) -> Vec<u8> {
    let mut bytes = forebay_testkit::field(seed, i, "jpg", len);
    bytes.iter_mut().for_each(|byte| *byte &= 0x0f);
    bytes
}

/// A tar of samples that compress by half.
fn plain(seed: u64, samples: u64, len: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for i in 0..samples {
        let mut header = tar::Header::new_gnu();
        header.set_size(len as u64);
        let name = format!("{i:06}.jpg");
        builder.append_data(&mut header, name, &image(seed, i, len)[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    // The fastest that looks at how often each byte comes.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(2));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A frame that zstd skips, as `pzstd` writes them.
fn skipped(bytes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
    [&[0x50, 0x2a, 0x4d, 0x18], &len[..], bytes].concat()
}

/// Each piece compressed by itself, one behind the other.
fn joined(bytes: &[u8], pieces: usize, compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    bytes.chunks(bytes.len().div_ceil(pieces)).flat_map(compress).collect()
}

/// Asserts that an epoch has all samples of a [`plain`] tar for each of these seeds, in order.
fn assert_whole(epoch: &Epoch, seeds: &[u64], samples: u64, len: usize) {
    assert_eq!(epoch.errors, []);
    let all = (0..seeds.len() as u32).flat_map(|n| (0..samples).map(move |i| (n, i)));
    let keys: Vec<_> = all.map(|(n, i)| (n, format!("{i:06}"))).collect();
    assert_eq!(epoch.sequence(), keys);
    assert_right(epoch, seeds, len);
}

/// Asserts that what came of these shards is right.
fn assert_right(epoch: &Epoch, seeds: &[u64], len: usize) {
    for sample in &epoch.samples {
        let bytes = image(seeds[sample.shard as usize], sample.key.parse().unwrap(), len);
        let right = BTreeMap::from([("jpg".to_owned(), bytes)]);
        assert!(sample.fields == right, "sample {}/{} differs", sample.shard, sample.key);
    }
}

fn sidecar(shards: &Path, name: &str) -> Sidecar {
    let path = cached_file(shards, &format!("-{name}.idx")).expect("the shard is whole");
    Sidecar::decode(&fs::read(path).unwrap()).unwrap()
}

fn urls<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(Origin::url).collect()
}

/// A node on one disk, and an origin.
struct Bench {
    origin: Origin,
    daemon: Daemon,
    disk: tempfile::TempDir,
}

impl Bench {
    fn new(capacity: u64) -> Self {
        let disk = Daemon::disk();
        let daemon = Daemon::try_start(Daemon::config(disk.path(), capacity)).unwrap();
        Self { origin: Origin::new(), daemon, disk }
    }

    fn shards(&self) -> std::path::PathBuf {
        self.disk.path().join("shards")
    }

    fn play(&self, names: &[&str]) -> Epoch {
        let open = job(&self.origin, urls(names.iter().copied()));
        let played = epoch(self.daemon.address(), open).unwrap();
        self.daemon.settle();
        played
    }

    fn fails(&self, name: &str) -> forebay_error::Error {
        let open = job(&self.origin, urls([name]));
        let error = epoch(self.daemon.address(), open).unwrap_err();
        self.daemon.settle();
        error
    }

    fn used(&self) -> u64 {
        self.daemon.node().store().counters().used_bytes
    }
}

/// A store's checksum is one of what it keeps. A stream without a checksum of its own has no other.
#[test]
fn origin_checksum_covers_the_compressed_bytes() {
    let tar = plain(0, 30, MEMBER);
    let packed = zstd::encode_all(&tar[..], 1).unwrap();
    let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &packed);
    let checksum = || (When::head(), Fault::crc64_nvme(sum));
    let middle = packed.len() as u64 / 2;
    for garbled in [false, true] {
        let bench = Bench::new(1 << 30);
        bench.origin.put("0.tar.zst", &packed);
        let proxy = FaultProxy::start(bench.origin.server.address()).unwrap();
        let fault = (When::get().covering(middle).times(1), Fault::Garble(1000));
        proxy.set([checksum()].into_iter().chain(garbled.then_some(fault)));
        let through = Options::from(bench.origin.environment());
        let through = through.with("AWS_ENDPOINT_URL", &proxy.endpoint()).into_map();
        let played = epoch(bench.daemon.address(), job_with(through, urls(["0.tar.zst"])));
        bench.daemon.settle();
        let checksums = |what: &str| bench.daemon.number(&format!("/sources/0/checksums/{what}"));
        let whole = cached_file(&bench.shards(), "-0.tar.zst.idx");
        if garbled {
            if let Some(error) = played.map_or_else(Some, |mut epoch| epoch.errors.pop()) {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
            // What is there, if anything, came later.
            assert!(
                whole.is_none() || fs::read(bench.daemon.data_file("0.tar.zst")).unwrap() == tar
            );
            assert_eq!(
                (checksums("differed"), checksums("agreed")),
                (1, u64::from(whole.is_some()))
            );
        } else {
            assert_whole(&played.unwrap(), &[0], 30, MEMBER);
            assert!(whole.is_some());
            assert_eq!(checksums("agreed"), 1);
        }
    }
}

/// A server that tells no version has nothing that a second request could be compared with.
#[test]
fn indivisible_shard_arrives_in_one_reply() {
    let bench = Bench::new(1 << 30);
    let tars = [plain(0, 30, MEMBER), plain(1, 30, MEMBER)];
    let (names, packed) = (["0.tar.gz", "1.tar.zst"], [gzip(&tars[0]), zstd(&tars[1])]);
    for (name, bytes) in names.iter().zip(&packed) {
        bench.origin.put(name, bytes);
    }
    let proxy = FaultProxy::start(bench.origin.server.address()).unwrap();
    proxy.set([ETAG, LAST_MODIFIED].map(|name| (When::any(), Fault::no_header(name))));
    let urls = names.map(|name| format!("{}/{}", proxy.endpoint(), Origin::key(name)));
    let played = epoch(bench.daemon.address(), job_with(BTreeMap::new(), urls.into())).unwrap();
    bench.daemon.settle();
    assert_whole(&played, &[0, 1], 30, MEMBER);
    for (name, tar) in names.iter().zip(&tars) {
        assert!(fs::read(bench.daemon.data_file(name)).unwrap() == *tar, "{name}");
    }
    assert_eq!(proxy.traffic().answered("GET", 200), 2, "{:?}", proxy.traffic());
}

/// Bears promise 1 for compressed shards: whatever the form, the tier holds the plain tar, byte for
/// byte.
#[test]
fn every_compression_becomes_the_plain_tar() {
    let bench = Bench::new(1 << 30);
    let (samples, names) =
        (30, ["a.tar.gz", "b.tgz", "c.tar.zst", "d.gz", "e.tzst", "f.tar", "g.tar.gz"]);
    let tars: Vec<_> = (0..names.len() as u64).map(|n| plain(n, samples, MEMBER)).collect();
    let sizes = skipped(b"where the frames begin");
    let forms = [
        gzip(&tars[0]),
        // As padded to the end of a tape's block.
        [joined(&tars[1], 7, gzip), vec![0; 10_240]].concat(),
        zstd(&tars[2]),
        joined(&tars[3], 500, gzip),
        joined(&tars[4], 5, |piece| [&sizes[..], &zstd(piece)].concat()),
        // Names that promise something else.
        gzip(&tars[5]),
        tars[6].clone(),
    ];
    for (name, bytes) in names.iter().zip(&forms) {
        bench.origin.put(name, bytes);
    }
    let seeds: Vec<_> = (0..names.len() as u64).collect();
    assert_whole(&bench.play(&names), &seeds, samples, MEMBER);
    for ((name, tar), form) in names.iter().zip(&tars).zip(&forms) {
        assert!(fs::read(bench.daemon.data_file(name)).unwrap() == *tar, "{name}");
        let sidecar = sidecar(&bench.shards(), name);
        let len = form.len() as u64;
        let compressed = (*name != "g.tar.gz").then_some(len);
        assert_eq!((sidecar.len, sidecar.compressed_len), (tar.len() as u64, compressed), "{name}");
        if !["f.tar", "g.tar.gz"].contains(name) {
            assert_eq!(bench.origin.served(name), len, "{name} was fetched once");
        }
    }
    let listed = Command::new("tar").arg("tf").arg(bench.daemon.data_file("a.tar.gz")).output();
    assert_eq!(String::from_utf8(listed.unwrap().stdout).unwrap().lines().count() as u64, samples);
    // What lies on the tier is plain, what came from the origin was not.
    let sum = |bytes: &[Vec<u8>]| bytes.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
    let counters = bench.daemon.node().store().counters();
    assert_eq!((counters.used_bytes, counters.origin_bytes), (sum(&tars), sum(&forms)));
    assert_eq!(counters.written_bytes, sum(&tars));
    let request =
        Request::Index { url: Origin::url("a.tar.gz"), origin: bench.origin.environment() };
    match bench.daemon.ask(&request).unwrap() {
        Reply::Shard { bytes, samples: counted, .. } => {
            assert_eq!((bytes, counted), (tars[0].len() as u64, samples));
        }
        other => panic!("{other:?}"),
    }

    let Bench { origin, daemon, disk } = bench;
    daemon.stop();
    let served: Vec<_> = names.iter().map(|name| origin.served(name)).collect();
    let daemon = Daemon::start(disk.path());
    let bench = Bench { origin, daemon, disk };
    assert_whole(&bench.play(&names), &seeds, samples, MEMBER);
    assert_eq!(names.iter().map(|name| bench.origin.served(name)).collect::<Vec<_>>(), served);
    let path = "/api/v1/scrubs?dry_run=true&follow=true";
    let told = followed(bench.daemon.socket(), path, &serde_json::Value::Null).unwrap();
    let last = told.last().unwrap();
    assert_eq!((&last["done"], &last["wrong"]), (&true.into(), &0.into()), "{last}");
    assert_eq!(bench.daemon.node().store().counters().corruptions, 0);
}

/// A small shard, an empty tar, and an empty stream.
#[test]
fn shards_smaller_than_a_block_are_unpacked() {
    let bench = Bench::new(64 << 20);
    let small = plain(0, 3, 100);
    bench.origin.put("0.tar.gz", &gzip(&small));
    bench.origin.put("1.tar", &zstd(&small));
    assert!(bench.origin.bytes("0.tar.gz").len() < 512);
    assert_whole(&bench.play(&["0.tar.gz", "1.tar"]), &[0, 0], 3, 100);
    for name in ["0.tar.gz", "1.tar"] {
        assert!(fs::read(bench.daemon.data_file(name)).unwrap() == small);
    }
    assert_eq!(bench.used(), 2 * small.len() as u64, "what the object was longer is given back");
    bench.origin.put("empty.tar.gz", &gzip(&[]));
    let errors = bench.play(&["empty.tar.gz"]).errors;
    assert_eq!((errors[0].kind(), errors[0].place("offset")), (ErrorKind::Corrupt, Some("0")));
    bench.origin.put("twice.tar.gz", &gzip(&gzip(&plain(0, 3, 1000))));
    let error = bench.fails("twice.tar.gz");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.place("format"), Some("gzip"), "{error}");
}

/// Samples are out as soon as their bytes are.
#[test]
fn samples_are_served_before_the_shard_is_whole() {
    let bench = Bench::new(1 << 30);
    let samples = 80;
    let forms = [
        ("0.tar.gz", gzip(&plain(0, samples, MEMBER))),
        ("1.tar.zst", zstd(&plain(1, samples, MEMBER))),
    ];
    for (seed, (name, form)) in (0..).zip(&forms) {
        bench.origin.put(name, form);
        bench.origin.server.stall(&Origin::key(name), form.len() as u64 / 2);
        let loader = loader(bench.daemon.address(), job(&bench.origin, urls([*name]))).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        let mut played = Epoch::default();
        while played.samples.len() < 16 {
            match next(&loader).unwrap() {
                Next::Batch(batch) => played.take(&batch),
                Next::End(_) => panic!("the epoch is over"),
            }
        }
        assert!(cached_file(&bench.shards(), &format!("{name}.idx")).is_none());
        bench.origin.server.release(&Origin::key(name));
        loop {
            match next(&loader).unwrap() {
                Next::Batch(batch) => played.take(&batch),
                Next::End(end) => break assert_eq!(end.errors, []),
            }
        }
        assert_whole(&played, &[seed], samples, MEMBER);
    }
}

/// A member larger than all frames of a fill.
#[test]
fn member_may_be_larger_than_the_window() {
    let bench = Bench::new(1 << 30);
    let len = 100 << 20;
    bench.origin.put("0.tar.gz", &gzip(&plain(0, 1, len)));
    let mut open = job(&bench.origin, urls(["0.tar.gz"]));
    open.order.batch_size = 1;
    open.prefetch = 1;
    let played = epoch(bench.daemon.address(), open).unwrap();
    assert_whole(&played, &[0], 1, len);
}

/// Eight jobs at once are served by one fetch.
#[test]
fn many_jobs_fetch_the_compressed_bytes_once() {
    let bench = Bench::new(1 << 30);
    let (samples, names) = (40, ["0.tar.gz", "1.tar.zst"]);
    bench.origin.put(names[0], &gzip(&plain(0, samples, MEMBER)));
    bench.origin.put(names[1], &zstd(&plain(1, samples, MEMBER)));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut open = job(&bench.origin, urls(names));
                // The slabs of all eight lie in one memory.
                (open.order.batch_size, open.prefetch) = (4, 2);
                let played = epoch(bench.daemon.address(), open).unwrap();
                assert_whole(&played, &[0, 1], samples, MEMBER);
            });
        }
    });
    for name in names {
        assert_eq!(bench.origin.served(name), bench.origin.bytes(name).len() as u64, "{name}");
    }
}

/// A shard that comes to hundreds of times its length is refused before it fills the tier.
#[test]
fn decompression_bomb_is_rejected_by_its_ratio() {
    let bench = Bench::new(1 << 30);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(400 << 20);
    builder.append_data(&mut header, "0.bin", &vec![0; 400 << 20][..]).unwrap();
    let tar = builder.into_inner().unwrap();
    for (name, form) in [("0.tar.gz", gzip(&tar)), ("1.tar.zst", zstd(&tar))] {
        bench.origin.put(name, &form[..form.len() - form.len() / 4]);
        bench.origin.put(name, &form);
        let limit = (64 << 20) + 256 * form.len() as u64;
        if limit > tar.len() as u64 {
            // The fastest gzip does not reach that.
            continue;
        }
        let error = bench.fails(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.place("limit"), Some(limit.to_string().as_str()));
        assert!(error.place("url").unwrap().contains(name));
        eventually("it has left", || bench.used() == 0);
        assert_eq!(cached_file(&bench.shards(), name), None);
    }
    assert!(bench.daemon.node().store().counters().failed_fills > 0);
}

/// One that is larger than the tier is refused once, naming the limit; it is not fetched again.
#[test]
fn shard_larger_than_the_tier_is_rejected() {
    let bench = Bench::new(40 << 20);
    // In its object it would fit.
    let form = gzip(&plain(0, 90, MEMBER));
    assert!(form.len() < 40 << 20);
    bench.origin.put("0.tar.gz", &form);
    let error = bench.fails("0.tar.gz");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    // The fill names the limit. Asked for after a fill that failed, its size alone is too large.
    let limit = error.place("limit").or(error.place("capacity"));
    assert_eq!(limit, Some((40 << 20).to_string().as_str()), "{error}");
    eventually("it has left", || bench.used() == 0);
    let served = bench.origin.served("0.tar.gz");
    let error = bench.fails("0.tar.gz");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    // It is known by then: only which version there is now is asked, by the first bytes.
    let again = bench.origin.served("0.tar.gz") - served;
    assert!(again <= forebay_store::PART_BYTES as u64, "{again} bytes came again");
    // What fits exactly, does.
    let tar = plain(1, 20, MEMBER);
    let exact = Bench::new(tar.len() as u64);
    exact.origin.put("1.tar.gz", &gzip(&tar));
    assert_whole(&exact.play(&["1.tar.gz"]), &[1], 20, MEMBER);
    assert_eq!(exact.used(), tar.len() as u64);
}

/// A stream that breaks off: the samples before its end are good, and the fault is told with its
/// place.
#[test]
fn truncated_shard_serves_its_samples() {
    let bench = Bench::new(1 << 30);
    for (seed, name, form) in [
        (0, "0.tar.gz", gzip(&plain(0, 40, MEMBER))),
        (1, "1.tar.zst", zstd(&plain(1, 40, MEMBER))),
    ] {
        let cut = form.len() / 3 * 2;
        bench.origin.put(name, &form[..cut]);
        let played = bench.play(&[name]);
        assert_eq!(played.errors.len(), 1, "{:?}", played.errors);
        let error = &played.errors[0];
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.place("reason"), Some("truncated"), "{error}");
        assert_eq!(error.place("compressed_offset"), Some(cut.to_string().as_str()));
        assert!(error.place("url").unwrap().contains(name));
        assert!((20..40).contains(&played.samples.len()), "{}", played.samples.len());
        assert_right(&played, &[seed], MEMBER);
        let again = bench.play(&[name]);
        assert_eq!(again.sequence(), played.sequence(), "always the same ones");
        assert_eq!(bench.origin.served(name), cut as u64, "a broken archive is fetched once");
        assert_eq!(cached_file(&bench.shards(), &format!("{name}.idx")), None, "it is not cached");
    }
}

/// A fault behind the tar's end, whether the shard comes in one piece or in many: bytes after the
/// stream, on which its tools disagree, or a missing checksum.
#[test]
fn faults_behind_the_tar_are_reported_at_any_size() {
    let bench = Bench::new(1 << 30);
    for len in [1, 1000, 150_000, MEMBER] {
        let tar = plain(0, 20, len);
        for (suffix, form) in [("tar.gz", gzip(&tar)), ("tar.zst", zstd(&tar))] {
            let end = form.len();
            for (reason, offset, form) in [
                ("trailing", end, [&form[..], b"garbage"].concat()),
                ("truncated", end - 4, form[..end - 4].to_vec()),
            ] {
                let name = format!("{len}-{reason}.{suffix}");
                bench.origin.put(&name, &form);
                let played = bench.play(&[&name]);
                assert_eq!(played.samples.len(), 20, "{name}");
                assert_right(&played, &[0], len);
                let [error] = &played.errors[..] else { panic!("{name}: {:?}", played.errors) };
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
                assert_eq!(error.place("reason"), Some(reason), "{name}: {error}");
                let offset = offset.to_string();
                assert_eq!(error.place("compressed_offset"), Some(&offset[..]), "{name}: {error}");
            }
        }
    }
}

/// A copy that does not match its stream's own checksum is never kept.
#[test]
fn flipped_bit_in_the_stream_is_corrupt_and_not_kept() {
    let bench = Bench::new(1 << 30);
    let tar = plain(0, 20, MEMBER);
    for (name, form) in [("0.tar.gz", gzip(&tar)), ("1.tar.zst", zstd(&tar))] {
        for at in [form.len() / 2, form.len() - 1] {
            let mut bad = form.clone();
            bad[at] ^= 0x10;
            bench.origin.put(name, &bad);
            let played = bench.play(&[name]);
            let error = played.errors.first().expect("it is told");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert_eq!(error.place("reason"), Some("damaged"), "{error}");
            let offset: usize = error.place("compressed_offset").unwrap().parse().unwrap();
            assert!(offset <= form.len() && offset + (64 << 10) >= at, "{offset} for {at}");
            eventually("it is gone", || bench.used() == 0);
            assert_eq!(cached_file(&bench.shards(), name), None);
            // Mended, it is another version.
            bench.origin.put(name, &form);
            bench.daemon.forget(&Origin::url(name), false).unwrap();
            assert_whole(&bench.play(&[name]), &[0], 20, MEMBER);
            drop(bench.daemon.forget(&Origin::url(name), false));
            eventually("it is forgotten", || bench.used() == 0);
        }
    }
}

/// A tar that is broken in a stream that is sound: what comes before the fault is good, and kept
/// for those who want it.
#[test]
fn broken_tar_in_a_sound_stream_is_fetched_once() {
    let bench = Bench::new(1 << 30);
    let mut tar = plain(0, 40, MEMBER);
    // The header of the thirtieth member.
    let at = 29 * (512 + MEMBER.next_multiple_of(512));
    tar[at] ^= 0x10;
    let form = zstd(&tar);
    bench.origin.put("0.tar.zst", &form);
    for _ in 0..2 {
        let played = bench.play(&["0.tar.zst"]);
        assert_eq!(played.samples.len(), 28, "the last one before it may go on");
        assert_right(&played, &[0], MEMBER);
        assert_eq!(played.errors.len(), 1, "{:?}", played.errors);
        assert_eq!(played.errors[0].place("offset"), Some(at.to_string().as_str()));
        assert_eq!(bench.origin.served("0.tar.zst"), form.len() as u64);
    }
    assert_eq!(cached_file(&bench.shards(), ".idx"), None, "it is not cached");
}

/// Bears promise 3 under growth: what a shard comes to beyond its object's length is reserved
/// before it is written, and others go for it.
#[test]
fn growing_shard_evicts_others() {
    let small = plain(7, 10, MEMBER);
    let large = plain(0, 60, MEMBER);
    // Beside the compressed length of the large one all three small ones would fit.
    let capacity = large.len() as u64 + small.len() as u64;
    let form = gzip(&large);
    assert!(form.len() as u64 + 3 * (small.len() as u64) <= capacity);
    let bench = Bench::new(capacity);
    for n in 1..4 {
        bench.origin.put(&format!("{n}.tar"), &small);
    }
    bench.origin.put("0.tar.gz", &form);
    bench.play(&["1.tar", "2.tar", "3.tar"]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (bench, stop) = (&bench, &stop);
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(bench.used() <= capacity);
                let mut files: Vec<_> = fs::read_dir(bench.shards()).unwrap().flatten().collect();
                // What grows first: room that it gets by an eviction is not counted twice.
                files.sort_by_key(|file| !file.path().to_string_lossy().contains("-0.tar.gz"));
                let lens = files.iter().filter_map(|file| file.metadata().ok()).map(|m| m.len());
                // Sidecars, and the padding of a last sector, are not counted.
                assert!(lens.sum::<u64>() <= capacity + 64 * 1024);
                std::thread::yield_now();
            }
        });
        assert_whole(&bench.play(&["0.tar.gz"]), &[0], 60, MEMBER);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let counters = bench.daemon.node().store().counters();
    assert_eq!((counters.evictions, counters.shards), (2, 2));
    assert_eq!(counters.used_bytes, capacity);
    assert_eq!(counters.fills, 4);
}

/// Two that grow where only one has room: none waits for the other for ever, and every sample
/// comes.
#[test]
fn growing_shards_do_not_wait_for_each_other() {
    let tars: Vec<_> = (0..4).map(|n| plain(n, 60, MEMBER)).collect();
    let bench = Bench::new(tars[0].len() as u64 * 5 / 4);
    for (n, tar) in tars.iter().enumerate() {
        bench.origin.put(&format!("{n}.tar.gz"), &gzip(tar));
    }
    std::thread::scope(|scope| {
        for n in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                let name = format!("{n}.tar.gz");
                let open = job(&bench.origin, urls([name.as_str()]));
                let played = epoch(bench.daemon.address(), open).unwrap();
                assert_whole(&played, &[n], 60, MEMBER);
            });
        }
    });
    eventually("it is quiet", || {
        let counters = bench.daemon.node().store().counters();
        counters.misses == counters.ended()
    });
    assert!(bench.used() <= tars[0].len() as u64 * 5 / 4);
}

/// Data sets and tenants over shards that are files.
struct Shares {
    folder: tempfile::TempDir,
    bare: BareStore,
    bytes: u64,
    _disk: tempfile::TempDir,
}

impl Shares {
    /// Four shards of one length, of which a share may hold as much as `max` says.
    fn new(max: impl FnOnce(u64) -> (Vec<Tenant>, Vec<Dataset>)) -> Self {
        let (folder, disk) = (Daemon::disk(), Daemon::disk());
        let tars: Vec<_> = (0..4).map(|n| plain(n, 30, MEMBER)).collect();
        for (n, tar) in tars.iter().enumerate() {
            fs::write(folder.path().join(format!("{n}.tar.gz")), gzip(tar)).unwrap();
        }
        let bytes = tars[0].len() as u64;
        let (tenants, datasets) = max(bytes);
        let config = BareStoreConfig::new(disk.path().join("cache"), 10 * bytes);
        let bare = BareStoreConfig { tenants, datasets, ..config }.open();
        Self { folder, bare, bytes, _disk: disk }
    }

    fn read(&self, tenant: &str, n: u64) -> Result<(), forebay_error::Error> {
        let url = self.folder.path().join(format!("{n}.tar.gz"));
        let read = self.bare.read_all_for(Some(tenant), url.to_str().unwrap());
        eventually("nothing is under way", || {
            let counters = self.bare.store.counters();
            counters.misses == counters.ended()
        });
        let read = read?;
        assert_eq!(read.len(), 30);
        for (i, member) in (0..).zip(&read) {
            assert!(*member == image(n, i, MEMBER));
        }
        Ok(())
    }

    /// Bytes that a tenant and a data set hold.
    fn held(&self, tenant: &str, dataset: &str) -> (u64, u64) {
        let holdings = self.bare.store.holdings();
        let of = |list: &[forebay_store::Holding], name: &str| {
            list.iter().find(|of| of.name == name).unwrap().used_bytes
        };
        (of(&holdings.tenants, tenant), of(&holdings.datasets, dataset))
    }
}

/// Bears promise 3 for quotas under growth: their own shards go, and what is larger than they are
/// is refused.
#[test]
fn quotas_bind_growing_shards() {
    let tenant = |name: &str, max_bytes| Tenant { name: name.to_owned(), min_bytes: 0, max_bytes };
    let all = || Dataset::new("all", "**", Evict::Lru).unwrap();
    let bench = Shares::new(|bytes| {
        (vec![tenant("a", Some(bytes * 3 / 2)), tenant("b", None)], vec![all()])
    });
    bench.read("b", 0).unwrap();
    bench.read("a", 1).unwrap();
    bench.read("a", 2).unwrap();
    assert_eq!(bench.held("a", "all"), (bench.bytes, 2 * bench.bytes), "its own went");
    assert_eq!(bench.held("b", "all").0, bench.bytes);
    let bench = Shares::new(|bytes| (vec![tenant("a", Some(bytes - 1))], vec![all()]));
    for _ in 0..2 {
        let error = bench.read("a", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.to_string().contains("quota.max"), "{error}");
        eventually("it has left", || bench.held("a", "all") == (0, 0));
    }
    bench.read("nobody's", 1).unwrap();
    let bench = Shares::new(|bytes| {
        (vec![tenant("a", None)], vec![Dataset { max_bytes: Some(bytes * 3 / 2), ..all() }])
    });
    bench.read("a", 0).unwrap();
    bench.read("b", 1).unwrap();
    assert_eq!(bench.held("(rest)", "all"), (bench.bytes, bench.bytes));
}

/// Bears promise 4: killed in mid-shard, a daemon leaves nothing that could be taken for a part of
/// it.
#[test]
fn compressed_shard_of_a_killed_daemon_starts_over() {
    let origin = Origin::new();
    let samples = 150;
    let form = gzip(&plain(0, samples, MEMBER));
    origin.put("0.tar.gz", &form);
    origin.server.stall(&Origin::key("0.tar.gz"), form.len() as u64 / 5 * 4);
    let home = UserHome::new(ACTOR);
    let loader = loader(home.address(), job(&origin, urls(["0.tar.gz"]))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let mut played = Epoch::default();
    while played.samples.len() < 80 {
        match next(&loader).unwrap() {
            Next::Batch(batch) => played.take(&batch),
            Next::End(_) => panic!("the epoch is over"),
        }
    }
    assert!(cached_file(&home.shards(), ".part").is_none(), "nothing is recorded");
    kill(loader.stats().daemon_pid.unwrap());
    let left = cached_file(&home.shards(), "-0.tar.gz").unwrap();
    assert!(fs::metadata(left).unwrap().len() > form.len() as u64, "it had grown");
    origin.server.release(&Origin::key("0.tar.gz"));
    loop {
        match next(&loader).unwrap() {
            Next::Batch(batch) => played.take(&batch),
            Next::End(end) => break assert_eq!(end.errors, []),
        }
    }
    assert_whole(&played, &[0], samples, MEMBER);
    eventually("it is whole", || cached_file(&home.shards(), ".idx").is_some());
    let data = cached_file(&home.shards(), "-0.tar.gz").unwrap();
    assert!(fs::read(data).unwrap() == plain(0, samples, MEMBER));
    assert_eq!(home.status().unwrap()["cache"]["resumed_bytes"], 0);
}

/// An origin that goes away in mid-shard leaves nothing behind either, within one daemon.
#[test]
fn failed_fill_leaves_nothing() {
    let bench = Bench::new(1 << 30);
    let form = gzip(&plain(0, 60, MEMBER));
    let key = Origin::key("0.tar.gz");
    bench.origin.put("0.tar.gz", &form);
    bench.origin.server.stall(&key, form.len() as u64 / 2);
    let open = job(&bench.origin, urls(["0.tar.gz"]));
    let opened = loader(bench.daemon.address(), open).unwrap();
    opened.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&opened).unwrap(), Next::Batch(_)));
    bench.origin.server.deny(&key, true);
    bench.origin.server.cut(&key, 1, u32::MAX);
    bench.origin.server.release(&key);
    eventually("the fill failed", || bench.daemon.node().store().counters().failed_fills > 0);
    drop(opened);
    eventually("it has left", || bench.used() == 0);
    assert_eq!(cached_file(&bench.shards(), "-0.tar.gz"), None);
    bench.origin.server.deny(&key, false);
    bench.origin.server.cut(&key, 0, 0);
    assert_whole(&bench.play(&["0.tar.gz"]), &[0], 60, MEMBER);
}

fn two_tiers(disk: &Path, classes: [Class; 2], change: impl FnOnce(&mut NodeConfig)) -> Daemon {
    let mut config = Daemon::config(disk, 1);
    let [first, second] = classes;
    let second = match second {
        Class::Memory => {
            NodeTier { path: None, ..NodeTier::at("b", second, "/".into(), 128 << 20) }
        }
        _ => NodeTier::at("b", second, disk.join("b"), 1 << 30),
    };
    config.tiers = vec![NodeTier::at("a", first, disk.join("a"), 1 << 30), second];
    config.memory = 3 * FRAMES;
    change(&mut config);
    Daemon::try_start(config).unwrap()
}

fn change(daemon: &Daemon, tier: &str, mode: Mode) {
    daemon.change(tier, mode).unwrap();
}

/// An unpacked shard moves as the plain tar it is; its origin is not asked again.
#[test]
fn unpacked_shard_moves_between_tiers_and_back() {
    moves_and_returns("0.tar.zst", 30, MEMBER);
}

/// So does one as small as those that are written by their commit, whatever its name says.
#[test]
fn small_unpacked_shard_moves_between_tiers_and_back() {
    moves_and_returns("0.tar", 3, 100);
}

fn moves_and_returns(name: &str, samples: u64, len: usize) {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    let tar = plain(0, samples, len);
    let form = zstd(&tar);
    origin.put(name, &form);
    let daemon = two_tiers(disk.path(), [Class::Nvme, Class::Hdd], |_| ());
    let open = || job(&origin, urls([name]));
    let shards = |tier: &str| disk.path().join(tier).join("shards");
    assert_whole(&epoch(daemon.address(), open()).unwrap(), &[0], samples, len);
    daemon.settle();
    let served = origin.served(name);
    for (from, to) in [("a", "b"), ("b", "a")] {
        change(&daemon, from, Mode::Draining);
        eventually("it moved", || daemon.tier(from).counters.shards == 0);
        let moved = sidecar(&shards(to), name);
        assert_eq!((moved.len, moved.compressed_len), (tar.len() as u64, Some(form.len() as u64)));
        let data = cached_file(&shards(to), &format!("-{name}")).unwrap();
        assert!(fs::read(data).unwrap() == tar);
        assert_eq!(daemon.tier(to).counters.used_bytes, tar.len() as u64);
        assert_eq!(daemon.tier(to).counters.moved_bytes, tar.len() as u64);
        change(&daemon, from, Mode::Enabled);
        assert_whole(&epoch(daemon.address(), open()).unwrap(), &[0], samples, len);
    }
    assert_eq!(origin.served(name), served, "one fetch");
    daemon.stop();
    let daemon = two_tiers(disk.path(), [Class::Nvme, Class::Hdd], |_| ());
    assert_whole(&epoch(daemon.address(), open()).unwrap(), &[0], samples, len);
    assert_eq!(origin.served(name), served, "it is found again");
}

/// Into memory it goes, too: moved there, and unpacked there where there is no disk.
#[test]
fn memory_tier_holds_the_unpacked_shard() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    let tar = plain(0, 30, MEMBER);
    origin.put("0.tar.gz", &gzip(&tar));
    let open = || job(&origin, urls(["0.tar.gz"]));
    let daemon = two_tiers(disk.path(), [Class::Nvme, Class::Memory], |_| ());
    for _ in 0..2 {
        assert_whole(&epoch(daemon.address(), open()).unwrap(), &[0], 30, MEMBER);
        daemon.settle();
    }
    eventually("it moved up", || daemon.tier("b").counters.moved_in == 1);
    assert_whole(&epoch(daemon.address(), open()).unwrap(), &[0], 30, MEMBER);
    daemon.stop();
    // Room for one and a half of them: the second pushes the first out while it grows.
    let parts = (tar.len() as u64).div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
    let alone =
        NodeTier { path: None, ..NodeTier::at("ram", Class::Memory, "/".into(), parts * 3 / 2) };
    let mut config = Daemon::config(disk.path(), 1);
    config.tiers = vec![alone];
    config.memory = 3 * FRAMES;
    let daemon = Daemon::try_start(config).unwrap();
    origin.put("1.tar.gz", &gzip(&plain(1, 30, MEMBER)));
    for n in [0, 1, 0] {
        let name = format!("{n}.tar.gz");
        let played = epoch(daemon.address(), job(&origin, urls([name.as_str()]))).unwrap();
        assert_whole(&played, &[n], 30, MEMBER);
        daemon.settle();
        assert_eq!(daemon.tier("ram").counters.used_bytes, parts);
    }
    assert_eq!(daemon.tier("ram").counters.evictions, 2);
}

/// Bears promise 1: a wrong byte at rest drops the copy, which is fetched and unpacked anew.
#[test]
fn corrupt_copy_is_unpacked_again() {
    let bench = Bench::new(1 << 30);
    let tar = plain(0, 30, MEMBER);
    let form = gzip(&tar);
    bench.origin.put("0.tar.gz", &form);
    bench.play(&["0.tar.gz"]);
    flip(&bench.daemon.data_file("0.tar.gz"), 5_000_000);
    assert_whole(&bench.play(&["0.tar.gz"]), &[0], 30, MEMBER);
    let counters = bench.daemon.node().store().counters();
    assert_eq!((counters.corruptions, counters.fills), (1, 2));
    assert_eq!(bench.origin.served("0.tar.gz"), 2 * form.len() as u64);
    assert!(fs::read(bench.daemon.data_file("0.tar.gz")).unwrap() == tar);
    assert_eq!(bench.used(), tar.len() as u64);
}

/// A device that dies under a shard: it is fetched anew to another; with none left, the error says
/// so.
#[test]
fn shard_of_a_lost_tier_is_unpacked_again_or_fails() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    let form = gzip(&plain(0, 30, MEMBER));
    origin.put("0.tar.gz", &form);
    let faulty = FaultyDevice::below(&disk.path().join("a"));
    let daemon = two_tiers(disk.path(), [Class::Nvme, Class::Hdd], |config| {
        config.faults = Some(faulty.clone());
    });
    let loader = loader(daemon.address(), job(&origin, urls(["0.tar.gz"]))).unwrap();
    assert_whole(&play(&loader, 0, 0).unwrap(), &[0], 30, MEMBER);
    daemon.settle();
    assert_eq!(daemon.tier("a").counters.shards, 1);
    // EIO.
    faulty.fail_reads(5);
    faulty.fail_writes(5);
    let mut number = 0;
    // A fill that lost its tier may serve all of an epoch, and then nobody asks for another.
    eventually("it came to the other", || {
        number += 1;
        assert_whole(&play(&loader, number, 0).unwrap(), &[0], 30, MEMBER);
        daemon.tier("b").counters.shards == 1
    });
    assert!(faulty.failed() > 0);
    drop(loader);
    for tier in ["a", "b"] {
        change(&daemon, tier, Mode::Disabled);
    }
    let error = epoch(daemon.address(), job(&origin, urls(["0.tar.gz"]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.advice().unwrap().contains("forebay tier ls"), "{error}");
}
