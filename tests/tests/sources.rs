//! One list of behaviours, the same over every way to shards, each against a real server.
//!
//! A way that cannot show a behaviour says so here, with the reason; anything else that is not
//! shown is a failure, a server that is not installed too.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use forebay_client::Address;
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::PART_BYTES;
use forebay_testkit::{Ceph, image, say, shard, skip};
use forebay_tests::{
    Daemon, Epoch, Installation, Installed, Way, daemon_status, epoch, eventually, job_with,
};
use tempfile::TempDir;

const ACTOR: &str = env!("CARGO_BIN_EXE_forebay-actor");

/// Frames and slabs.
const MEMORY: u64 = 320 << 20;

const SIZES: std::ops::Range<usize> = 90_000..110_000;

/// A shard of more than one part.
const SAMPLES: u64 = 120;

/// Ways to stores that keep the checksums that objects were uploaded with.
const VOUCHING: [&str; 1] = ["s3 on moto"];

/// Jobs that want the same at once.
const JOBS: usize = 8;

/// A daemon as an admin installs it, on a cache of its own.
struct Node {
    installation: Installation,
    daemon: Option<Installed>,
    disk: TempDir,
}

impl Node {
    fn start(way: &Way) -> Self {
        let disk = Daemon::disk();
        let tier = format!(
            "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GB'\n{}",
            disk.path().join("cache"),
            way.rule,
        );
        let mut installation = Installation::new(ACTOR, disk.path(), MEMORY, &tier);
        if let Some(authority) = &way.authority {
            installation = installation.with("SSL_CERT_FILE", authority.clone());
        }
        let daemon = Some(installation.start());
        Self { installation, daemon, disk }
    }

    fn restart(&mut self) {
        self.daemon.take().unwrap().stop();
        self.daemon = Some(self.installation.start());
    }

    fn play(&self, way: &Way, keys: &[&str]) -> Result<Epoch> {
        let urls = keys.iter().map(|key| way.url(key)).collect();
        epoch(self.address(), job_with(way.environment.clone(), urls))
    }

    fn address(&self) -> Address {
        Address::Unix(self.installation.socket())
    }

    fn number(&self, pointer: &str) -> u64 {
        let status = daemon_status(&self.installation.socket()).unwrap();
        status.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap()
    }

    /// Waits until so many shards are committed.
    fn whole(&self, shards: u64) {
        eventually("the shards are whole", || self.number("/cache/fills") == shards);
    }

    /// What lies on the tier of the only shard whose file's name ends like this.
    fn resting(&self, end: &str) -> Vec<u8> {
        let listed = std::fs::read_dir(self.disk.path().join("cache/shards")).unwrap();
        let files: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
        let mine = files.iter().find(|path| path.to_string_lossy().ends_with(end));
        std::fs::read(mine.unwrap_or_else(|| panic!("no {end} in {files:?}"))).unwrap()
    }
}

type Behaviour = (&'static str, fn(&Way));

/// All but the last, which takes the server away.
const BEHAVIOURS: [Behaviour; 7] = [
    ("a whole shard has its origin's bytes", whole_shards),
    ("lengths about the edges of parts", edges),
    ("a missing object", missing),
    ("a denied object", denied),
    ("a replaced object", replaced),
    ("an empty object", empty),
    ("keys with spaces, plus, percent and letters beyond ASCII", odd_keys),
];

fn all(way: Way) {
    for (name, behaviour) in BEHAVIOURS.into_iter().chain([("eight jobs", eight_jobs as fn(&Way))])
    {
        match way.except.iter().find(|(except, _)| *except == name) {
            Some((_, why)) => say(&format!("{name} does not apply to {}: {why}", way.name)),
            None => named(way.name, name, || behaviour(&way)),
        }
    }
    named(way.name, "warm use while the server is away", || warm(way));
}

/// Runs it; a panic says where.
fn named(way: &str, behaviour: &str, test: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(test)) {
        say(&format!("this failed for {way}: {behaviour}"));
        resume_unwind(panic);
    }
}

fn whole_shards(way: &Way) {
    let node = Node::start(way);
    let shards = [shard(SAMPLES, 0, &SIZES), shard(10, 1, &SIZES)];
    for (key, bytes) in ["whole/0.tar", "whole/1.tar"].into_iter().zip(&shards) {
        way.put(key, bytes);
    }
    let got = node.play(way, &["whole/0.tar", "whole/1.tar"]).unwrap();
    assert_eq!(got.errors, []);
    assert_eq!(got.samples.len() as u64, SAMPLES + 10);
    got.assert_bytes(&SIZES);
    node.whole(2);
    assert!(node.resting("0.tar") == shards[0] && node.resting("1.tar") == shards[1]);
    assert_eq!(node.number("/cache/origin_bytes"), (shards[0].len() + shards[1].len()) as u64);
    if VOUCHING.contains(&way.name) {
        assert_eq!(node.number("/sources/0/checksums/agreed"), 2);
    }
}

/// A shard of one sample and exactly so many bytes; what is no multiple of a block is padding.
fn shard_of(bytes: usize) -> Vec<u8> {
    /// A header before the member, and two blocks of zeros behind it.
    const FRAME: usize = 3 * 512;
    let member = (bytes - FRAME) / 512 * 512;
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(member as u64);
    let body = image(bytes as u64, 0, &(member..member));
    builder.append_data(&mut header, "000000.jpg", &body[..]).unwrap();
    let mut shard = builder.into_inner().unwrap();
    shard.resize(bytes, 0);
    shard
}

fn edges(way: &Way) {
    let node = Node::start(way);
    let lengths = [2048, PART_BYTES - 512, PART_BYTES, PART_BYTES + 1, PART_BYTES + 512];
    for (done, len) in (1..).zip(lengths.into_iter().chain([2 * PART_BYTES])) {
        let (key, bytes) = (format!("edge-{len}.tar"), shard_of(len));
        way.put(&key, &bytes);
        let got = node.play(way, &[&key]).unwrap();
        assert_eq!((got.samples.len(), &got.errors[..]), (1, &[][..]), "{len}");
        node.whole(done);
        assert!(node.resting(&key) == bytes, "{len} bytes differ");
    }
}

fn why(played: Result<Epoch>) -> Error {
    played.map_or_else(|error| error, |mut epoch| epoch.errors.pop().expect("an error"))
}

fn missing(way: &Way) {
    let node = Node::start(way);
    let error = why(node.play(way, &["no-such.tar"]));
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.place("url").unwrap().contains("no-such.tar"), "{error}");
    assert!(!error.to_string().contains(way.secret()), "{error}");
}

fn denied(way: &Way) {
    let refused = match &way.refused {
        Ok(refused) => refused,
        Err(why) => return say(&format!("a denied object does not apply to {}: {why}", way.name)),
    };
    let node = Node::start(way);
    way.put("k.tar", &shard(1, 0, &SIZES));
    let job = job_with(refused.environment.clone(), vec![refused.url.clone()]);
    let error = why(epoch(node.address(), job));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.place("url").unwrap().contains("k.tar"), "{error}");
    let log = node.daemon.as_ref().unwrap().log();
    for text in [error.to_string(), format!("{error:?}"), log] {
        assert!(!text.contains(way.secret()), "{text}");
    }
}

/// Of another length: where a version is a time in seconds and a length, as on most web servers, one
/// second can hold two versions that nobody tells apart.
fn replaced(way: &Way) {
    let mut node = Node::start(way);
    way.put("replaced.tar", &shard(10, 0, &SIZES));
    assert_eq!(node.play(way, &["replaced.tar"]).unwrap().samples.len(), 10);
    node.whole(1);
    way.put("replaced.tar", &shard(11, 1, &SIZES));
    // A daemon that has just started has asked nobody yet whether an object changed.
    node.restart();
    let got = node.play(way, &["replaced.tar"]).unwrap();
    assert_eq!((got.samples.len(), &got.errors[..]), (11, &[][..]));
    for (i, sample) in (0..).zip(&got.samples) {
        assert!(sample.fields["jpg"] == image(1, i, &SIZES), "sample {i} is not the new one's");
    }
}

/// There is no archive without a byte: an upload went wrong. The rest of the job is served.
fn empty(way: &Way) {
    let node = Node::start(way);
    way.put("empty.tar", &[]);
    way.put("after.tar", &shard(3, 1, &SIZES));
    let got = node.play(way, &["empty.tar", "after.tar"]).unwrap();
    assert_eq!(got.samples.len(), 3);
    got.assert_bytes(&SIZES);
    let [error] = &got.errors[..] else { panic!("{:?}", got.errors) };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.place("url").unwrap().contains("empty.tar"), "{error}");
    assert!(!error.to_string().contains(way.secret()), "{error}");
}

fn odd_keys(way: &Way) {
    let node = Node::start(way);
    let keys =
        ["a b/c d.tar", "plus+and&more=.tar", "percent%41.tar", "größe/日本.tar", "(x)'!*.tar"];
    for (done, key) in (1..).zip(keys) {
        way.put(key, &shard(3, 0, &SIZES));
        named(way.name, key, || {
            let got = node.play(way, &[key]).unwrap();
            got.assert_whole(1, 3, &SIZES);
            node.whole(done);
        });
    }
}

fn eight_jobs(way: &Way) {
    let node = Node::start(way);
    let keys = ["eight/0.tar", "eight/1.tar", "eight/2.tar"];
    let mut bytes = 0;
    for (seed, key) in (0..).zip(keys) {
        let shard = shard(SAMPLES, seed, &SIZES);
        bytes += shard.len() as u64;
        way.put(key, &shard);
    }
    let urls: Vec<String> = keys.iter().map(|key| way.url(key)).collect();
    let open = job_with(way.environment.clone(), urls);
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            let (address, open) = (node.address(), open.clone());
            scope.spawn(move || epoch(address, open).unwrap().assert_whole(3, SAMPLES, &SIZES));
        }
    });
    node.whole(3);
    assert_eq!(node.number("/cache/origin_bytes"), bytes);
}

fn warm(way: Way) {
    let node = Node::start(&way);
    way.put("warm.tar", &shard(SAMPLES, 0, &SIZES));
    node.play(&way, &["warm.tar"]).unwrap().assert_whole(1, SAMPLES, &SIZES);
    node.whole(1);
    let open = job_with(way.environment.clone(), vec![way.url("warm.tar")]);
    way.go_away();
    epoch(node.address(), open).unwrap().assert_whole(1, SAMPLES, &SIZES);
}

#[test]
fn s3_on_s3s() {
    all(Way::s3s().unwrap());
}

#[test]
fn s3_on_moto() {
    all(Way::moto().unwrap());
}

#[test]
fn s3_on_nginx() {
    all(Way::s3_on_nginx().unwrap());
}

#[test]
fn http_on_nginx() {
    all(Way::http().unwrap());
}

#[test]
fn https_on_nginx() {
    all(Way::https().unwrap());
}

#[test]
fn file_on_a_disk() {
    all(Way::disk().unwrap());
}

#[test]
fn command_output() {
    all(Way::command().unwrap());
}

#[test]
fn s3_and_file_on_ceph() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let (files, gateway, thaw) = Way::ceph().unwrap();
    all(files);
    thaw();
    all(gateway);
}

#[test]
fn az_on_azurite() {
    all(Way::azurite().unwrap());
}

#[test]
fn gs_on_moto() {
    all(Way::gs_on_moto().unwrap());
}

#[test]
fn hf_on_nginx() {
    all(Way::hub().unwrap());
}
