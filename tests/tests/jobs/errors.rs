//! Bad input is named: kind, place and advice, and nothing is dropped in silence.

use std::io::Write;
use std::time::Duration;

use forebay_error::ErrorKind;
use forebay_source::Limits;
use forebay_tests::{Daemon, Origin, epoch, job, loader, play};
use tempfile::TempDir;

const SIZES: std::ops::Range<usize> = 30_000..40_000;

fn daemon() -> (TempDir, Daemon) {
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    // Bounded as ever, only sooner.
    config.limits =
        Limits { retries: 2, connect_timeout: Duration::from_secs(1), ..Limits::default() };
    let daemon = Daemon::try_start(config).unwrap();
    (disk, daemon)
}

/// Bears promise 9 (bad input is named) for what the origin answers.
#[test]
fn rejected_requests_are_reported_with_url_and_kind() {
    let origin = Origin::with_shards(2, 10, &SIZES);
    let (_disk, daemon) = daemon();
    let missing = job(&origin, vec![Origin::url("0.tar"), Origin::url("no-such.tar")]);
    let error = epoch(daemon.address(), missing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(error.place("url"), Some("s3://bucket/no-such.tar"));

    origin.server.deny(&Origin::key("1.tar"), true);
    let error = epoch(daemon.address(), job(&origin, Origin::urls(2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert_eq!(error.place("url"), Some("s3://bucket/1.tar"));
    // A refusal is not remembered.
    origin.server.deny(&Origin::key("1.tar"), false);
    epoch(daemon.address(), job(&origin, Origin::urls(2))).unwrap().assert_whole(2, 10, &SIZES);
}

/// Bears promise 9: an endpoint that is down is `Unavailable`, with its address, after bounded
/// retries; once it is back the same job goes on.
#[test]
fn down_endpoint_is_reported_with_its_address() {
    let origin = Origin::with_shards(1, 10, &SIZES);
    let (_disk, daemon) = daemon();
    // The port for what is discarded: no server has it.
    let address = "127.0.0.1:9";
    let mut open = job(&origin, Origin::urls(1));
    open.origin.insert("AWS_ENDPOINT_URL".to_owned(), format!("http://{address}"));
    let error = epoch(daemon.address(), open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.place("endpoint"), Some(&*format!("http://{address}")), "{error}");

    let loader = loader(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    origin.server.fail_next(3, 503);
    let error = play(&loader, 0, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(origin.server.counts().requests, 3, "retries are bounded");
    play(&loader, 1, 0).unwrap().assert_whole(1, 10, &SIZES);
}

/// Bears promise 9: a broken archive ends its shard at the fault, whose place is told; samples
/// before it and other shards are delivered.
#[test]
fn broken_archive_serves_samples_before_the_fault() {
    let origin = Origin::with_shards(3, 10, &SIZES);
    let whole = origin.bytes("1.tar");
    let (_disk, daemon) = daemon();
    let mut garbled = whole.clone();
    let third = forebay_testkit::image(1, 0, &SIZES).len().div_ceil(512) * 512 + 512 + 1024;
    garbled[third + 10] ^= 0xFF;
    // Of the five samples in the first half, one is cut and the one before it held back: without a
    // whole successor nobody can tell that it had no more fields.
    for (what, broken, least) in
        [("cut", whole[..whole.len() / 2].to_vec(), 3), ("garbled", garbled, 0)]
    {
        origin.put("1.tar", &broken);
        // The middle shard, and the last, behind which no batch comes.
        for urls in [vec!["0.tar", "1.tar", "2.tar"], vec!["0.tar", "1.tar"]] {
            let shards = urls.len() - 1;
            let urls: Vec<String> = urls.into_iter().map(Origin::url).collect();
            let fresh = Daemon::disk();
            let daemon = Daemon::start(fresh.path());
            let got = epoch(daemon.address(), job(&origin, urls)).unwrap();
            got.assert_bytes(&SIZES);
            let of_broken = got.samples.iter().filter(|sample| sample.shard == 1).count();
            assert_eq!(got.samples.len() - of_broken, 10 * shards, "{what}");
            assert!((least..10).contains(&of_broken), "{what}: {of_broken}");
            let [error] = &got.errors[..] else { panic!("{what}: {:?}", got.errors) };
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            assert_eq!(error.place("url"), Some("s3://bucket/1.tar"), "{what}");
            assert!(error.place("offset").is_some(), "{what}: {error}");
            drop(daemon);
        }
    }
    drop(daemon);
}

/// Bears promise 9 for a single sample: it is named by key and kept out, its position stays empty,
/// and the rest of its shard is good.
#[test]
fn sample_with_a_repeated_field_is_bad_alone() {
    let origin = Origin::new();
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in
        [("a.txt", "1"), ("b.txt", "2"), ("b.txt", "3"), ("c.txt", "4"), ("c.cls", "5")]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, bytes.as_bytes()).unwrap();
    }
    builder.get_mut().flush().unwrap();
    origin.put("0.tar", &builder.into_inner().unwrap());
    let (_disk, daemon) = daemon();
    let got = epoch(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    let keys: Vec<_> = got.samples.iter().map(|s| (s.position, s.key.as_str())).collect();
    assert_eq!(keys, [(0, "a"), (2, "c")]);
    assert_eq!(got.announced.1, 3);
    let [error] = &got.errors[..] else { panic!("{:?}", got.errors) };
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert_eq!((error.place("key"), error.place("url")), (Some("b"), Some("s3://bucket/0.tar")));
}

/// Bears promise 9 for options: a job that makes no sense is refused when it is opened, saying
/// which option to change.
#[test]
fn invalid_job_is_rejected_with_advice() {
    let origin = Origin::with_shards(1, 10, &SIZES);
    let (_disk, daemon) = daemon();
    type Change = fn(&mut forebay_wire::message::Open);
    let wrong: [(Change, &str); 8] = [
        (|open| open.order.batch_size = 0, "batch_size"),
        (|open| open.order.window = 0, "window"),
        (|open| open.order.lanes = Some(9), "lanes"),
        (|open| open.order.rank = 1, "rank"),
        (|open| open.order.world_size = 2, "manifest"),
        (|open| open.counts = Some(vec![1, 2]), "manifest"),
        (|open| open.prefetch = 0, "prefetch"),
        (|open| open.urls.clear(), "URL"),
    ];
    for (change, word) in wrong {
        let mut open = job(&origin, Origin::urls(1));
        change(&mut open);
        let error = loader(daemon.address(), open).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let mut outdated = job(&origin, Origin::urls(1));
    outdated.counts = Some(vec![11]);
    let error = epoch(daemon.address(), outdated).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("forebay index"), "{error}");
    let unknown = job(&origin, vec!["gopher://b/0.tar".to_owned()]);
    let error = epoch(daemon.address(), unknown).unwrap_err();
    assert!(error.to_string().contains("gopher"), "{error}");
    epoch(daemon.address(), job(&origin, Origin::urls(1))).unwrap().assert_whole(1, 10, &SIZES);
}

/// Bears promise 2 for a broken archive: what lies before the fault is served from the one copy
/// that was fetched, however many batches it takes.
#[test]
fn broken_archive_is_fetched_once() {
    const LARGE: std::ops::Range<usize> = 90_000..110_000;
    let origin = Origin::with_shards(1, 200, &LARGE);
    let whole = origin.bytes("0.tar");
    let broken = &whole[..whole.len() / 4 * 3];
    origin.put("0.tar", broken);
    let (_disk, daemon) = daemon();
    let mut open = job(&origin, Origin::urls(1));
    open.prefetch = 2;
    let got = epoch(daemon.address(), open).unwrap();
    got.assert_bytes(&LARGE);
    assert!(got.samples.len() > 140, "{}", got.samples.len());
    assert_eq!(got.errors.len(), 1, "{:?}", got.errors);
    assert!(origin.served("0.tar") <= broken.len() as u64, "{}", origin.served("0.tar"));
}

/// The same for archives so small that their commit would write them. Many, since what is good may
/// be read at the very moment at which the fault shows.
#[test]
fn broken_small_archives_keep_what_is_good() {
    const SHARDS: u64 = 200;
    const SMALL: std::ops::Range<usize> = 900..1100;
    let origin = Origin::with_shards(SHARDS, 6, &SMALL);
    for name in (0..SHARDS).map(|n| format!("{n}.tar")) {
        let whole = origin.bytes(&name);
        origin.put(&name, &whole[..whole.len() / 4 * 3]);
    }
    let (_disk, daemon) = daemon();
    let got = epoch(daemon.address(), job(&origin, Origin::urls(SHARDS))).unwrap();
    got.assert_bytes(&SMALL);
    assert!(got.samples.len() as u64 >= 2 * SHARDS, "{}", got.samples.len());
    assert_eq!(got.errors.len() as u64, SHARDS, "{:?}", got.errors);
    for n in 0..SHARDS {
        let of = got.samples.iter().filter(|sample| u64::from(sample.shard) == n).count();
        assert_eq!(of, got.samples.len() / SHARDS as usize, "{n}.tar");
    }
    for error in &got.errors {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.place("offset").is_some(), "the end of the archive: {error}");
    }
}
