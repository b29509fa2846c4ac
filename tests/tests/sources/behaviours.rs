//! One list of behaviours, the same over every way to shards, each against a real server.
//!
//! A way that cannot show a behaviour says so here, with the reason; anything else that is not
//! shown is a failure, a server that is not installed too.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use forebay_client::Address;
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::PART_BYTES;
use forebay_testkit::{Ceph, image, say, shard, skip};
use forebay_tests::{
    Daemon, Epoch, Installation, Installed, TestSource, daemon_status, epoch, eventually, job_with,
};
use tempfile::TempDir;

use crate::ACTOR;

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
    fn start(source: &TestSource) -> Self {
        let disk = Daemon::disk();
        let tier = format!(
            "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GB'\n{}",
            disk.path().join("cache"),
            source.rule,
        );
        let mut installation = Installation::new(ACTOR, disk.path(), MEMORY, &tier);
        if let Some(authority) = &source.authority {
            installation = installation.with("SSL_CERT_FILE", authority.clone());
        }
        let daemon = Some(installation.start());
        Self { installation, daemon, disk }
    }

    fn restart(&mut self) {
        self.daemon.take().unwrap().stop();
        self.daemon = Some(self.installation.start());
    }

    fn play(&self, source: &TestSource, keys: &[&str]) -> Result<Epoch> {
        let urls = keys.iter().map(|key| source.url(key)).collect();
        epoch(self.address(), job_with(source.environment.clone(), urls))
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

    /// Returns the bytes on the tier of the only shard whose file's name ends like this.
    fn resting(&self, end: &str) -> Vec<u8> {
        let listed = std::fs::read_dir(self.disk.path().join("cache/shards")).unwrap();
        let files: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
        let mine = files.iter().find(|path| path.to_string_lossy().ends_with(end));
        std::fs::read(mine.unwrap_or_else(|| panic!("no {end} in {files:?}"))).unwrap()
    }
}

type Behaviour = (&'static str, fn(&TestSource));

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

fn all(source: TestSource) {
    for (name, behaviour) in
        BEHAVIOURS.into_iter().chain([("eight jobs", eight_jobs as fn(&TestSource))])
    {
        match source.except.iter().find(|(except, _)| *except == name) {
            Some((_, why)) => say(&format!("{name} does not apply to {}: {why}", source.name)),
            None => named(source.name, name, || behaviour(&source)),
        }
    }
    named(source.name, "warm use while the server is away", || warm(source));
}

/// Runs it; a panic says where.
fn named(source: &str, behaviour: &str, test: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(test)) {
        say(&format!("this failed for {source}: {behaviour}"));
        resume_unwind(panic);
    }
}

fn whole_shards(source: &TestSource) {
    let node = Node::start(source);
    let shards = [shard(SAMPLES, 0, &SIZES), shard(10, 1, &SIZES)];
    for (key, bytes) in ["whole/0.tar", "whole/1.tar"].into_iter().zip(&shards) {
        source.put(key, bytes);
    }
    let got = node.play(source, &["whole/0.tar", "whole/1.tar"]).unwrap();
    assert_eq!(got.errors, []);
    assert_eq!(got.samples.len() as u64, SAMPLES + 10);
    got.assert_bytes(&SIZES);
    node.whole(2);
    assert!(node.resting("0.tar") == shards[0] && node.resting("1.tar") == shards[1]);
    assert_eq!(node.number("/cache/origin_bytes"), (shards[0].len() + shards[1].len()) as u64);
    if VOUCHING.contains(&source.name) {
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

fn edges(source: &TestSource) {
    let node = Node::start(source);
    let lengths = [2048, PART_BYTES - 512, PART_BYTES, PART_BYTES + 1, PART_BYTES + 512];
    for (done, len) in (1..).zip(lengths.into_iter().chain([2 * PART_BYTES])) {
        let (key, bytes) = (format!("edge-{len}.tar"), shard_of(len));
        source.put(&key, &bytes);
        let got = node.play(source, &[&key]).unwrap();
        assert_eq!((got.samples.len(), &got.errors[..]), (1, &[][..]), "{len}");
        node.whole(done);
        assert!(node.resting(&key) == bytes, "{len} bytes differ");
    }
}

fn why(played: Result<Epoch>) -> Error {
    played.map_or_else(|error| error, |mut epoch| epoch.errors.pop().expect("an error"))
}

fn missing(source: &TestSource) {
    let node = Node::start(source);
    let error = why(node.play(source, &["no-such.tar"]));
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.place("url").unwrap().contains("no-such.tar"), "{error}");
    assert!(!error.to_string().contains(source.secret()), "{error}");
}

fn denied(source: &TestSource) {
    let denied = match &source.denied {
        Ok(denied) => denied,
        Err(why) => {
            return say(&format!("a denied object does not apply to {}: {why}", source.name));
        }
    };
    let node = Node::start(source);
    source.put("k.tar", &shard(1, 0, &SIZES));
    let job = job_with(denied.environment.clone(), vec![denied.url.clone()]);
    let error = why(epoch(node.address(), job));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.place("url").unwrap().contains("k.tar"), "{error}");
    let log = node.daemon.as_ref().unwrap().log();
    for text in [error.to_string(), format!("{error:?}"), log] {
        assert!(!text.contains(source.secret()), "{text}");
    }
}

/// Replaces the object by one of another length: a version of a time in seconds and a length, as on
/// most web servers, cannot tell two versions of one second apart.
fn replaced(source: &TestSource) {
    let mut node = Node::start(source);
    source.put("replaced.tar", &shard(10, 0, &SIZES));
    assert_eq!(node.play(source, &["replaced.tar"]).unwrap().samples.len(), 10);
    node.whole(1);
    source.put("replaced.tar", &shard(11, 1, &SIZES));
    // A daemon that has just started has asked nobody yet whether an object changed.
    node.restart();
    let got = node.play(source, &["replaced.tar"]).unwrap();
    assert_eq!((got.samples.len(), &got.errors[..]), (11, &[][..]));
    for (i, sample) in (0..).zip(&got.samples) {
        assert!(sample.fields["jpg"] == image(1, i, &SIZES), "sample {i} is not the new one's");
    }
}

/// There is no archive without a byte: an upload went wrong. The rest of the job is served.
fn empty(source: &TestSource) {
    let node = Node::start(source);
    source.put("empty.tar", &[]);
    source.put("after.tar", &shard(3, 1, &SIZES));
    let got = node.play(source, &["empty.tar", "after.tar"]).unwrap();
    assert_eq!(got.samples.len(), 3);
    got.assert_bytes(&SIZES);
    let [error] = &got.errors[..] else { panic!("{:?}", got.errors) };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.place("url").unwrap().contains("empty.tar"), "{error}");
    assert!(!error.to_string().contains(source.secret()), "{error}");
}

fn odd_keys(source: &TestSource) {
    let node = Node::start(source);
    let keys =
        ["a b/c d.tar", "plus+and&more=.tar", "percent%41.tar", "größe/日本.tar", "(x)'!*.tar"];
    for (done, key) in (1..).zip(keys) {
        source.put(key, &shard(3, 0, &SIZES));
        named(source.name, key, || {
            let got = node.play(source, &[key]).unwrap();
            got.assert_whole(1, 3, &SIZES);
            node.whole(done);
        });
    }
}

fn eight_jobs(source: &TestSource) {
    let node = Node::start(source);
    let keys = ["eight/0.tar", "eight/1.tar", "eight/2.tar"];
    let mut bytes = 0;
    for (seed, key) in (0..).zip(keys) {
        let shard = shard(SAMPLES, seed, &SIZES);
        bytes += shard.len() as u64;
        source.put(key, &shard);
    }
    let urls: Vec<String> = keys.iter().map(|key| source.url(key)).collect();
    let open = job_with(source.environment.clone(), urls);
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            let (address, open) = (node.address(), open.clone());
            scope.spawn(move || epoch(address, open).unwrap().assert_whole(3, SAMPLES, &SIZES));
        }
    });
    node.whole(3);
    assert_eq!(node.number("/cache/origin_bytes"), bytes);
}

fn warm(source: TestSource) {
    let node = Node::start(&source);
    source.put("warm.tar", &shard(SAMPLES, 0, &SIZES));
    node.play(&source, &["warm.tar"]).unwrap().assert_whole(1, SAMPLES, &SIZES);
    node.whole(1);
    let open = job_with(source.environment.clone(), vec![source.url("warm.tar")]);
    source.stop();
    epoch(node.address(), open).unwrap().assert_whole(1, SAMPLES, &SIZES);
}

#[test]
fn s3_on_s3s() {
    all(TestSource::s3s().unwrap());
}

#[test]
fn s3_on_moto() {
    all(TestSource::moto().unwrap());
}

#[test]
fn s3_on_nginx() {
    all(TestSource::s3_on_nginx().unwrap());
}

#[test]
fn http_on_nginx() {
    all(TestSource::http().unwrap());
}

#[test]
fn https_on_nginx() {
    all(TestSource::https().unwrap());
}

#[test]
fn file_on_a_disk() {
    all(TestSource::disk().unwrap());
}

#[test]
fn command_output() {
    all(TestSource::command().unwrap());
}

#[test]
fn s3_and_file_on_ceph() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let (files, gateway, thaw) = TestSource::ceph().unwrap();
    all(files);
    thaw();
    all(gateway);
}

#[test]
fn az_on_azurite() {
    all(TestSource::azurite().unwrap());
}

#[test]
fn gs_on_moto() {
    all(TestSource::gs_on_moto().unwrap());
}

#[test]
fn hf_on_nginx() {
    all(TestSource::hub().unwrap());
}
