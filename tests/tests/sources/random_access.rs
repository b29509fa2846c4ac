//! Random access by a member index: requests, bytes, versions, and input that lies.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use forebay_client::{Loader, Locator};
use forebay_error::{ErrorKind, Result};
use forebay_shard::Manifest;
use forebay_shard::members::{MemberIndex, Writer, path_of};
use forebay_testkit::{Fault, FaultProxy, When, shard};
use forebay_tests::{
    Daemon, Epoch, Origin, documents, eventually, job, job_with, loader, play, rest, write_index,
};
use forebay_wire::message::Picked;
use tempfile::TempDir;

const SIZES: std::ops::Range<usize> = 60_000..70_000;
const SHARDS: u64 = 3;
const SAMPLES: u64 = 40;

struct Bench {
    origin: Origin,
    daemon: Daemon,
    folder: TempDir,
    manifest: PathBuf,
    _disk: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same, with an origin that is changed before it is indexed.
    fn with(change: impl FnOnce(&Origin)) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        change(&origin);
        let (folder, disk) = (TempDir::new().unwrap(), Daemon::disk());
        let manifest = write_index(&Origin::urls(SHARDS), &origin.environment(), folder.path());
        let daemon = Daemon::start(disk.path());
        Self { origin, daemon, folder, manifest, _disk: disk }
    }

    fn loader(&self) -> Loader {
        self.loader_at(self.origin.environment())
    }

    fn loader_at(&self, environment: BTreeMap<String, String>) -> Loader {
        loader(self.daemon.address(), job_with(environment, Origin::urls(SHARDS))).unwrap()
    }

    fn locator(&self) -> Locator {
        self.locator_at(self.manifest.to_str().unwrap())
    }

    fn locator_at(&self, place: &str) -> Locator {
        let documents = documents(place, &self.daemon, &self.origin.environment());
        documents.locator(&Origin::urls(SHARDS)).unwrap().unwrap()
    }

    /// Requests and bytes of all shards so far.
    fn traffic(&self) -> (u64, u64) {
        let counts = self.origin.server.counts();
        (counts.requests, counts.bytes.values().sum())
    }

    /// The same of what happens in `during`.
    fn traffic_of<T>(&self, during: impl FnOnce() -> T) -> (T, u64, u64) {
        let (requests, bytes) = self.traffic();
        let done = during();
        let (requests_now, bytes_now) = self.traffic();
        (done, requests_now - requests, bytes_now - bytes)
    }
}

fn picked(shard: u32, ordinal: u64) -> Picked {
    Picked { position: u64::from(shard) * SAMPLES + ordinal, shard, ordinal }
}

fn pick(loader: &Loader, locator: &Locator, samples: &[Picked]) -> Result<Epoch> {
    loader.pick_located(samples.to_vec(), locator.locate(samples)?)?;
    rest(loader)
}

fn assert_picked(epoch: &Epoch, wanted: &[Picked]) {
    assert_eq!(epoch.errors, []);
    let got: Vec<_> =
        epoch.samples.iter().map(|sample| (sample.shard, sample.key.clone())).collect();
    let expected = wanted.iter().map(|one| (one.shard, format!("{:06}", one.ordinal)));
    assert_eq!(got, expected.collect::<Vec<_>>());
    epoch.assert_bytes(&SIZES);
}

/// A sample of a shard that nobody fetched comes in one request, with its own bytes and no more.
#[test]
fn cold_sample_takes_one_request() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    for (shard, ordinal) in [(2, 17), (0, 39), (2, 0)] {
        let wanted = [picked(shard, ordinal)];
        let (got, requests, bytes) = bench.traffic_of(|| pick(&loader, &locator, &wanted).unwrap());
        assert_picked(&got, &wanted);
        assert_eq!(requests, 1);
        // Two members, and a header between them.
        let own: usize = got.samples[0].fields.values().map(Vec::len).sum();
        assert!((own as u64..own as u64 + 1024).contains(&bytes), "{bytes} of {own}");
    }
    assert_eq!(bench.daemon.number("/tiers/0/used_bytes"), 0, "nothing is cached");
}

/// Of a shard that lies elsewhere than where it was indexed, the version is asked for first.
#[test]
fn moved_sample_takes_two_requests() {
    let bench = Bench::new();
    std::fs::create_dir(bench.origin.path("copy")).unwrap();
    for n in 0..SHARDS {
        bench.origin.put(&format!("copy/{n}.tar"), &bench.origin.bytes(&format!("{n}.tar")));
    }
    let urls: Vec<_> = (0..SHARDS).map(|n| Origin::url(&format!("copy/{n}.tar"))).collect();
    let place = bench.manifest.to_str().unwrap();
    let documents = documents(place, &bench.daemon, &bench.origin.environment());
    let locator = documents.locator(&urls).unwrap().unwrap();
    let loader = loader(bench.daemon.address(), job(&bench.origin, urls)).unwrap();
    for (ordinal, expected) in [(3, 2), (20, 1)] {
        let wanted = [picked(1, ordinal)];
        let (got, requests, _) = bench.traffic_of(|| pick(&loader, &locator, &wanted).unwrap());
        assert_picked(&got, &wanted);
        assert_eq!(requests, expected, "the version is known for a minute");
    }
}

/// A version that the index has wrong is an error that names both, before a byte is read.
#[test]
fn index_that_names_another_version_is_invalid() {
    let bench = Bench::new();
    let folder = TempDir::new().unwrap();
    let urls = Origin::urls(SHARDS);
    for version in ["\"other\"", "weak-1"] {
        let change = |bytes, _: &str| (bytes, version.to_owned());
        let manifest = reindexed(&bench, folder.path(), &urls, change);
        let locator = bench.locator_at(manifest.to_str().unwrap());
        let loader = bench.loader();
        let error = pick(&loader, &locator, &[picked(1, 3)]).unwrap_err();
        assert_eq!((error.kind(), error.place("listed")), (ErrorKind::Invalid, Some(version)));
        assert!(error.place("found").is_some(), "{error}");
    }
}

/// Writes the index of a bench again for other URLs, with other lengths and versions.
fn reindexed(
    bench: &Bench,
    folder: &Path,
    urls: &[String],
    change: impl Fn(u64, &str) -> (u64, String),
) -> PathBuf {
    let (old, manifest) =
        (MemberIndex::open(&path_of(&bench.manifest)).unwrap(), folder.join("m.json"));
    let mut writer = Writer::create(&path_of(&manifest), &[]).unwrap();
    let mut listed = Manifest::read(&bench.manifest).unwrap().shards().to_vec();
    for (number, info) in old.shards().iter().enumerate() {
        let (bytes, version) = change(info.bytes, &info.version);
        writer.begin(bytes, &version).unwrap();
        for block in 0..info.blocks() {
            let index = old.samples(number, block).unwrap();
            for sample in &index.samples {
                writer.add(&index, sample, Vec::new()).unwrap();
            }
        }
        listed[number].url.clone_from(&urls[number]);
    }
    let listed = Manifest::new(listed).unwrap();
    writer.finish(&listed).unwrap();
    listed.write(&manifest).unwrap();
    manifest
}

/// Samples of a request share requests where they lie close, and each shard has its own.
#[test]
fn neighbours_share_requests() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    let near = [picked(0, 7), picked(1, 20), picked(0, 5), picked(0, 6), picked(0, 5)];
    let (got, requests, _) = bench.traffic_of(|| pick(&loader, &locator, &near).unwrap());
    assert_picked(&got, &near);
    assert_eq!(requests, 2);
    // One sample between two costs less than a request, ten cost more.
    let ((), requests, _) = bench.traffic_of(|| {
        let wanted = [picked(2, 0), picked(2, 2), picked(2, 13)];
        assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    });
    assert_eq!(requests, 2);
}

/// A copy that is in the cache serves, without a request; and one comes once parts have cost as
/// much as the shard.
#[test]
fn cached_copy_is_used_and_much_read_shard_is_fetched() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    let whole = bench.origin.bytes("1.tar").len() as u64;
    // A request costs as much as two samples: a third of the samples costs as much as the shard.
    for ordinal in 0..SAMPLES / 4 {
        let wanted = [picked(1, ordinal)];
        assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    }
    assert_eq!(bench.daemon.number("/tiers/0/used_bytes"), 0);
    for ordinal in SAMPLES / 4..SAMPLES / 2 {
        let wanted = [picked(1, ordinal)];
        assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    }
    eventually("the shard is cached", || bench.daemon.number("/tiers/0/used_bytes") >= whole);
    bench.daemon.settle();
    let before = bench.traffic().1;
    let all: Vec<_> = (0..SAMPLES).map(|ordinal| picked(1, ordinal)).collect();
    let (got, requests, _) = bench.traffic_of(|| pick(&loader, &locator, &all).unwrap());
    assert_picked(&got, &all);
    assert_eq!((requests, bench.traffic().1), (0, before));
}

/// Another version of a shard is an error that names both, and the session goes on.
#[test]
fn index_of_another_version_is_invalid() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    bench.origin.put("1.tar", &shard(SAMPLES, 77, &SIZES));
    for _ in 0..2 {
        let error = pick(&loader, &locator, &[picked(0, 1), picked(1, 2)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.place("url"), Some(&*Origin::url("1.tar")));
        assert_ne!(error.place("listed").unwrap(), error.place("found").unwrap());
    }
    let wanted = [picked(0, 1)];
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
}

/// Without a version, wrong bytes show the wrong shard; with it they are damage.
#[test]
fn wrong_bytes_are_never_delivered() {
    let bench = Bench::new();
    let folder = TempDir::new().unwrap();
    let urls = Origin::urls(SHARDS);
    // No store's version: it is asked for, and anything fits.
    let manifest =
        reindexed(&bench, folder.path(), &urls, |bytes, version| (bytes, version.to_owned()));
    let mut located = documents(manifest.to_str().unwrap(), &bench.daemon, &BTreeMap::new())
        .locator(&urls)
        .unwrap()
        .unwrap()
        .locate(&[picked(1, 4)])
        .unwrap();
    let loader = bench.loader();
    for (version, kind) in
        [(located[0].version.clone(), ErrorKind::Corrupt), (None, ErrorKind::Invalid)]
    {
        located[0].version = version;
        located[0].samples[0].1.members[0].crc32c ^= 1;
        loader.pick_located(vec![picked(1, 4)], located.clone()).unwrap();
        let error = rest(&loader).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        located[0].samples[0].1.members[0].crc32c ^= 1;
    }
    loader.pick_located(vec![picked(1, 4)], located).unwrap();
    assert_picked(&rest(&loader).unwrap(), &[picked(1, 4)]);
}

/// Places that lie outside of their shard, or in no order, end the request and not the session.
#[test]
fn hostile_places_are_rejected() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    let wanted = [picked(0, 3)];
    let good = locator.locate(&wanted).unwrap();
    let mut outside = good.clone();
    outside[0].samples[0].1.members[0].offset = good[0].bytes - 1;
    let mut overflow = good.clone();
    overflow[0].samples[0].1.members[0].offset = u64::MAX;
    let mut field = good.clone();
    field[0].samples[0].1.members[0].field = 99;
    let mut shard = good.clone();
    shard[0].shard = 9;
    for hostile in [outside, overflow, field, shard] {
        loader.pick_located(wanted.to_vec(), hostile).unwrap();
        assert_eq!(rest(&loader).unwrap_err().kind(), ErrorKind::Invalid);
    }
    // Places of other samples than the wanted ones.
    loader.pick_located(vec![picked(0, 9)], good.clone()).unwrap();
    let got = rest(&loader).unwrap();
    assert_eq!((got.samples.len(), got.errors.len()), (0, 1));
    assert_eq!(got.errors[0].place("sample"), Some("9"));
    // A shard that is said to be longer than it is: its own index tells.
    let mut longer = good.clone();
    longer[0].bytes += 1 << 20;
    longer[0].samples[0].1.members[0].offset = good[0].bytes + 512;
    loader.pick_located(wanted.to_vec(), longer).unwrap();
    assert_picked(&rest(&loader).unwrap(), &wanted);
}

/// An index that ends early, or belongs to another manifest, is found when it is opened.
#[test]
fn damaged_index_is_found_at_once() {
    let bench = Bench::new();
    let path = path_of(&bench.manifest);
    let whole = std::fs::read(&path).unwrap();
    let open = || {
        let place = bench.manifest.to_str().unwrap();
        let documents = documents(place, &bench.daemon, &BTreeMap::new());
        documents.locator(&Origin::urls(SHARDS)).map(|found| found.is_some())
    };
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(open().unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(open(), Ok(false));
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(open(), Ok(true));
    let mut other = Manifest::read(&bench.manifest).unwrap().shards().to_vec();
    other.pop();
    Manifest::new(other).unwrap().write(&bench.manifest).unwrap();
    let place = bench.manifest.to_str().unwrap();
    let documents = documents(place, &bench.daemon, &BTreeMap::new());
    assert_eq!(documents.locator(&Origin::urls(2)).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A shard that goes away between two requests is `NotFound` with its URL.
#[test]
fn shard_that_goes_away_is_not_found() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    assert_picked(&pick(&loader, &locator, &[picked(1, 0)]).unwrap(), &[picked(1, 0)]);
    std::fs::remove_file(bench.origin.path("1.tar")).unwrap();
    let error = pick(&loader, &locator, &[picked(0, 1), picked(1, 1)]).unwrap_err();
    assert_eq!(
        (error.kind(), error.place("url")),
        (ErrorKind::NotFound, Some(&*Origin::url("1.tar")))
    );
    assert_picked(&pick(&loader, &locator, &[picked(2, 1)]).unwrap(), &[picked(2, 1)]);
}

/// A connection that breaks, and a byte that is damaged on its way, cost a request more.
#[test]
fn faults_on_the_way_are_mended() {
    let bench = Bench::new();
    let proxy = FaultProxy::start(bench.origin.server.address()).unwrap();
    let mut environment = bench.origin.environment();
    environment.insert("AWS_ENDPOINT_URL".into(), proxy.endpoint());
    let (loader, locator) = (bench.loader_at(environment), bench.locator());
    for fault in [Fault::Reset(1000), Fault::Garble(1000), Fault::status(503)] {
        proxy.set([(When::get().of("2.tar").times(1), fault)]);
        let wanted = [picked(2, 30), picked(0, 2)];
        assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    }
}

/// Compressed shards, and servers without ranges, are read as a whole, once.
#[test]
fn shards_without_ranges_are_read_as_a_whole() {
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let bench = Bench::with(|origin| origin.put("1.tar", &gzip(&shard(SAMPLES, 1, &SIZES))));
    let (loader, locator) = (bench.loader(), bench.locator());
    let before = bench.origin.served("1.tar");
    let wanted = [picked(1, 8), picked(0, 8)];
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    bench.daemon.settle();
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    let stored = bench.origin.bytes("1.tar").len() as u64;
    let served = bench.origin.served("1.tar") - before;
    // A range, and a fill whose first requests are repeated, since the name shows no compression.
    assert!((stored..3 * stored).contains(&served), "{served} of {stored}");

    let whole = shard(SAMPLES, 0, &SIZES);
    let url = serve_without_ranges(whole.clone());
    let (folder, disk) = (TempDir::new().unwrap(), Daemon::disk());
    let urls = [url];
    let manifest = write_index(&urls, &BTreeMap::new(), folder.path());
    let daemon = Daemon::start(disk.path());
    let documents = documents(manifest.to_str().unwrap(), &daemon, &BTreeMap::new());
    let locator = documents.locator(&urls).unwrap().unwrap();
    let open = job_with(BTreeMap::new(), urls.to_vec());
    let loader = forebay_tests::loader(daemon.address(), open).unwrap();
    for ordinal in [5, 30, 31] {
        let wanted = [picked(0, ordinal)];
        assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    }
    eventually("it is cached", || daemon.number("/tiers/0/used_bytes") >= whole.len() as u64);
}

/// Serves one object over HTTP that comes as a whole whatever is asked for.
fn serve_without_ranges(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), body) = (stream, body.clone()) else { return };
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
                    head.push(byte[0]);
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let sent = stream.write_all(answer.as_bytes());
                if sent.is_ok() && head.starts_with(b"GET") {
                    // Who has enough hangs up.
                    let _ = stream.write_all(&body);
                }
            });
        }
    });
    format!("http://{address}/0.tar")
}

/// A daemon that ends between two requests costs nothing: the next one gets the places again.
#[test]
fn another_daemon_reads_on_by_the_same_index() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let socket = bench.folder.path().join("d.sock");
    let start = || Daemon::try_start_at(Daemon::config(disk.path(), 1 << 30), &socket).unwrap();
    let daemon = start();
    let locator = bench.locator();
    let open = job(&bench.origin, Origin::urls(SHARDS));
    let loader = loader(daemon.address(), open).unwrap();
    let wanted = [picked(1, 3)];
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    daemon.stop();
    let _next = start();
    let before = bench.origin.served("1.tar");
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    assert!(bench.origin.served("1.tar") - before < 100_000);
}

/// Manifest and index lie in the bucket: of the index its directory is read, and the blocks that
/// are wanted, in one round trip before that of the sample.
#[test]
fn index_in_a_bucket_is_read_by_ranges() {
    let bench = Bench::new();
    for name in ["m.json", "m.json.members"] {
        bench.origin.put(name, &std::fs::read(bench.folder.path().join(name)).unwrap());
    }
    let locator = bench.locator_at(&Origin::url("m.json"));
    let loader = bench.loader();
    let wanted = [picked(2, 11)];
    let (got, requests, _) = bench.traffic_of(|| pick(&loader, &locator, &wanted).unwrap());
    assert_picked(&got, &wanted);
    // Members and keys at the same time, then the sample.
    assert_eq!(requests, 3);
    // Of a block that was read, samples are known.
    let wanted = [picked(2, 12)];
    let (got, requests, _) = bench.traffic_of(|| pick(&loader, &locator, &wanted).unwrap());
    assert_picked(&got, &wanted);
    assert_eq!(requests, 1);
    // An index that is replaced is never mixed with the one before.
    bench.origin.put("m.json.members", b"another");
    let error = pick(&loader, &locator, &[picked(0, 1)]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt), "{error}");
    let missing = documents(&Origin::url("n.json"), &bench.daemon, &bench.origin.environment());
    assert_eq!(missing.manifest().unwrap_err().kind(), ErrorKind::NotFound);
}

/// An epoch of the same job reads whole shards: places are those of one request.
#[test]
fn epoch_after_random_access_is_whole() {
    let bench = Bench::new();
    let (loader, locator) = (bench.loader(), bench.locator());
    let wanted = [picked(1, 3), picked(0, 3)];
    assert_picked(&pick(&loader, &locator, &wanted).unwrap(), &wanted);
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
}
