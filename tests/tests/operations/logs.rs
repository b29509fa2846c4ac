//! The daemon's own log as objects: every line is one, and each says whom and what it is about.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

use forebay_client::{Address, Loader, Next};
use forebay_tests::{
    Daemon, Installation, Installed, Origin, config, eventually, job, loader, next, play, run,
};
use forebay_wire::PROTOCOL;
use forebay_wire::frame;
use forebay_wire::message::{Begin, Open, Request};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;

/// A node whose log is objects, and whose data set is all of the bucket.
fn installed(origin: &Origin, disk: &std::path::Path) -> Installation {
    let rest = format!(
        "log = 'json'\n[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}\
         [[dataset]]\nname = 'photos'\nmatch = 's3://bucket/**'\n",
        disk.join("cache"),
        origin.rule(),
    );
    Installation::new(ACTOR, disk, 512 << 20, &rest)
}

#[test]
fn json_log_lines_name_job_and_data_set() {
    let (origin, disk) = (Origin::with_shards(2, SAMPLES, &SIZES), Daemon::disk());
    let installation = installed(&origin, disk.path());
    let daemon = installation.start();
    let name = "a job\nwith two lines and a \"quote\"";
    let open = Open { job: name.to_owned(), ..job(&origin, Origin::urls(2)) };
    let address = Address::Unix(installation.socket());
    let loader = Loader::open(config(address.clone(), open.clone())).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
    drop(loader);
    // A shard that there is none of: what fails names its data set and its URL.
    let missing = vec!["s3://bucket/none.tar".to_owned()];
    let loader = Loader::open(config(address, Open { urls: missing, ..open })).unwrap();
    assert!(play(&loader, 0, 0).is_err());
    drop(loader);
    eventually("both left", || daemon.log().matches("a job left").count() == 2);
    let log = daemon.log();
    daemon.stop();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    // Of each of the two jobs one line when it opens, and one when it leaves.
    let of_jobs: Vec<_> =
        lines.iter().filter(|line| line["job"].is_string() && line["url"].is_null()).collect();
    let mut sessions = BTreeMap::new();
    for line in &of_jobs {
        let session = line["session"].as_u64().expect("a job has a session");
        sessions.entry(session).or_insert_with(Vec::new).push(&line["message"]);
        assert_eq!(line["dataset"], "photos", "{line}");
        let job = line["job"].as_str().unwrap();
        assert!(job.contains("with two lines and a \"quote\""), "{line}");
    }
    let [one, other] = sessions.values().collect::<Vec<_>>()[..] else { panic!("{log}") };
    assert!(one == other && one.len() == 2 && one[0] != one[1], "{log}");
    for line in lines.iter().filter(|line| line["url"].is_string()) {
        assert!(line["dataset"].is_string() || line["event"].is_string(), "{line}");
    }
    for line in lines.iter().filter(|line| line["job"].is_string()) {
        assert!(line["session"].is_u64(), "{line}");
    }
}

/// The first whole line of a daemon's log that is as wanted.
fn line_of(daemon: &Installed, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    let log = daemon.log();
    let (whole, _) = log.rsplit_once('\n')?;
    let mut lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(is_it)
}

/// A trainer that breaks the protocol loses its connection, and the line that tells of it says
/// which job's that was.
#[test]
fn broken_connection_is_logged_with_its_job() {
    let (origin, disk) = (Origin::with_shards(1, SAMPLES, &SIZES), Daemon::disk());
    let installation = installed(&origin, disk.path());
    let daemon = installation.start();
    let socket = UnixStream::connect(installation.socket()).unwrap();
    let hello = || Request::Hello { protocol: PROTOCOL, release: "test".to_owned() };
    let open = Open { job: "resnet".to_owned(), ..job(&origin, Origin::urls(1)) };
    for request in [hello(), Request::Open(Box::new(open)), hello()] {
        frame::send(&socket, &frame::encode(&request).unwrap(), &[]).unwrap();
    }
    let of =
        |level: &str| line_of(&daemon, |line| line["job"] == "resnet" && line["level"] == level);
    eventually("it is ended", || of("WARN").is_some());
    let (opened, ended) = (of("INFO").unwrap(), of("WARN").unwrap());
    daemon.stop();
    assert!(ended["error"].is_string(), "{ended}");
    assert_eq!((&ended["job"], &ended["dataset"]), (&"resnet".into(), &"photos".into()), "{ended}");
    assert_eq!(ended["session"], opened["session"], "{ended}");
}

/// A store that breaks off in mid-body, for longer than it is asked again: the line that tells of
/// it says whose job began the fetch, of which data set and shard, though others may wait for it as
/// well.
#[test]
fn failed_fetch_is_logged_with_its_job() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    // Several parts, so that samples come before the fault.
    origin.put("0.tar", &forebay_testkit::shard(40, 0, &(900_000..1_000_000)));
    let gid = rustix::process::getegid().as_raw();
    let rest = format!(
        "log = 'json'\n[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n{}\
         [[dataset]]\nname = 'photos'\nmatch = 's3://bucket/**'\n\
         [[tenant]]\nname = 'vision'\ngroups = [{gid}]\n",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), 512 << 20, &rest);
    let daemon = installation.start();
    let key = Origin::key("0.tar");
    origin.server.stall(&key, 20 << 20);
    let open = Open { job: "resnet".to_owned(), ..job(&origin, vec![Origin::url("0.tar")]) };
    let trainer = loader(Address::Unix(installation.socket()), open).unwrap();
    trainer.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&trainer).unwrap(), Next::Batch(_)));
    // It is gone, and what asks for it again is refused.
    origin.server.deny(&key, true);
    origin.server.break_off(&key, true);
    let failed = || line_of(&daemon, |line| line["url"].is_string() && line["error"].is_string());
    eventually("the fetch failed", || failed().is_some());
    drop(trainer);
    let failed = failed().unwrap();
    let opened = line_of(&daemon, |line| line["job"] == "resnet" && line["level"] == "INFO");
    let opened = opened.unwrap();
    daemon.stop();
    for (key, value) in [
        ("job", "resnet"),
        ("tenant", "vision"),
        ("dataset", "photos"),
        ("url", "s3://bucket/0.tar"),
        ("level", "WARN"),
    ] {
        assert_eq!(failed[key], value, "{failed}");
    }
    assert_eq!(failed["session"], opened["session"], "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("s3://bucket/0.tar"), "{failed}");
}

/// A daemon that would log something else than it was told does not start.
#[test]
fn invalid_log_levels_are_rejected() {
    let disk = Daemon::disk();
    let rest = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GiB'\n",
        disk.path().join("cache")
    );
    let installation = Installation::new(ACTOR, disk.path(), 512 << 20, &rest);
    let config = installation.config().display().to_string();
    let mut daemon = installation.forebay(&["daemon", "--config", &config]);
    daemon.env("FOREBAY_LOG", "info,forebay=loud");
    let ended = run(daemon);
    assert_ne!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.error().place("levels"), Some("info,forebay=loud"), "{ended:?}");
    assert!(ended.err.contains("FOREBAY_LOG"), "{ended:?}");
}
