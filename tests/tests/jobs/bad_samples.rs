//! Samples that cannot be used: named with their place, however large, and told to whoever looks at
//! the daemon.

use std::collections::BTreeMap;

use forebay_client::{Next, Rows};
use forebay_error::ErrorKind;
use forebay_tests::{Daemon, FRAMES, Origin, Received, job, loader, next, play};
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{BAD_NAMED, Bad, BadSample, Begin, Reply, Request};
use forebay_wire::{PROTOCOL, PROTOCOL_OLDEST};

/// Memory for the batches of all jobs.
const SLABS: usize = 4 << 20;

/// A shard of samples with these fields.
fn shard(samples: &[(&str, &[(&str, usize)])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (key, fields) in samples {
        for (field, len) in *fields {
            let mut header = tar::Header::new_gnu();
            header.set_size(*len as u64);
            header.set_mode(0o644);
            let bytes = vec![b'x'; *len];
            builder.append_data(&mut header, format!("{key}.{field}"), &bytes[..]).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

fn small_daemon(disk: &tempfile::TempDir) -> Daemon {
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.memory = FRAMES + SLABS;
    Daemon::try_start(config).unwrap()
}

fn keys(samples: &[Received]) -> Vec<(u64, &str)> {
    samples.iter().map(|sample| (sample.position, sample.key.as_str())).collect()
}

/// Bears promise 9: a sample that no memory holds is bad by name, with its size and the limit, and
/// keeps its position; those beside it are delivered. A sample that just fits is.
#[test]
fn oversized_sample_is_bad_and_its_neighbours_are_good() {
    let origin = Origin::new();
    let fits = SLABS - (64 << 10);
    let small: &[(&str, usize)] = &[("bin", 1000)];
    let samples = [("a", small), ("vast", &[("bin", SLABS), ("cls", 1)]), ("b", small)];
    origin.put("0.tar", &shard(&samples));
    origin.put("1.tar", &shard(&[("just", &[("bin", fits)])]));
    let disk = Daemon::disk();
    let daemon = small_daemon(&disk);
    let mut open = job(&origin, Origin::urls(1));
    let epoch = play(&loader(daemon.address(), open.clone()).unwrap(), 0, 0).unwrap();
    assert_eq!(keys(&epoch.samples), [(0, "a"), (2, "b")]);
    let [error] = &epoch.errors[..] else { panic!("{:?}", epoch.errors) };
    assert_eq!(error.kind(), ErrorKind::BadSample);
    assert_eq!(error.place("key"), Some("vast"));
    assert_eq!(error.place("url"), Some(Origin::url("0.tar").as_str()));
    // Behind the header of its first member, which is behind sample `a` with its padding.
    assert_eq!(error.place("offset"), Some((512 + 1024 + 512).to_string().as_str()));
    assert_eq!(error.place("limit"), Some(SLABS.to_string().as_str()));
    let bytes: usize = error.place("bytes").unwrap().parse().unwrap();
    assert!((SLABS..SLABS + (64 << 10)).contains(&bytes), "{error}");

    // Of the same sample a field that is small enough is no trouble.
    open.fields = Some(vec![vec!["cls".to_owned(), "bin".to_owned()]]);
    let epoch = play(&loader(daemon.address(), open.clone()).unwrap(), 0, 0).unwrap();
    assert_eq!(keys(&epoch.samples), [(0, "a"), (1, "vast"), (2, "b")]);

    let open = job(&origin, vec![Origin::url("1.tar")]);
    let epoch = play(&loader(daemon.address(), open).unwrap(), 0, 0).unwrap();
    assert_eq!(epoch.samples[0].fields["bin"].len(), fits);
}

/// A batch of which nothing is left has the columns that its samples would have had, whatever was
/// wrong.
#[test]
fn batch_of_only_bad_samples_has_its_columns() {
    let origin = Origin::new();
    let twice: &[(&str, usize)] = &[("cls", 1), ("txt", 2), ("cls", 3)];
    origin.put("0.tar", &shard(&[("twice", twice), ("reserved", &[("__key__", 1), ("n", 1)])]));
    origin.put("1.tar", &shard(&[("vast", &[("bin", SLABS)])]));
    let disk = Daemon::disk();
    let daemon = small_daemon(&disk);
    for (shard, expected) in [("0.tar", vec!["cls", "txt", "n"]), ("1.tar", vec!["bin"])] {
        let loader = loader(daemon.address(), job(&origin, vec![Origin::url(shard)])).unwrap();
        loader.start(Begin::at(0, 0)).unwrap();
        let Next::Batch(batch) = next(&loader).unwrap() else { panic!("no batch") };
        assert!(batch.keys.is_empty() && !batch.errors.is_empty());
        let columns: Vec<_> = batch.columns.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(columns, expected, "{shard}");
        assert!(
            batch
                .columns
                .iter()
                .all(|(_, rows)| matches!(rows, Rows::Bytes(rows) if rows.is_empty()))
        );
    }
}

/// One key in two places makes two samples, each with its own place in the shard.
#[test]
fn repeated_key_is_another_sample() {
    let origin = Origin::new();
    let field: &[(&str, usize)] = &[("cls", 1)];
    origin.put("0.tar", &shard(&[("a", field), ("b", field), ("a", field)]));
    origin.put("1.tar", &shard(&[("a", field)]));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = loader(daemon.address(), job(&origin, Origin::urls(2))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let Next::Batch(batch) = next(&loader).unwrap() else { panic!("no batch") };
    assert_eq!(batch.errors, []);
    assert_eq!(batch.keys, ["a", "b", "a", "a"]);
    assert_eq!(batch.offsets, [512, 1536, 2560, 512]);
}

fn named(key: &str) -> BadSample {
    BadSample {
        kind: ErrorKind::BadSample,
        url: Some("s3://b/0.tar".to_owned()),
        key: Some(key.to_owned()),
        field: None,
        offset: Some(512),
        message: "not an image".to_owned(),
    }
}

/// Samples that a trainer skipped are in the daemon's status by job, bounded whatever the trainer
/// reports.
#[test]
fn reported_bad_samples_are_in_the_status_and_bounded() {
    let origin = Origin::with_shards(1, 8, &(100..200));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = loader(daemon.address(), job(&origin, Origin::urls(1))).unwrap();
    assert_eq!(daemon.status()["jobs"][0]["bad_samples"]["counts"], serde_json::json!({}));
    let last = (0..BAD_NAMED + 3).map(|number| named(&format!("k{number}"))).collect();
    let counts = vec![(ErrorKind::BadSample, 40), (ErrorKind::Corrupt, 2), (ErrorKind::Corrupt, 1)];
    loader.tell(Bad { counts, last });
    let bad = || daemon.status()["jobs"][0]["bad_samples"].clone();
    forebay_tests::eventually("it is told", || bad()["counts"]["BadSample"] == 40);
    let told = bad();
    assert_eq!(told["counts"]["Corrupt"], 3);
    let listed: Vec<_> =
        told["last"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(listed.len(), BAD_NAMED);
    assert_eq!(listed[BAD_NAMED - 1], format!("k{}", BAD_NAMED + 2));
    assert_eq!(told["last"][0]["offset"], 512);

    let vast = "é\x1b[2J".repeat(100_000);
    let hostile = BadSample { message: vast.clone(), ..named(&vast) };
    loader.tell(Bad { counts: vec![(ErrorKind::BadSample, u64::MAX); 2], last: vec![hostile] });
    forebay_tests::eventually("it is told", || bad()["counts"]["BadSample"] == u64::MAX);
    let told = bad();
    for text in ["key", "message"] {
        let text = told["last"][0][text].as_str().unwrap();
        assert!(text.starts_with("é\u{FFFD}[2J") && text.chars().count() == 1024, "{text}");
    }
    // The job goes on.
    assert_eq!(play(&loader, 0, 0).unwrap().samples.len(), 8);
}

/// A trainer of the release before gets batches as it knows them.
#[test]
fn trainer_of_the_previous_release_is_served() {
    let origin = Origin::with_shards(1, 8, &(100..200));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let mut told = BTreeMap::new();
    for protocol in [PROTOCOL_OLDEST, PROTOCOL] {
        let socket = std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap();
        let say = |request: &Request| {
            let bytes = frame::encode(request).unwrap();
            assert_eq!(frame::send(&socket, &bytes, &[]).unwrap(), bytes.len());
        };
        say(&Request::Hello { protocol, release: "x".into() });
        say(&Request::Open(Box::new(job(&origin, Origin::urls(1)))));
        say(&Request::Start { run: 1, epoch: 0, batch: 0 });
        let mut receiver = Receiver::default();
        let had = loop {
            match receiver.receive::<Reply>(&socket).unwrap() {
                Reply::Slab { .. } => drop(receiver.take_descriptor().unwrap()),
                Reply::Batch(batch) => break (batch.samples.len(), 0),
                Reply::Placed { batch, offsets } => break (batch.samples.len(), offsets.len()),
                _ => {}
            }
        };
        told.insert(protocol, had);
    }
    assert_eq!(told, BTreeMap::from([(PROTOCOL_OLDEST, (8, 0)), (PROTOCOL, (8, 8))]));
}
