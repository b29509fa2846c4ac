//! `forebay dataset warm` and `check`: prefetching before jobs ask, and its reports.
//!
//! Fetches are counted at the origin, and waiting is shown by holding the origin back, never by the
//! clock.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_api::warm::Warming;
use forebay_error::ErrorKind;
use forebay_source::Limits;
use forebay_testkit::shard;
use forebay_tests::{
    Daemon, Installation, Installed, Origin, TestSource, UserHome, daemon_status, epoch,
    eventually, interruptible, job, job_with, reported_error,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 90_000..110_000;

/// Some 2 MB: less than a part.
const SAMPLES: u64 = 20;

/// A shard of a few parts.
const LONG: u64 = 120;

/// Below a byte a second there is nothing, and at one KiB a second no part comes while a test
/// lasts.
const CRAWL: &str = "1kB/s";

/// Result of a command.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    fn document(&self) -> Value {
        let parsed = serde_json::from_str(&self.out);
        parsed.unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }

    fn warming(&self) -> Warming {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.err))
    }
}

fn command(address: &str, origin: &Origin, arguments: &[&str]) -> Command {
    let mut command = Command::new(ACTOR);
    command.args(arguments).env("FOREBAY_DAEMON", address).envs(origin.environment());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn forebay(daemon: &Daemon, origin: &Origin, arguments: &[&str]) -> Ended {
    let address = format!("unix:{}", daemon.socket().display());
    ended(command(&address, origin, arguments).spawn().unwrap())
}

fn begin(daemon: &Daemon, origin: &Origin, arguments: &[&str]) -> Child {
    let address = format!("unix:{}", daemon.socket().display());
    let mut begun = interruptible(&command(&address, origin, arguments));
    begun.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The state of each shard, and what is told of all.
fn check(daemon: &Daemon, origin: &Origin, arguments: &[&str]) -> (Ended, Vec<String>) {
    let ended = forebay(daemon, origin, &[&["dataset", "check", "--json"], arguments].concat());
    let document = ended.document();
    let states = document["shards"].as_array().unwrap().iter();
    let states = states.map(|shard| shard["state"].as_str().unwrap().to_owned()).collect();
    (ended, states)
}

fn warm_ups(daemon: &Daemon) -> Vec<Warming> {
    serde_json::from_value(daemon.status()["warm_ups"].clone()).unwrap()
}

fn size(origin: &Origin, name: &str) -> u64 {
    origin.bytes(name).len() as u64
}

/// Every command that lists a store names the matching keys that no URL can name.
#[test]
fn keys_left_out_of_a_glob_are_reported() {
    let (origin, disk) = (Origin::with_shards(2, SAMPLES, &SIZES), Daemon::disk());
    for name in ["odd\tone.tar", "odd\ttwo.tar"] {
        origin.put(name, b"x");
    }
    let daemon = Daemon::start(disk.path());
    let manifest = disk.path().join("manifest.json");
    let manifest = manifest.to_str().unwrap();
    let pattern = Origin::url("*.tar");
    for arguments in [
        &["dataset", "check"][..],
        &["dataset", "warm", "--dry-run"],
        &["dataset", "warm", "--wait"],
        &["dataset", "warm"],
        &["index", "--output", manifest],
        &["bench", "throughput", "--batch-size", "4", "--batches", "2", "--rounds", "1"],
        &["bench", "starvation", "--raw", "--batch-size", "4", "--steps", "2", "--step", "0.001"],
    ] {
        let told = forebay(&daemon, &origin, &[arguments, &["--json", &pattern]].concat());
        assert_eq!(told.code, 0, "{arguments:?}: {}", told.err);
        let document = told.document();
        let left_out = match &document["left_out"] {
            Value::Null => &document["configuration"]["left_out"],
            left_out => left_out,
        };
        assert_eq!(left_out["count"], 2, "{arguments:?}: {document}");
        assert_eq!(left_out["keys"][0], "odd\tone.tar", "{arguments:?}: {document}");
        assert!(told.err.contains("odd\\ttwo.tar"), "{arguments:?}: {}", told.err);
    }
    let told = forebay(&daemon, &origin, &["dataset", "check", "--json", &Origin::url("0.tar")]);
    assert!(told.document()["left_out"].is_null() && told.err.is_empty(), "{}", told.err);
}

/// Parts that came wait for the first one, which tells the format, and leave it their places.
#[test]
fn first_part_asked_for_again_finds_a_place() {
    for connections in [1, 2] {
        let (origin, disk) = (Origin::with_shards(1, LONG, &SIZES), Daemon::disk());
        let mut config = Daemon::config(disk.path(), 1 << 30);
        config.limits = Limits { connections, ..config.limits };
        let daemon = Daemon::try_start(config).unwrap();
        origin.server.cut(&Origin::key("0.tar"), 100_000, 1);
        let told = forebay(&daemon, &origin, &["dataset", "warm", "--json", &Origin::url("0.tar")]);
        assert_eq!(told.code, 0, "{}", told.err);
        eventually("the warm-up ends", || warm_ups(&daemon)[0].done);
        assert_eq!(warm_ups(&daemon)[0].fetched, 1);
        assert_eq!(daemon.number("/sources/0/retries"), 1);
    }
}

#[test]
fn warmed_shards_are_fetched_once_and_found_by_jobs() {
    let (origin, disk) = (Origin::with_shards(6, SAMPLES, &SIZES), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let warm = ["dataset", "warm", "s3://bucket/{0..5}.tar", "--wait", "--json"];
    let first = forebay(&daemon, &origin, &warm);
    assert_eq!(first.code, 0, "{}", first.err);
    let told = first.warming();
    let all: u64 = (0..6).map(|n| size(&origin, &format!("{n}.tar"))).sum();
    assert_eq!((told.shards, told.fetched, told.cached, told.failed), (6, 6, 0, 0));
    assert_eq!((told.bytes, told.done), (all, true));
    // All is on the disk for good by then: nothing has to be waited for.
    let counted = daemon.node().store().counters();
    assert_eq!((counted.fills, counted.origin_bytes), (6, all));
    let again = forebay(&daemon, &origin, &warm).warming();
    assert_eq!((again.fetched, again.cached, again.bytes), (0, 6, 0));
    epoch(daemon.address(), job(&origin, Origin::urls(6)))
        .unwrap()
        .assert_whole(6, SAMPLES, &SIZES);
    for n in 0..6 {
        let name = format!("{n}.tar");
        assert_eq!(origin.served(&name), size(&origin, &name), "{name}");
    }
    let (ended, states) = check(&daemon, &origin, &["s3://bucket/*.tar", "--verify"]);
    assert_eq!((ended.code, states), (0, vec!["whole".to_owned(); 6]));
}

#[test]
fn failed_shards_are_reported_and_the_rest_is_warmed() {
    let (origin, disk) = (Origin::with_shards(3, SAMPLES, &SIZES), Daemon::disk());
    std::fs::remove_file(origin.path("1.tar")).unwrap();
    origin.put("2.tar", &origin.bytes("2.tar")[..30_000]);
    origin.put("3.tar", &shard(SAMPLES, 3, &SIZES));
    let daemon = Daemon::start(disk.path());
    let urls = "s3://bucket/{0..3}.tar";
    let ended = forebay(&daemon, &origin, &["dataset", "warm", urls, "--wait"]);
    assert_eq!(ended.code, 1, "{} {}", ended.out, ended.err);
    let line = |kind: &str| ended.out.lines().find(|line| line.contains(kind)).unwrap_or_default();
    assert!(line("NotFound").contains("url=s3://bucket/1.tar"), "{}", ended.out);
    assert!(line("Corrupt").contains("2.tar"), "{}", ended.out);
    assert!(line("2 fetched").contains("4 shards"), "{}", ended.out);
    assert_eq!(reported_error(&ended.err).place("failed"), Some("2"), "{}", ended.err);
    let (ended, states) = check(&daemon, &origin, &[urls]);
    assert_eq!(
        (ended.code, states),
        (1, ["whole", "missing", "broken", "whole"].map(str::to_owned).to_vec())
    );
}

/// Half of what may be fetched at once is left to jobs, which wait for no warm-up.
#[test]
fn jobs_do_not_wait_for_a_warm_up() {
    let (origin, disk) = (Origin::with_shards(8, SAMPLES, &SIZES), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    for n in 0..6 {
        origin.server.stall(&Origin::key(&format!("{n}.tar")), 0);
    }
    let begun = forebay(&daemon, &origin, &["dataset", "warm", "s3://bucket/{0..5}.tar"]);
    assert_eq!(begun.code, 0, "{}", begun.err);
    assert!(begun.out.contains("forebay status"), "{}", begun.out);
    origin.server.wait_until(|counts| counts.stalled >= 2);
    let job_of = |names: [u64; 2]| {
        let urls = names.map(|n| Origin::url(&format!("{n}.tar"))).to_vec();
        epoch(daemon.address(), job(&origin, urls)).unwrap()
    };
    assert_eq!(job_of([6, 7]).samples.len() as u64, 2 * SAMPLES);
    let [running] = &warm_ups(&daemon)[..] else { panic!("one runs") };
    assert!(!running.done && running.fetched == 0, "{running:?}");
    eventually("what the job wanted is whole", || daemon.number("/cache/fills") == 2);
    assert_eq!(daemon.number("/fills/running"), 2);
    // What is under way is not asked for twice.
    let (_, states) = check(&daemon, &origin, &["s3://bucket/{0,5,6}.tar"]);
    assert_eq!(states, ["arriving", "absent", "whole"]);
    for n in 0..6 {
        origin.server.release(&Origin::key(&format!("{n}.tar")));
    }
    eventually("the warm-up ends", || warm_ups(&daemon)[0].done);
    assert_eq!(warm_ups(&daemon)[0].fetched, 6);
    let screen = forebay(&daemon, &origin, &["status"]).out;
    let line = screen.lines().find(|line| line.starts_with("warm")).unwrap();
    assert!(line.contains("6 of 6"), "{screen}");
}

#[test]
fn warm_up_ends_with_its_waiter_or_when_stopped() {
    let (origin, disk) = (Origin::with_shards(6, SAMPLES, &SIZES), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    for n in 0..6 {
        origin.server.stall(&Origin::key(&format!("{n}.tar")), 0);
    }
    let waiting = begin(&daemon, &origin, &["dataset", "warm", "s3://bucket/{0..5}.tar", "--wait"]);
    origin.server.wait_until(|counts| counts.stalled >= 2);
    // As Ctrl-C does.
    let pid = i32::try_from(waiting.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(ended(waiting).code, -1, "the signal ended it");
    eventually("it is over", || warm_ups(&daemon).iter().all(|warm| warm.done));
    assert_eq!(warm_ups(&daemon)[0].untried, 6);
    let begun = forebay(&daemon, &origin, &["dataset", "warm", "s3://bucket/{2..5}.tar", "--json"]);
    let number = begun.warming().number;
    let stop = ["dataset", "warm", "--stop", &number.to_string()];
    assert_eq!(forebay(&daemon, &origin, &stop).code, 0);
    eventually("it is over, too", || warm_ups(&daemon).iter().all(|warm| warm.done));
    let none = forebay(&daemon, &origin, &stop);
    assert_eq!(none.code, 1);
    assert_eq!(reported_error(&none.err).kind(), ErrorKind::NotFound, "{}", none.err);
    for n in 0..6 {
        origin.server.release(&Origin::key(&format!("{n}.tar")));
    }
    daemon.settle();
    assert_eq!(origin.served("5.tar"), 0, "what was not begun is not fetched");
}

#[test]
fn wait_continues_at_the_next_daemon() {
    let (origin, disk) = (Origin::with_shards(4, SAMPLES, &SIZES), Daemon::disk());
    let rest = format!(
        "[[tier]]\nname = 'nvme'\npath = {:?}\ncapacity = '1GB'\n\
         {}",
        disk.path().join("cache"),
        origin.rule(),
    );
    let installation = Installation::new(ACTOR, disk.path(), 320 << 20, &rest);
    let first: Installed = installation.start();
    origin.server.stall(&Origin::key("3.tar"), 0);
    let address = format!("unix:{}", installation.socket().display());
    let warm = ["dataset", "warm", "s3://bucket/{0..3}.tar", "--wait", "--json"];
    let waiting = command(&address, &origin, &warm).spawn().unwrap();
    eventually("three are there", || {
        let status = daemon_status(&installation.socket()).unwrap();
        status["warm_ups"][0]["fetched"] == 3
    });
    // Killed.
    drop(first);
    let _second = installation.start();
    origin.server.release(&Origin::key("3.tar"));
    let ended = ended(waiting);
    assert_eq!(ended.code, 0, "{} {}", ended.out, ended.err);
    assert!(ended.err.starts_with("forebay: "), "it says that it connects again: {}", ended.err);
    let told = ended.warming();
    assert_eq!((told.shards, told.fetched, told.cached, told.failed), (4, 4, 0, 0));
    for n in 0..3 {
        let name = format!("{n}.tar");
        assert_eq!(origin.served(&name), size(&origin, &name), "{name}");
    }
}

/// A limit holds whoever set it, and nobody else.
#[test]
fn bandwidth_limit_holds_until_a_job_needs_the_shard() {
    for verb in ["warm", "index"] {
        let (origin, disk) = (Origin::with_shards(2, LONG, &SIZES), Daemon::disk());
        let daemon = Daemon::start(disk.path());
        let manifest = disk.path().join("m.json");
        let slow = match verb {
            "warm" => vec!["dataset", "warm", "s3://bucket/0.tar", "--wait", "--json"],
            _ => vec!["index", "s3://bucket/0.tar", "-o", manifest.to_str().unwrap(), "--json"],
        };
        let slow = begin(&daemon, &origin, &[&slow[..], &["--bandwidth", CRAWL]].concat());
        eventually("it is begun", || daemon.number("/fills/running") == 1);
        // Another shard comes and goes, and another, while no second part of this one is asked for.
        for _ in 0..3 {
            let other = job(&origin, vec![Origin::url("1.tar")]);
            assert_eq!(epoch(daemon.address(), other).unwrap().samples.len() as u64, LONG);
            daemon.forget(&Origin::url("1.tar"), false).unwrap();
        }
        let gets = origin.server.counts().gets;
        assert_eq!(gets.get(&Origin::key("0.tar")), Some(&1), "{verb}: only its first part");
        eventually("nothing else is under source", || daemon.number("/fills/running") == 1);
        let wanted = job(&origin, vec![Origin::url("0.tar")]);
        epoch(daemon.address(), wanted).unwrap().assert_whole(1, LONG, &SIZES);
        let ended = ended(slow);
        assert_eq!(ended.code, 0, "{verb}: {}", ended.err);
        assert_eq!(origin.served("0.tar"), size(&origin, "0.tar"), "{verb}");
    }
}

#[test]
fn warm_up_beyond_the_cache_evicts_none_of_its_own() {
    let (origin, disk) = (Origin::with_shards(6, SAMPLES, &SIZES), Daemon::disk());
    let largest = (0..6).map(|n| size(&origin, &format!("{n}.tar"))).max().unwrap();
    let daemon = Daemon::try_start(Daemon::config(disk.path(), 3 * largest)).unwrap();
    let urls = "s3://bucket/{0..5}.tar";
    let ended = forebay(&daemon, &origin, &["dataset", "warm", urls, "--wait", "--json"]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    let told = ended.warming();
    assert_eq!((told.fetched, told.failed), (3, 3));
    assert!(told.failures.iter().all(|failure| failure.kind == "Full"), "{:?}", told.failures);
    let (_, states) = check(&daemon, &origin, &[urls]);
    assert_eq!(states.iter().filter(|state| *state == "whole").count(), 3, "{states:?}");
    // A job's needs are another matter.
    epoch(daemon.address(), job(&origin, Origin::urls(6)))
        .unwrap()
        .assert_whole(6, SAMPLES, &SIZES);
}

#[test]
fn down_store_is_not_asked_for_each_shard() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    let mut config = Daemon::config(disk.path(), 1 << 30);
    let retry_time = Duration::from_millis(100);
    config.limits = Limits { retries: 0, retry_time, ..config.limits };
    let daemon = Daemon::try_start(config).unwrap();
    let away = ["dataset", "warm", "http://127.0.0.1:1/{000..499}.tar", "--wait", "--json"];
    let told = forebay(&daemon, &origin, &away).warming();
    assert!(told.failed < 20 && told.untried == 500 - told.failed, "{told:?}");
    assert_eq!(told.failures.len() as u64, told.failed);
}

/// More than one message holds, and more failures than are told.
#[test]
fn long_lists_are_warmed_in_order() {
    let (origin, disk) = (Origin::with_shards(1, SAMPLES, &SIZES), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let urls = "s3://bucket/none-{0000..4999}.tar::s3://bucket/0.tar::s3://bucket/0.tar";
    let told = forebay(&daemon, &origin, &["dataset", "warm", urls, "--wait", "--json"]).warming();
    assert_eq!((told.shards, told.fetched, told.failed), (5001, 1, 5000));
    assert_eq!(told.failures.len(), 1000);
}

#[test]
fn check_reports_each_shard() {
    let (origin, disk) = (Origin::with_shards(5, SAMPLES, &SIZES), Daemon::disk());
    let daemon = Daemon::start(disk.path());
    let urls = "s3://bucket/{0..4}.tar";
    let warm = ["dataset", "warm", "s3://bucket/{0..3}.tar", "--wait"];
    assert_eq!(forebay(&daemon, &origin, &warm).code, 0);
    let (ended, states) = check(&daemon, &origin, &[urls]);
    assert_eq!(
        (ended.code, states),
        (0, ["whole", "whole", "whole", "whole", "absent"].map(str::to_owned).to_vec())
    );
    let rehearsal = forebay(&daemon, &origin, &["dataset", "warm", urls, "--dry-run", "--json"]);
    assert_eq!(rehearsal.document()["fetch"], serde_json::json!([Origin::url("4.tar")]));
    assert_eq!(rehearsal.document()["bytes"], size(&origin, "4.tar"));
    assert_eq!(origin.served("4.tar"), 0);
    // One is replaced, one removed, one damaged where it rests.
    origin.put("1.tar", &shard(SAMPLES, 77, &SIZES));
    std::fs::remove_file(origin.path("2.tar")).unwrap();
    let damaged = daemon.data_file("3.tar");
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[700_000] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let (ended, states) = check(&daemon, &origin, &[urls]);
    let wanted = ["whole", "stale", "missing", "whole", "absent"].map(str::to_owned).to_vec();
    assert_eq!((ended.code, &states), (1, &wanted));
    let (ended, states) = check(&daemon, &origin, &[urls, "--verify"]);
    let document = ended.document();
    assert_eq!((ended.code, &states), (1, &wanted));
    assert_eq!(document["wrong"], 1);
    assert!(document["shards"][3]["wrong"].as_str().unwrap().contains("offset="), "{document}");
    assert!(document["shards"][0].get("wrong").is_none());
    assert_eq!(document["summary"]["whole"], 2);
    assert_eq!(document["shards"][2]["tier"], "nvme", "the copy is told of");
    // Telling changed nothing, and a stale copy is replaced at the next use.
    assert_eq!(daemon.number("/cache/corruptions"), 0);
    let text = forebay(&daemon, &origin, &["dataset", "check", urls]);
    let line = |word: &str| text.out.lines().find(|line| line.contains(word)).unwrap_or_default();
    assert!(line("/1.tar").contains("stale"), "{}", text.out);
    let counts = ["5 shards", "1 absent", "1 missing", "1 stale", "2 whole"];
    assert!(counts.iter().all(|count| line("5 shards").contains(count)), "{}", text.out);
    let warm = ["dataset", "warm", "s3://bucket/1.tar", "--wait", "--json"];
    assert_eq!(forebay(&daemon, &origin, &warm).warming().fetched, 1);
    assert_eq!(check(&daemon, &origin, &["s3://bucket/1.tar"]).1, ["whole"]);
    origin.server.deny(&Origin::key("0.tar"), true);
    let (ended, states) = check(&daemon, &origin, &["s3://bucket/0.tar"]);
    assert_eq!((ended.code, &states[0][..]), (1, "unknown"));
    let document = ended.document();
    let error = document["shards"][0]["error"].as_str().unwrap();
    assert!(error.contains("status=403"), "{error}");
}

/// An embedded daemon without jobs stays until what it was asked for is there.
#[test]
fn private_daemon_stays_for_its_warm_up() {
    let origin = Origin::with_shards(2, SAMPLES, &SIZES);
    let home = UserHome::new(ACTOR);
    origin.server.stall(&Origin::key("1.tar"), 0);
    let mut command = home.forebay(&["dataset", "warm", "s3://bucket/{0..1}.tar"]);
    assert!(command.envs(origin.environment()).output().unwrap().status.success());
    eventually("the first is there", || {
        home.status().is_some_and(|status| status["warm_ups"][0]["fetched"] == 1)
    });
    // Twice as long as it stays without anybody; what is shown is that it is still there.
    let uptime = || home.status().and_then(|status| status["uptime_seconds"].as_f64());
    eventually("it outlasts its idle time", || uptime().is_some_and(|seconds| seconds > 3.0));
    origin.server.release(&Origin::key("1.tar"));
    eventually("it is gone when nothing is left to do", || home.daemons().is_empty());
    assert_eq!(origin.served("1.tar"), size(&origin, "1.tar"));
}

#[test]
fn shards_of_real_servers_are_warmed_and_checked() {
    for source in [
        TestSource::http().unwrap(),
        TestSource::s3_on_nginx().unwrap(),
        TestSource::moto().unwrap(),
        TestSource::disk().unwrap(),
    ] {
        let disk = Daemon::disk();
        let daemon = Daemon::start(disk.path());
        let run = |verb: &str, more: &[&str]| {
            let urls = [source.url("a.tar"), source.url("b.tar")];
            let mut command = Command::new(ACTOR);
            command.args(["dataset", verb, "--json"]).args(more).args(&urls);
            command.env("FOREBAY_DAEMON", format!("unix:{}", daemon.socket().display()));
            command.envs(&source.environment).stdin(Stdio::null());
            ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        let states = |ended: &Ended| {
            let document = ended.document();
            [0, 1].map(|n| document["shards"][n]["state"].as_str().unwrap().to_owned())
        };
        source.put("a.tar", &shard(LONG, 0, &SIZES));
        let warmed = run("warm", &["--wait"]);
        assert_eq!((warmed.code, warmed.warming().fetched), (1, 1), "{}", source.name);
        assert!(!warmed.out.contains(source.secret()), "{}", warmed.out);
        assert_eq!(states(&run("check", &["--verify"])), ["whole", "missing"], "{}", source.name);
        source.put("a.tar", &shard(LONG + 1, 0, &SIZES));
        source.put("b.tar", &shard(3, 1, &SIZES));
        let checked = run("check", &[]);
        assert_eq!(
            (checked.code, states(&checked)),
            (1, ["stale".to_owned(), "absent".to_owned()]),
            "{}",
            source.name
        );
        assert!(!checked.out.contains(source.secret()), "{}", checked.out);
        assert_eq!(run("warm", &["--wait"]).warming().fetched, 2, "{}", source.name);
        let checked = run("check", &["--verify"]);
        assert_eq!(
            (checked.code, states(&checked)),
            (0, ["whole".to_owned(), "whole".to_owned()]),
            "{}",
            source.name
        );
        let open = job_with(source.environment.clone(), vec![source.url("b.tar")]);
        assert_eq!(epoch(daemon.address(), open).unwrap().samples.len(), 3);
    }
}
