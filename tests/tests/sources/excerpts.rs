//! Excerpts: jobs that want some members or samples read and cache these alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_client::{Address, Deadline, Documents, Loader, Next, Parts, RemoteReads};
use forebay_error::ErrorKind;
use forebay_shard::Manifest;
use forebay_shard::members::{MemberIndex, Writer, path_of};
use forebay_tests::{
    Daemon, Epoch, Origin, PATIENCE, UserHome, admin, config, eventually, job_with, kill, next,
    play, write_index,
};
use forebay_wire::message::{Begin, Chosen, Extent, Open, Order};
use roaring::RoaringBitmap;
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const SHARDS: u64 = 3;
const SAMPLES: u64 = 24;
/// Bytes of a member; neighbours are further apart than a request costs.
const LEN: usize = 70_000;
const FIELDS: [&str; 4] = ["a", "b", "c", "d"];

fn member(shard: u64, sample: u64, field: usize) -> Vec<u8> {
    forebay_testkit::field(shard, sample, FIELDS[field], LEN)
}

fn shard(number: u64) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for sample in 0..SAMPLES {
        for (at, field) in FIELDS.iter().enumerate() {
            let mut header = tar::Header::new_ustar();
            header.set_size(LEN as u64);
            let name = format!("{sample:06}.{field}");
            tar.append_data(&mut header, name, &*member(number, sample, at)).unwrap();
        }
    }
    tar.into_inner().unwrap()
}

fn whole() -> u64 {
    SHARDS * shard(0).len() as u64
}

/// Samples that a job reads.
#[derive(Clone, Copy)]
struct Wish<'a> {
    fields: Option<&'a [&'a str]>,
    /// Every so manieth sample of each shard, from the second on; all if unset.
    every: Option<usize>,
}

impl<'a> Wish<'a> {
    fn fields(fields: &'a [&'a str]) -> Self {
        Self { fields: Some(fields), every: None }
    }

    fn places(self) -> Vec<u64> {
        let (from, step) = self.every.map_or((0, 1), |every| (1, every));
        (from..SAMPLES).step_by(step).collect()
    }

    fn chosen(self) -> Chosen {
        let all: RoaringBitmap = self.places().iter().map(|place| *place as u32).collect();
        let mut passing = Vec::new();
        all.serialize_into(&mut passing).unwrap();
        Chosen { samples: SAMPLES, version: None, digest: None, passing }
    }
}

struct Bench {
    origin: Origin,
    manifest: PathBuf,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let origin = Origin::new();
        (0..SHARDS).for_each(|n| origin.put(&format!("{n}.tar"), &shard(n)));
        let folder = TempDir::new().unwrap();
        let manifest = write_index(&Origin::urls(SHARDS), &origin.environment(), folder.path());
        Self { origin, manifest, folder }
    }

    fn open(&self, wish: Wish<'_>) -> Open {
        let field = |field: &&str| vec![(*field).to_owned()];
        let fields = wish.fields.map(|fields| fields.iter().map(field).collect());
        let counts = Some(vec![wish.places().len() as u64; SHARDS as usize]);
        Open { fields, counts, ..job_with(self.origin.environment(), Origin::urls(SHARDS)) }
    }

    /// A job whose trainer knows all places, by the bench's own index.
    fn loader(&self, daemon: &Daemon, wish: Wish<'_>) -> Loader {
        self.loader_by(daemon.address(), &self.manifest, self.open(wish), wish)
    }

    fn loader_by(&self, at: Address, manifest: &Path, open: Open, wish: Wish<'_>) -> Loader {
        let reads =
            RemoteReads { address: at.clone(), origin: self.origin.environment(), limit: PATIENCE };
        let documents = Documents::at(manifest.to_str().unwrap(), reads);
        let locator = Arc::new(documents.locator(&open.urls).unwrap().unwrap());
        let mut config = config(at, open);
        let mut parts = Parts { locator, passing: None, estimate: Default::default() };
        if wish.every.is_some() {
            config.session.chosen = Some(vec![wish.chosen(); SHARDS as usize].into());
            let places = wish.places();
            parts.passing = Some(Arc::new(move |_| places.clone()));
        }
        let fields = config.session.open.fields.as_deref();
        parts.estimate = parts.locator.estimate(parts.passing.as_ref(), fields).unwrap();
        config.session.parts = Some(parts);
        Loader::open(config).unwrap()
    }

    /// The same job without an index.
    fn without_index(&self, daemon: &Daemon, open: Open, wish: Wish<'_>) -> Loader {
        let mut config = config(daemon.address(), open);
        if wish.every.is_some() {
            config.session.chosen = Some(vec![wish.chosen(); SHARDS as usize].into());
        }
        Loader::open(config).unwrap()
    }

    /// Body bytes and GET requests of all shards so far.
    fn traffic(&self) -> (u64, u64) {
        let counts = self.origin.server.counts();
        (counts.bytes.values().sum(), counts.gets.values().sum())
    }

    /// The index of the bench with other checksums.
    fn with_other_checksums(&self) -> PathBuf {
        let folder = self.folder.path().join("other");
        std::fs::create_dir(&folder).unwrap();
        let (old, manifest) =
            (MemberIndex::open(&path_of(&self.manifest)).unwrap(), folder.join("m.json"));
        let mut writer = Writer::create(&path_of(&manifest), &[]).unwrap();
        for (number, info) in old.shards().iter().enumerate() {
            writer.begin(info.bytes, &info.version).unwrap();
            for block in 0..info.blocks() {
                let mut index = old.samples(number, block).unwrap();
                index.members.iter_mut().for_each(|member| member.crc32c ^= 1);
                for sample in &index.samples {
                    writer.add(&index, sample, Vec::new()).unwrap();
                }
            }
        }
        let listed = Manifest::read(&self.manifest).unwrap();
        writer.finish(&listed).unwrap();
        listed.write(&manifest).unwrap();
        manifest
    }
}

fn assert_epoch(epoch: &Epoch, wish: Wish<'_>) {
    assert_eq!(epoch.errors, []);
    let keys: Vec<_> = wish.places().iter().map(|place| format!("{place:06}")).collect();
    let all = (0..SHARDS as u32).flat_map(|shard| keys.iter().map(move |key| (shard, key.clone())));
    let mut got = epoch.sequence();
    got.sort();
    assert_eq!(got, all.collect::<Vec<_>>());
    for sample in &epoch.samples {
        let number: u64 = sample.key.parse().unwrap();
        let fields = wish.fields.unwrap_or(&FIELDS);
        let right = fields.iter().map(|field| {
            let at = FIELDS.iter().position(|one| one == field).unwrap();
            ((*field).to_owned(), member(u64::from(sample.shard), number, at))
        });
        let right: BTreeMap<_, _> = right.collect();
        assert!(sample.fields == right, "{}/{}", sample.shard, sample.key);
    }
}

fn reading(daemon: &Daemon) -> String {
    daemon.status()["jobs"][0]["reading"].as_str().unwrap().to_owned()
}

/// Shards of the tier, and excerpts among them.
fn kept(daemon: &Daemon) -> (usize, usize) {
    daemon.settle();
    let counters = daemon.tier("nvme").counters;
    (counters.shards, counters.excerpts)
}

/// One member of four: a quarter of the bytes comes, once, and outlives the daemon.
#[test]
fn wanted_members_come_once_and_stay() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let (before, wish) = (bench.traffic(), Wish::fields(&["b"]));
    let loader = bench.loader(&daemon, wish);
    assert_epoch(&play(&loader, 0, 0).unwrap(), wish);
    let first = bench.traffic();
    let (bytes, requests) = (first.0 - before.0, first.1 - before.1);
    assert!(bytes * 40 <= whole() * 11, "{bytes} of {}", whole());
    assert_eq!(requests, SHARDS * SAMPLES);
    assert!(reading(&daemon).starts_with("excerpts"), "{}", reading(&daemon));
    assert_epoch(&play(&loader, 1, 0).unwrap(), wish);
    assert_eq!(bench.traffic(), first, "the second epoch comes from the tier");
    drop(loader);
    assert_eq!(kept(&daemon), (3, 3));
    assert!(daemon.number("/tiers/0/used_bytes") * 3 < whole());
    daemon.stop();
    let checkup = forebay_store::fsck(disk.path(), false, None, |_, _| {}).unwrap();
    assert_eq!((checkup.shards, checkup.faults.len()), (SHARDS, 0));
    let daemon = Daemon::start(disk.path());
    let loader = bench.loader(&daemon, wish);
    assert_epoch(&play(&loader, 0, 0).unwrap(), wish);
    assert_eq!(bench.traffic(), first, "the next daemon has it");
    drop(loader);
    assert_eq!(daemon.forget(&Origin::url("0.tar"), false).unwrap(), 1);
    assert_eq!(kept(&daemon), (2, 2));
}

/// Order and batches are those of whole shards, with filters and without, for each rank, in each
/// epoch, and from any batch on.
#[test]
fn batches_are_those_of_whole_shards() {
    let (bench, disks) = (Bench::new(), [Daemon::disk(), Daemon::disk()]);
    let [parts, wholes] = disks.each_ref().map(|disk| Daemon::start(disk.path()));
    let wishes = [
        Wish { fields: Some(&["c", "a"]), every: Some(3) },
        Wish { fields: None, every: Some(5) },
        Wish { fields: Some(&["d"]), every: None },
    ];
    for (wish, rank) in wishes.into_iter().zip([0, 1, 0]) {
        let mut open = bench.open(wish);
        open.order = Order { rank, world_size: 2, ..Order::shuffled(2, 7, 4) };
        let excerpts = bench.loader_by(parts.address(), &bench.manifest, open.clone(), wish);
        assert!(reading(&parts).starts_with("excerpts"), "{}", reading(&parts));
        let whole = bench.without_index(&wholes, open, wish);
        for (epoch, from) in [(0, 0), (1, 1)] {
            let expected = play(&whole, epoch, from).unwrap();
            assert!(expected.samples.len() > 2);
            let got = play(&excerpts, epoch, from).unwrap();
            assert_eq!((got.announced, got.errors), (expected.announced, expected.errors));
            assert!(got.samples == expected.samples, "epoch {epoch} from {from}");
        }
    }
    assert_eq!(kept(&wholes).1, 0);
}

/// A job that wants most of its shards reads whole ones, and a copy that is there serves all.
#[test]
fn whole_copy_serves_and_most_of_a_shard_is_the_whole() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let all = Wish::fields(&FIELDS);
    let loader = bench.loader(&daemon, all);
    assert_epoch(&play(&loader, 0, 0).unwrap(), all);
    assert!(reading(&daemon).starts_with("whole shards"), "{}", reading(&daemon));
    drop(loader);
    assert_eq!(kept(&daemon), (3, 0));
    let (before, wish) = (bench.traffic().0, Wish::fields(&["d"]));
    assert_epoch(&play(&bench.loader(&daemon, wish), 0, 0).unwrap(), wish);
    assert_eq!(bench.traffic().0, before);
}

/// Jobs that want other members have excerpts of their own, until these take about as much room as
/// the whole shards.
#[test]
fn other_members_are_other_excerpts_until_the_whole_costs_less() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    for (field, expected) in [("a", (3, 3)), ("c", (6, 6)), ("b", (9, 6)), ("d", (9, 6))] {
        let names = [field];
        let wish = Wish::fields(&names);
        let before = bench.traffic().0;
        assert_epoch(&play(&bench.loader(&daemon, wish), 0, 0).unwrap(), wish);
        assert_eq!(kept(&daemon), expected, "{field}");
        assert_eq!(bench.traffic().0 == before, field == "d");
    }
    // An excerpt stays what it is beside the whole.
    let wish = Wish::fields(&["a"]);
    assert_epoch(&play(&bench.loader(&daemon, wish), 0, 0).unwrap(), wish);
    assert_eq!(daemon.forget(&Origin::url("0.tar"), false).unwrap(), 3);
}

/// A shard that was replaced since it was indexed is an error that names both versions, even where
/// an excerpt of the indexed one is here.
#[test]
fn excerpt_of_another_version_is_invalid() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let wish = Wish::fields(&["b"]);
    let assert_told = |loader: &Loader| {
        let error = play(loader, 0, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.place("url"), Some(&*Origin::url("1.tar")));
        assert_ne!(error.place("listed").unwrap(), error.place("found").unwrap());
    };
    assert_epoch(&play(&bench.loader(&daemon, wish), 0, 0).unwrap(), wish);
    assert_eq!(kept(&daemon), (3, 3));
    daemon.stop();
    bench.origin.put("1.tar", &shard(9));
    let daemon = Daemon::start(disk.path());
    assert_told(&bench.loader(&daemon, wish));
    // The same without a copy.
    assert_eq!(daemon.forget(&Origin::url("1.tar"), false).unwrap(), 1);
    assert_told(&bench.loader(&daemon, wish));
    // A new index reads the new version.
    let folder = TempDir::new().unwrap();
    let manifest = write_index(&Origin::urls(SHARDS), &bench.origin.environment(), folder.path());
    let loader = bench.loader_by(daemon.address(), &manifest, bench.open(wish), wish);
    let epoch = play(&loader, 0, 0).unwrap();
    let new = epoch.samples.iter().filter(|sample| sample.shard == 1);
    assert_eq!(new.clone().count() as u64, SAMPLES);
    for sample in new {
        assert!(sample.fields["b"] == member(9, sample.key.parse().unwrap(), 1));
    }
}

/// An index with wrong checksums fails its own job; the excerpt serves others.
#[test]
fn wrong_checksums_fail_their_own_job_alone() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let (wish, other) = (Wish::fields(&["b"]), bench.with_other_checksums());
    let wrong = || bench.loader_by(daemon.address(), &other, bench.open(wish), wish);
    for _ in 0..2 {
        let error = play(&wrong(), 0, 0).unwrap_err();
        let reason = error.place("reason").map(str::to_owned);
        assert_eq!((error.kind(), reason.as_deref()), (ErrorKind::Invalid, Some("checksum")));
        assert_epoch(&play(&bench.loader(&daemon, wish), 0, 0).unwrap(), wish);
    }
    assert_eq!(kept(&daemon), (3, 3), "it is one excerpt for both");
}

/// Members that cross parts of an excerpt, and small ones between two that are wanted, take no more
/// requests.
#[test]
fn requests_go_on_from_part_to_part() {
    let sizes = [
        ("a", 100_000),
        ("b", 60_000),
        ("c", 100_000),
        ("d", 600_000),
        ("e", 2_500_000),
        ("f", 2_500_000),
    ];
    let bytes =
        |sample: u64, (field, len): (&str, usize)| forebay_testkit::field(0, sample, field, len);
    let (origin, samples) = (Origin::new(), 14);
    let mut tar = tar::Builder::new(Vec::new());
    for sample in 0..samples {
        for (field, len) in sizes {
            let mut header = tar::Header::new_ustar();
            header.set_size(len as u64);
            let name = format!("{sample:06}.{field}");
            tar.append_data(&mut header, name, &*bytes(sample, (field, len))).unwrap();
        }
    }
    origin.put("0.tar", &tar.into_inner().unwrap());
    let folder = TempDir::new().unwrap();
    let manifest = write_index(&Origin::urls(1), &origin.environment(), folder.path());
    let bench = Bench { origin, manifest, folder };
    // Two members and the one between them; and members that cross nine parts. Reads are longer
    // than parts, and the first may be shorter than the others.
    for (names, cut) in [(&["a", "c"][..], 0), (&["e"], 3)] {
        let disk = Daemon::disk();
        let daemon = Daemon::start(disk.path());
        let wish = Wish::fields(names);
        let mut open = bench.open(wish);
        (open.urls, open.counts) = (Origin::urls(1), Some(vec![samples]));
        let loader = bench.loader_by(daemon.address(), &bench.manifest, open, wish);
        let before = bench.traffic().1;
        let epoch = play(&loader, 0, 0).unwrap();
        assert_eq!((epoch.errors.len(), epoch.samples.len() as u64), (0, samples));
        for sample in &epoch.samples {
            let number = sample.key.parse().unwrap();
            let right = sizes.into_iter().filter(|(field, _)| names.contains(field));
            let right: BTreeMap<_, _> =
                right.map(|of| (of.0.to_owned(), bytes(number, of))).collect();
            assert!(sample.fields == right, "{}", sample.key);
        }
        assert!(reading(&daemon).starts_with("excerpts"), "{}", reading(&daemon));
        let requests = bench.traffic().1 - before;
        assert!((samples..=samples + cut).contains(&requests), "{names:?}: {requests}");
    }
}

/// A window of excerpts needs their room, not that of the shards.
#[test]
fn window_of_excerpts_fits_where_that_of_shards_does_not() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let capacity = whole() / SHARDS * 2;
    let daemon = Daemon::try_start(Daemon::config(disk.path(), capacity)).unwrap();
    let wish = Wish::fields(&["b"]);
    let mut open = bench.open(wish);
    open.order = Order::shuffled(SHARDS as u32, 3, 8);
    let extent = Extent { bytes: vec![whole() / SHARDS; SHARDS as usize], ranks: (0, 1) };
    let mut of_shards = config(daemon.address(), open.clone());
    of_shards.session.extent = Some(extent.clone());
    assert_eq!(Loader::open(of_shards).map(|_| ()).unwrap_err().kind(), ErrorKind::Full);
    let documents = forebay_tests::documents(
        bench.manifest.to_str().unwrap(),
        &daemon,
        &bench.origin.environment(),
    );
    let locator = Arc::new(documents.locator(&open.urls).unwrap().unwrap());
    let estimate = locator.estimate(None, open.fields.as_deref()).unwrap();
    let mut of_excerpts = config(daemon.address(), open);
    of_excerpts.session.extent = Some(extent);
    of_excerpts.session.parts = Some(Parts { locator, passing: None, estimate });
    let loader = Loader::open(of_excerpts).unwrap();
    assert_epoch(&play(&loader, 0, 0).unwrap(), wish);
}

/// A daemon that is killed again and again in a cold epoch leaves no excerpt that is torn, and the
/// job goes on with the next daemon.
#[test]
fn killed_daemon_leaves_no_torn_excerpt() {
    let (bench, home) = (Bench::new(), UserHome::new(ACTOR));
    let wish = Wish { fields: Some(&["b", "d"]), every: Some(2) };
    let mut open = bench.open(wish);
    open.prefetch = 1;
    open.order.batch_size = 2;
    let loader = bench.loader_by(home.address(), &bench.manifest, open, wish);
    let mut killed = 0;
    for number in 0..3 {
        loader.start(Begin::at(number, 0)).unwrap();
        let mut epoch = Epoch::default();
        loop {
            match next(&loader).unwrap() {
                Next::Batch(batch) => epoch.take(&batch),
                Next::End(end) => {
                    epoch.errors.extend(end.errors);
                    break;
                }
            }
            if epoch.samples.len() % 8 == 2
                && let Some(pid) = loader.stats().daemon_pid
            {
                kill(pid);
                killed += 1;
            }
        }
        assert_epoch(&epoch, wish);
    }
    assert!(killed > 5, "only {killed} kills");
    drop(loader);
    eventually("no daemon is left", || home.daemons().is_empty());
    let mut checkup = None;
    // A process that ends is listed no more before its files are closed, the lock among them.
    eventually("nobody holds the cache", || {
        checkup = forebay_store::fsck(home.cache(), false, None, |_, _| {}).ok();
        checkup.is_some()
    });
    assert_eq!(checkup.unwrap().faults.len(), 0);
}

/// An explanation, a check and the metrics name excerpts.
#[test]
fn reports_name_excerpts() {
    let (bench, disk) = (Bench::new(), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let wish = Wish::fields(&["b"]);
    let loader = bench.loader(&daemon, wish);
    assert_epoch(&play(&loader, 0, 0).unwrap(), wish);
    assert_eq!(kept(&daemon), (3, 3));
    let admin = admin(daemon.socket()).unwrap();
    let url = Origin::url("0.tar");
    let path = format!("/api/v1/shards?url={}", url.replace('/', "%2F"));
    let told: Value = admin.get(&path, &Deadline::after(PATIENCE)).unwrap();
    assert_eq!(told["copies"][0]["excerpt"], true, "{told}");
    let why = told["why"].as_array().unwrap();
    let says = |text: &str| why.iter().any(|one| one.as_str().unwrap().contains(text));
    assert!(says("an excerpt of it") && says("job test reads excerpts"), "{told}");
    let body = serde_json::json!({
        "urls": [url], "origin": bench.origin.environment(), "verify": true,
    });
    let found = forebay_tests::followed(daemon.socket(), "/api/v1/checks", &body).unwrap();
    let found = &found[0];
    assert_eq!((&found["copy"], &found["excerpts"]), (&"absent".into(), &1.into()), "{found}");
    assert_eq!(found["flaw"], Value::Null);
}
