//! Bad networks and bad stores: whatever happens on the way, every byte is right or an error says
//! what is wrong, in bounded time, and counts tell what it took.
//!
//! Each fault is made at a known request and byte, over S3 and over HTTP, and is judged by what a
//! trainer gets and by what passed the proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crc_fast::CrcAlgorithm;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Checksums, Limits, Options};
use forebay_store::PART_BYTES;
use forebay_testkit::{
    Certificate, Fault, FaultProxy, Nginx, Random, RetryAfter, Traffic, When, image, label, say,
    shard,
};
use forebay_tests::{Daemon, Epoch, Installation, Origin, epoch, job_with};
use hyper::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 90_000..110_000;

/// A shard of a few parts, the last of them a short one.
const SAMPLES: u64 = 280;

/// A byte of the second part.
const MIDDLE: u64 = (PART_BYTES + PART_BYTES / 2) as u64;

/// Times a request is repeated: fewer than by default, so that a test ends sooner.
const RETRIES: usize = 3;

/// A silence that is soon over, for connections that are meant to be silent. A busy machine may be
/// silent as long by chance.
const SILENCE: Duration = Duration::from_secs(1);

/// A silence of no connection that is not meant to be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(600);

/// Result of a fault.
struct Met {
    scheme: &'static str,
    played: Result<Epoch>,
    traffic: Traffic,
    /// Bytes of the shard.
    len: u64,
    /// Bytes that the store counts as fetched,
    fetched: u64,
    /// and requests as made again.
    retries: u64,
    /// Bytes of complete shards on the tier.
    resting: Vec<Vec<u8>>,
    /// Results of checksum comparisons.
    checksums: Checksums,
}

/// Plays a shard under these faults, over either scheme.
fn meet(faults: impl Fn(&Origin) -> Vec<(When, Fault)>) -> [Met; 2] {
    // What is asked for twice by chance would be counted.
    meet_with(&Limits { read_timeout: PATIENCE, late: NEVER, ..Limits::default() }, faults)
}

/// The same with connections that are silent.
fn meet_silent(faults: impl Fn(&Origin) -> Vec<(When, Fault)>) -> [Met; 2] {
    meet_with(&Limits { read_timeout: SILENCE, late: NEVER, ..Limits::default() }, faults)
}

/// The same under these limits.
fn meet_with(limits: &Limits, faults: impl Fn(&Origin) -> Vec<(When, Fault)>) -> [Met; 2] {
    ["s3", "http"].map(|scheme| {
        let origin = Origin::with_shards(1, SAMPLES, &SIZES);
        let proxy = FaultProxy::start(origin.server.address()).unwrap();
        let disk = Daemon::disk();
        let mut config = Daemon::config(disk.path(), 1 << 30);
        config.limits = Limits { retries: RETRIES, ..limits.clone() };
        let daemon = Daemon::try_start(config).unwrap();
        let (environment, url) = match scheme {
            "s3" => (environment(&origin, proxy.address()), Origin::url("0.tar")),
            _ => (BTreeMap::new(), format!("{}/{}", proxy.endpoint(), Origin::key("0.tar"))),
        };
        proxy.set(faults(&origin));
        let played = epoch(daemon.address(), job_with(environment, vec![url]));
        daemon.settle();
        let met = Met {
            scheme,
            played,
            traffic: proxy.traffic(),
            len: origin.bytes("0.tar").len() as u64,
            fetched: daemon.number("/cache/origin_bytes"),
            retries: daemon.number("/sources/0/retries"),
            resting: resting(&daemon),
            checksums: checksums(&daemon),
        };
        say(&format!("{scheme}: {:?} {:?}", met.why(), met.traffic));
        met
    })
}

fn checksums(daemon: &Daemon) -> Checksums {
    let status = daemon.status();
    let found = status.pointer("/sources/0/checksums").cloned().unwrap_or_default();
    serde_json::from_value(found).unwrap()
}

/// The data of shards that have a sidecar.
fn resting(daemon: &Daemon) -> Vec<Vec<u8>> {
    let files = daemon.files();
    let is_whole =
        |path: &&PathBuf| files.contains(&PathBuf::from(format!("{}.idx", path.display())));
    files.iter().filter(is_whole).map(|path| std::fs::read(path).unwrap()).collect()
}

fn environment(origin: &Origin, proxy: SocketAddr) -> BTreeMap<String, String> {
    let endpoint = format!("http://{proxy}");
    Options::from(origin.environment()).with("AWS_ENDPOINT_URL", &endpoint).into_map()
}

impl Met {
    /// The error that the job ended with, or that its only shard was given up for.
    fn why(&self) -> Option<&Error> {
        match &self.played {
            Ok(epoch) => epoch.errors.last(),
            Err(error) => Some(error),
        }
    }

    /// All came, and right.
    fn assert_whole(&self) -> &Self {
        let epoch = self.played.as_ref().unwrap_or_else(|error| panic!("{}: {error}", self.scheme));
        epoch.assert_whole(1, SAMPLES, &SIZES);
        assert!(self.traffic.faults > 0, "{}: no fault met a request", self.scheme);
        assert_eq!(self.fetched, self.len, "{}", self.scheme);
        self
    }

    /// It ended with such an error, which names the shard; what came before it is right.
    fn assert_refused(&self, kind: ErrorKind) -> &Self {
        if let Ok(epoch) = &self.played {
            epoch.assert_bytes(&SIZES);
            assert!((epoch.samples.len() as u64) < SAMPLES, "{}: all came", self.scheme);
        }
        let error = self.why().unwrap_or_else(|| panic!("{}: it did not fail", self.scheme));
        assert_eq!(error.kind(), kind, "{}: {error}", self.scheme);
        assert!(error.place("url").is_some_and(|url| url.ends_with("0.tar")), "{error}");
        assert!(!error.to_string().contains("made by a test"), "a body is repeated: {error}");
        self
    }

    /// No more passed than the shard, and what breaks at this many places cost.
    fn assert_passed(&self, at_most: u64) {
        let passed = self.traffic.all_bytes();
        assert!((self.len..=at_most).contains(&passed), "{}: {passed} bytes passed", self.scheme);
    }
}

#[test]
fn slow_network_delivers_everything() {
    let by = Duration::from_millis(20);
    for met in meet(|_| {
        vec![(When::any(), Fault::Delay(by)), (When::any(), Fault::Jitter(by, Random::new(1)))]
    }) {
        met.assert_whole().assert_passed(met.len);
    }
}

#[test]
fn truncated_body_continues_at_its_byte() {
    for at in [0, 1, 100_000] {
        for met in meet(|_| vec![(When::get().covering(MIDDLE).times(2), Fault::Cut(at))]) {
            // What a broken connection had under way is asked for again, and nothing else is.
            met.assert_whole().assert_passed(met.len + 2 * at);
            assert_eq!(met.traffic.faults, 2);
        }
    }
}

#[test]
fn reset_connection_refetches_requests_in_flight() {
    for met in meet(|_| {
        vec![
            (When::get().covering(0).times(1), Fault::ResetBeforeHead),
            (When::get().covering(MIDDLE).times(1), Fault::Reset(3_000_000)),
            (When::head().times(1), Fault::ResetBeforeHead),
        ]
    }) {
        // Bytes that the kernel held when the connection was reset are lost.
        met.assert_whole().assert_passed(met.len + 3_000_000);
    }
}

#[test]
fn silent_connection_is_abandoned() {
    for fault in [Fault::StallBeforeHead, Fault::Stall(0), Fault::Stall(1_000_000)] {
        let once = |_: &Origin| vec![(When::get().covering(MIDDLE).times(1), fault.clone())];
        for met in meet_silent(once) {
            met.assert_whole().assert_passed(met.len + 1_000_000);
            assert_eq!(met.traffic.faults, 1);
        }
    }
}

#[test]
fn silent_store_is_unavailable() {
    for fault in [Fault::StallBeforeHead, Fault::Stall(1000)] {
        for met in meet_silent(|_| vec![(When::get(), fault.clone())]) {
            met.assert_refused(ErrorKind::Unavailable);
        }
    }
}

#[test]
fn burst_of_errors_is_retried() {
    for status in [429, 500, 502, 503, 504] {
        for met in meet(|_| {
            vec![
                (When::head().times(2), Fault::status(status)),
                (When::get().covering(0).times(2), Fault::status(status)),
                (When::get().covering(MIDDLE).times(2), Fault::status(status)),
            ]
        }) {
            met.assert_whole().assert_passed(met.len);
            assert!(met.traffic.answered("GET", status) >= 4, "{:?}", met.traffic);
        }
    }
}

#[test]
fn share_of_errors_is_retried() {
    for met in meet(|_| vec![(When::any().share(300, 5), Fault::status(503))]) {
        met.assert_whole().assert_passed(met.len);
    }
}

#[test]
fn endless_server_errors_end_within_the_retries() {
    for status in [500, 503] {
        assert_told_within_the_retries(status);
    }
}

#[test]
fn endless_throttling_ends_within_the_retries() {
    assert_told_within_the_retries(429);
}

fn assert_told_within_the_retries(status: u16) {
    for met in meet(|_| vec![(When::any(), Fault::status(status))]) {
        let why = met.assert_refused(ErrorKind::Unavailable).why().unwrap();
        assert_eq!(why.place("status"), Some(&*status.to_string()), "{why}");
        // The first request was repeated, and nothing else was asked.
        assert_eq!(met.traffic.requests, 1 + RETRIES as u64, "{:?}", met.traffic);
    }
}

#[test]
fn retry_after_is_honoured() {
    for when in [RetryAfter::Seconds(1), RetryAfter::Date(2)] {
        for met in meet(|_| vec![(When::get().times(1), Fault::busy(503, when))]) {
            met.assert_whole().assert_passed(met.len);
        }
    }
}

/// A store may not hold a job for an hour.
#[test]
fn long_retry_after_is_not_waited_for() {
    for when in [RetryAfter::Seconds(3600), RetryAfter::Date(3600)] {
        for met in meet(|_| vec![(When::get().times(1), Fault::busy(503, when))]) {
            if met.played.is_ok() {
                met.assert_whole();
            } else {
                met.assert_refused(ErrorKind::Unavailable);
            }
        }
    }
}

#[test]
fn rejection_in_mid_shard_is_reported_by_kind() {
    for (status, kind) in [
        (403, ErrorKind::PermissionDenied),
        (404, ErrorKind::NotFound),
        (416, ErrorKind::Unavailable),
    ] {
        for met in meet(|_| vec![(When::get().covering(MIDDLE), Fault::status(status))]) {
            met.assert_refused(kind);
            // Not by its request: a batch that had located samples may ask for the whole shard once
            // more.
            assert_eq!(met.retries, 0, "an answer is not asked for again");
            assert!(met.traffic.answered("GET", status) >= 1, "{:?}", met.traffic);
        }
    }
}

#[test]
fn expired_credentials_in_mid_shard_are_reported() {
    for met in meet(|_| vec![(When::get().after(2), Fault::expired())]) {
        let why = met.assert_refused(ErrorKind::PermissionDenied).why().unwrap();
        assert_eq!(why.place("code"), Some("ExpiredToken"), "{why}");
    }
}

#[test]
fn answers_of_another_range_are_never_used() {
    for fault in [Fault::shifted_range(512), Fault::longer_total(512)] {
        for met in meet(|_| vec![(When::get().covering(MIDDLE), fault.clone())]) {
            met.assert_refused(met.why().unwrap().kind());
            let kind = met.why().unwrap().kind();
            assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Invalid), "{kind:?}");
        }
    }
}

#[test]
fn one_answer_of_another_range_is_requested_again() {
    let shifted = || (When::get().covering(MIDDLE).times(1), Fault::shifted_range(512));
    for met in meet(|_| vec![shifted()]) {
        met.assert_whole();
    }
}

#[test]
fn body_shorter_than_its_length_continues() {
    for met in meet(|_| {
        let longer = (When::get().covering(MIDDLE).times(1), Fault::wrong_length(1000));
        let shorter = (When::get().covering(0).times(1), Fault::wrong_length(-1000));
        vec![longer, shorter]
    }) {
        if met.played.is_ok() {
            met.assert_whole();
        } else {
            met.assert_refused(ErrorKind::Unavailable);
        }
    }
}

#[test]
fn missing_content_length_is_tolerated() {
    for met in meet(|_| vec![(When::get(), Fault::no_header(CONTENT_LENGTH))]) {
        met.assert_whole().assert_passed(met.len);
    }
}

/// An answer of another version is never mixed with the first one's bytes, whatever its headers.
#[test]
fn answer_of_another_version_is_never_mixed_in() {
    let other = || (When::get().covering(MIDDLE), Fault::header(ETAG, "\"another\""));
    for met in meet(|_| vec![other()]) {
        met.assert_refused(ErrorKind::Unavailable);
        let why = met.why().unwrap();
        assert_eq!(why.place("reason"), Some("changed"), "{why}");
    }
}

#[test]
fn weak_etags_suffice_while_nothing_changes() {
    let modified = || Fault::header(LAST_MODIFIED, "Sat, 01 Jan 2022 00:00:00 GMT");
    for met in meet(|_| vec![(When::any(), Fault::weak_etag()), (When::any(), modified())]) {
        met.assert_whole().assert_passed(met.len);
    }
    for met in meet(|_| vec![(When::any(), Fault::no_header(ETAG)), (When::any(), modified())]) {
        met.assert_whole().assert_passed(met.len);
    }
}

#[test]
fn object_without_a_version_is_one_request() {
    let none = |name| (When::any(), Fault::no_header(name));
    for met in meet(|_| vec![none(ETAG), none(LAST_MODIFIED)]) {
        met.assert_whole();
        // A part tells that there is none; all that is used comes in one answer.
        assert_eq!(met.traffic.answered("GET", 200), 1, "{:?}", met.traffic);
        assert!(met.traffic.answered("GET", 206) <= 1, "{:?}", met.traffic);
    }
}

/// A sample is of one version, and so is the copy that is kept.
#[test]
fn object_replaced_in_mid_read_is_never_mixed() {
    let versions = [0, 9].map(|seed| shard(SAMPLES, seed, &SIZES));
    for at in [0, 1_000_000] {
        for met in meet(|origin| {
            let (path, new) = (origin.path("0.tar"), versions[1].clone());
            let replace: Arc<dyn Fn() + Send + Sync> = Arc::new(move || put(&path, &new));
            vec![(When::get().after(1).times(1), Fault::CallAt(at, replace))]
        }) {
            if let Some(error) = met.why() {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            for sample in met.played.iter().flat_map(|epoch| &epoch.samples) {
                let i = sample.key.parse().unwrap();
                let is_of = |seed| {
                    sample.fields["jpg"] == image(seed, i, &SIZES)
                        && sample.fields["cls"] == label(seed, i).as_bytes()
                };
                assert!(is_of(0) || is_of(9), "{}: sample {i} is of neither", met.scheme);
            }
            let is_one = |copy| versions.iter().any(|version| version == copy);
            assert!(met.resting.iter().all(is_one), "{}: versions are mixed", met.scheme);
        }
    }
}

fn put(path: &Path, bytes: &[u8]) {
    let aside = path.with_extension("aside");
    std::fs::write(&aside, bytes).unwrap();
    std::fs::rename(aside, path).unwrap();
}

/// Makes the store report an object's checksum.
fn with_checksum(origin: &Origin) -> (When, Fault) {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &origin.bytes("0.tar"));
    (When::head(), Fault::crc64_nvme(sum))
}

/// A bit within an image, which no tar's own checksum covers.
#[test]
fn bytes_changed_in_transit_are_detected() {
    let garbled = || (When::get().covering(MIDDLE).times(1), Fault::Garble(50_000));
    let [s3, http] = meet(|origin| vec![with_checksum(origin), garbled()]);
    // Who reads it when that shows is told; who comes back to it later has it fetched anew.
    if let Some(error) = s3.why() {
        assert_eq!(
            (error.kind(), error.place("checksum")),
            (ErrorKind::Corrupt, Some("CRC64NVME"))
        );
        assert!(error.place("url").is_some_and(|url| url.ends_with("0.tar")), "{error}");
    }
    let right = shard(SAMPLES, 0, &SIZES);
    assert!(s3.resting.iter().all(|resting| *resting == right), "wrong bytes are kept");
    assert_eq!(s3.checksums.differed, 1);
    assert_eq!(s3.checksums.agreed, s3.resting.len() as u64);
    // A web server sends no checksum.
    assert_eq!((http.checksums.agreed, http.checksums.differed), (0, 0));
    assert!(http.resting.len() == 1 && http.resting[0] != right);
    let [right, _] = meet(|origin| vec![with_checksum(origin)]);
    right.assert_whole();
    assert_eq!((right.checksums.agreed, right.checksums.differed), (1, 0));
}

#[test]
fn slow_part_is_requested_twice() {
    // Nothing but a second request can end this in time.
    let limits = Limits { read_timeout: NEVER, ..Limits::default() };
    for met in meet_with(&limits, |_| {
        vec![(When::get().covering(MIDDLE).times(1), Fault::StallBeforeHead)]
    }) {
        met.assert_whole();
    }
}

#[test]
fn server_gone_in_mid_shard_is_reported() {
    let mut origin = Some(Origin::with_shards(1, SAMPLES, &SIZES));
    let address = origin.as_ref().unwrap().server.address();
    let proxy = FaultProxy::start(address).unwrap();
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.limits = Limits { retries: RETRIES, read_timeout: SILENCE, ..Limits::default() };
    let daemon = Daemon::try_start(config).unwrap();
    proxy.set([(When::get(), Fault::StallBeforeHead)]);
    let url = format!("{}/{}", proxy.endpoint(), Origin::key("0.tar"));
    std::thread::scope(|scope| {
        let job = scope.spawn(|| epoch(daemon.address(), job_with(BTreeMap::new(), vec![url])));
        proxy.wait_until(|traffic| traffic.stalled > 0);
        drop(origin.take());
        proxy.clear();
        let error = job.join().unwrap().map_or_else(|e| e, |mut epoch| epoch.errors.pop().unwrap());
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn bad_certificates_are_rejected() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bucket")).unwrap();
    std::fs::write(root.path().join("bucket/0.tar"), shard(3, 0, &SIZES)).unwrap();
    for (certificate, check) in [
        (Certificate::Good, None),
        (Certificate::Expired, Some("expiry")),
        (Certificate::WrongName, Some("name")),
        (Certificate::SelfSigned, Some("authority")),
    ] {
        let nginx = Nginx::with(root.path(), certificate).unwrap();
        let disk = Daemon::disk();
        let cache = disk.path().join("cache");
        let tier = format!(
            "[[tier]]\nname = 'nvme'\npath = {cache:?}\ncapacity = '1GB'\n\
             [[source]]\nmatch = '{}/'\n",
            nginx.https(),
        );
        let installation = Installation::new(ACTOR, disk.path(), 320 << 20, &tier)
            .with("SSL_CERT_FILE", nginx.authority());
        let daemon = installation.start();
        let url = format!("{}/bucket/0.tar", nginx.https());
        let socket = installation.socket();
        let played =
            epoch(forebay_client::Address::Unix(socket), job_with(BTreeMap::new(), vec![url]));
        match played {
            Ok(epoch) => {
                assert_eq!(check, None);
                epoch.assert_whole(1, 3, &SIZES);
            }
            Err(error) => {
                say(&format!("{certificate:?}: {error}"));
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert_eq!(error.place("check"), check, "{error}");
                assert!(check.is_some() && error.advice().is_some(), "{error}");
            }
        }
        daemon.stop();
    }
}
