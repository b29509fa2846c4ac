//! Faults beside the bytes of shards, through a whole daemon: listings that change, certificates,
//! names, credentials.
//!
//! Each ends with everything right, or with an error of its kind within the retries; and what it
//! took is counted where an operator looks.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Connection, Deadline, Loader, Next};
use forebay_error::ErrorKind;
use forebay_source::{Limits, Options, Rule, Rules};
use forebay_store::PART_BYTES;
use forebay_testkit::{ACCESS_KEY, Certificate, Fault, FaultProxy, Nginx, SECRET_KEY, When, shard};
use forebay_tests::{Daemon, Installation, Origin, PATIENCE, config, epoch, job_with, next, rest};
use forebay_wire::message::Begin;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 90_000..110_000;

/// A shard of a few parts.
const SAMPLES: u64 = 120;

/// Times a request is repeated.
const RETRIES: usize = 2;

/// Time limit of a job that is to reach it after its first batch.
const WAITED: Duration = Duration::from_secs(3);

/// Delay of an answer: longer than it takes a busy machine to start a job.
const LATE: Duration = Duration::from_millis(500);

/// Three pages of a thousand names.
const NAMES: usize = 2_500;

fn daemon(disk: &tempfile::TempDir) -> Daemon {
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.limits = Limits { retries: RETRIES, ..config.limits };
    Daemon::try_start(config).unwrap()
}

/// The daemon's count of its only source.
fn counted(daemon: &Daemon, what: &str) -> u64 {
    daemon.number(&format!("/sources/0/{what}"))
}

#[test]
fn listing_changed_between_pages_keeps_stable_objects() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    fs::create_dir(origin.path("many")).unwrap();
    let put = |name: &str| fs::write(origin.path(&format!("many/{name}.tar")), b"x").unwrap();
    (0..NAMES).for_each(|n| put(&format!("{n:05}")));
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let daemon = daemon(&disk);
    let environment = Options::from(origin.environment());
    let environment = environment.with("AWS_ENDPOINT_URL", &proxy.endpoint()).into_map();
    let list = || {
        let deadline = Deadline::after(PATIENCE);
        let connection = Connection::open(daemon.socket(), &deadline).unwrap();
        connection.list("s3://bucket/many/*.tar", environment.clone(), &deadline)
    };
    let folder = origin.path("many");
    let change: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        // Behind and before where the first page ended.
        for n in 1_200..1_300 {
            fs::remove_file(folder.join(format!("{n:05}.tar"))).unwrap();
        }
        for name in ["00000-new", "02000-new"] {
            fs::write(folder.join(format!("{name}.tar")), b"x").unwrap();
        }
    });
    let later = || When::get().of("continuation-token");
    proxy.set([
        (later().times(1), Fault::Call(change)),
        // A page that is refused is asked for again, and no other.
        (later().after(1).times(1), Fault::status(503)),
    ]);
    let (listed, left_out) = list().unwrap();
    assert!(left_out.is_empty());
    assert!(listed.is_sorted_by(|one, other| one < other), "each once, in order");
    let stays = (0..NAMES).filter(|n| !(1_200..1_300).contains(n));
    for n in stays {
        let url = Origin::url(&format!("many/{n:05}.tar"));
        assert!(listed.binary_search(&url).is_ok(), "{url} is missing");
    }
    assert_eq!(proxy.traffic().faults, 2);
    assert_eq!(counted(&daemon, "retries"), 1);
    // One that is refused for good is an error, not a shorter list.
    proxy.set([(later(), Fault::status(403))]);
    let error = list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    proxy.set([(later(), Fault::status(503))]);
    let error = list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(counted(&daemon, "retries"), 1 + RETRIES as u64);
}

/// A program lends credentials that the store calls expired in the middle of a shard, fresh as they
/// are: whoever lent them is not asked again for each request, and the job is told.
#[test]
fn fresh_credentials_called_expired_are_reported() {
    let (origin, disk, home) =
        (Origin::with_shards(1, SAMPLES, &SIZES), Daemon::disk(), Daemon::disk());
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let (program, asked, config) =
        (home.path().join("lend"), home.path().join("asked"), home.path().join("config"));
    let lent = format!(
        "{{\"Version\":1,\"AccessKeyId\":\"{ACCESS_KEY}\",\"SecretAccessKey\":\"{SECRET_KEY}\",\
         \"Expiration\":\"2100-01-01T00:00:00Z\"}}"
    );
    let script = format!("#!/bin/sh\necho asked >> {}\necho '{lent}'\n", asked.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let profile = format!("[profile train]\ncredential_process = {}\n", program.display());
    fs::write(&config, profile).unwrap();
    let environment = Options::default()
        .with("AWS_ENDPOINT_URL", &proxy.endpoint())
        .with("AWS_REGION", "us-east-1")
        .with("AWS_PROFILE", "train")
        .with("AWS_CONFIG_FILE", config.to_str().unwrap())
        .with("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .into_map();
    let daemon = daemon(&disk);
    let middle = (PART_BYTES + PART_BYTES / 2) as u64;
    // Three want the shard: what fetches ahead, what waits for the first batch's samples, and
    // whoever gathers them. A slow answer lets them share a request.
    let rule = || When::get().covering(middle);
    proxy.set([(rule(), Fault::Delay(LATE)), (rule(), Fault::expired())]);
    let played = epoch(daemon.address(), job_with(environment, vec![Origin::url("0.tar")]));
    let error = played.map_or_else(|error| error, |mut epoch| epoch.errors.pop().unwrap());
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert_eq!(error.place("code"), Some("ExpiredToken"), "{error}");
    assert_eq!(fs::read_to_string(&asked).unwrap().lines().count(), 1);
    // Once by whoever gathers the batch, and once more if what waits for its samples beside it came
    // first.
    let refusals = proxy.traffic().faults / 2;
    assert!((1..=2).contains(&refusals), "{refusals}");
    assert_eq!(counted(&daemon, "retries"), 0);
}

/// Nothing is wrong with the certificate but that this daemon knows nobody who signed it.
#[test]
fn certificate_of_an_unknown_authority_is_rejected() {
    let (root, disk) = (tempfile::tempdir().unwrap(), Daemon::disk());
    fs::create_dir(root.path().join("bucket")).unwrap();
    fs::write(root.path().join("bucket/0.tar"), shard(3, 0, &SIZES)).unwrap();
    let (server, other) = (Nginx::start(root.path()).unwrap(), Nginx::start(root.path()).unwrap());
    let url = format!("{}/bucket/0.tar", server.https());
    let rest = |authority: &str| {
        format!(
            "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GB'\n\
             [[source]]\nmatch = '{}/'\n{authority}",
            disk.path().join("cache"),
            server.https(),
        )
    };
    let played = |authority: &str| {
        let installation = Installation::new(ACTOR, disk.path(), 320 << 20, &rest(authority));
        let daemon = installation.start();
        let address = forebay_client::Address::Unix(installation.socket());
        let played = epoch(address, job_with(BTreeMap::new(), vec![url.clone()]));
        daemon.stop();
        played
    };
    for authority in [String::new(), format!("ca_bundle = {:?}\n", other.authority())] {
        let error = played(&authority).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.place("check"), Some("authority"), "{error}");
        assert!(error.advice().unwrap().contains("ca_bundle"), "{error}");
    }
    let right = format!("ca_bundle = {:?}\n", server.authority());
    played(&right).unwrap().assert_whole(1, 3, &SIZES);
}

/// A certificate that names itself as its authority serves as `ca_bundle`; one that may sign others
/// does not, and the error has the command that makes a right one.
#[test]
fn self_signed_certificate_is_accepted_or_explained() {
    let (root, disk) = (tempfile::tempdir().unwrap(), Daemon::disk());
    fs::create_dir(root.path().join("bucket")).unwrap();
    fs::write(root.path().join("bucket/0.tar"), shard(3, 0, &SIZES)).unwrap();
    let played = |certificate: Certificate| {
        let server = Nginx::with(root.path(), certificate).unwrap();
        let mut rule = Rule::new(&format!("{}/", server.https())).unwrap();
        rule.ca_bundle = Some(server.certificate());
        let mut config = Daemon::config(disk.path(), 1 << 30);
        config.sources = Rules::new(vec![rule]).unwrap();
        let daemon = Daemon::try_start(config).unwrap();
        let url = format!("{}/bucket/0.tar", server.https());
        epoch(daemon.address(), job_with(BTreeMap::new(), vec![url]))
    };
    played(Certificate::SelfSigned).unwrap().assert_whole(1, 3, &SIZES);
    let error = played(Certificate::AuthoritysOwn).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.place("check"), Some("usage"), "{error}");
    assert!(error.advice().unwrap().contains("CA:FALSE"), "{error}");
}

/// A job whose first shard does not come is told for what it waited and what was answered last,
/// before its own timeout.
#[test]
fn job_without_a_first_batch_learns_what_it_waited_for() {
    let (origin, disk) = (Origin::with_shards(1, SAMPLES, &SIZES), Daemon::disk());
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    // Far more than the job waits for.
    config.limits = Limits { retries: 1_000, ..config.limits };
    config.limits.retry_time = PATIENCE;
    let daemon = Daemon::try_start(config).unwrap();
    let url = format!("{}/{}", proxy.endpoint(), Origin::key("0.tar"));
    for (fault, last) in [(Fault::status(503), Some("503")), (Fault::StallBeforeHead, None)] {
        proxy.set([(When::any(), fault)]);
        let mut open = job_with(BTreeMap::new(), vec![url.clone()]);
        open.patience_ms = 2_000;
        let error = epoch(daemon.address(), open).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("url"), Some(&url[..]), "{error}");
        assert_eq!(error.place("endpoint"), Some(&proxy.endpoint()[..]), "{error}");
        assert!(error.place("waited_s").is_some(), "{error}");
        assert!(last.is_none() || error.place("status") == last, "{error}");
        proxy.clear();
    }
}

/// A job with batches that times out is told the same.
#[test]
fn later_timeout_names_what_was_waited_for() {
    let (origin, disk) = (Origin::with_shards(2, SAMPLES, &SIZES), Daemon::disk());
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    let mut limits = Daemon::config(disk.path(), 1 << 30);
    // Far more than the job waits for.
    limits.limits = Limits { retries: 1_000, ..limits.limits };
    limits.limits.retry_time = PATIENCE;
    let daemon = Daemon::try_start(limits).unwrap();
    let urls: Vec<String> =
        ["0.tar", "1.tar"].map(|name| format!("{}/{}", proxy.endpoint(), Origin::key(name))).into();
    epoch(daemon.address(), job_with(BTreeMap::new(), vec![urls[0].clone()])).unwrap();
    for (fault, last) in [(Fault::status(503), Some("503")), (Fault::StallBeforeHead, None)] {
        proxy.set([(When::any(), fault)]);
        let mut config = config(daemon.address(), job_with(BTreeMap::new(), urls.clone()));
        config.session.timeout = WAITED;
        config.session.open.patience_ms = WAITED.as_millis() as u64;
        let loader = Loader::open(config).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
        let error = rest(&loader).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("timeout_s"), Some("3"), "the trainer's own limit: {error}");
        assert_eq!(error.place("waited_for"), Some("shard"), "{error}");
        assert_eq!(error.place("url"), Some(&urls[1][..]), "{error}");
        assert_eq!(error.place("endpoint"), Some(&proxy.endpoint()[..]), "{error}");
        assert!(last.is_none() || error.place("status") == last, "{error}");
        assert!(last.is_none() || error.place("last_error").is_some(), "{error}");
        proxy.clear();
    }
}

/// Two links to one object: fetched once, and neither signature reaches the cache's files.
#[test]
fn signed_links_to_one_object_are_one_shard() {
    let (origin, disk) = (Origin::with_shards(1, SAMPLES, &SIZES), Daemon::disk());
    let daemon = daemon(&disk);
    let link = |signature: &str| {
        let object = format!("{}/{}", origin.server.endpoint(), Origin::key("0.tar"));
        format!("{object}?Expires=99&Signature={signature}")
    };
    for signature in ["hunter2", "hunter3"] {
        let played = epoch(daemon.address(), job_with(BTreeMap::new(), vec![link(signature)]));
        played.unwrap().assert_whole(1, SAMPLES, &SIZES);
        daemon.settle();
    }
    let len = origin.bytes("0.tar").len() as u64;
    assert_eq!(daemon.number("/cache/origin_bytes"), len, "it is fetched once");
    let holds = |path: &std::path::Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(7).any(|word| word == b"hunter2" || word == b"hunter3")
    };
    let mut folders = vec![disk.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                assert!(!holds(&entry.path()), "{}", entry.path().display());
            }
        }
    }
    let status = daemon.status().to_string();
    assert!(!status.contains("hunter"), "{status}");
}

/// A name that is not known ends within the retries, and is counted.
#[test]
fn unknown_host_ends_within_the_retries() {
    let disk = Daemon::disk();
    let daemon = daemon(&disk);
    let url = "http://no-such-host.invalid/bucket/0.tar";
    let error =
        epoch(daemon.address(), job_with(BTreeMap::new(), vec![url.to_owned()])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.place("url"), Some(url), "{error}");
    assert_eq!(counted(&daemon, "retries"), RETRIES as u64);
}
