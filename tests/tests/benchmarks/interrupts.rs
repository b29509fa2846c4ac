//! Benchmarks that a signal ends: what was measured is told, what was made is removed, and whoever
//! worked for them has ended.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use forebay_tests::{Origin, UserHome, alive, eventually, interruptible};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 3;
const SAMPLES: u64 = 20;

/// End of a benchmark.
struct Ended {
    code: Option<i32>,
    report: Value,
    said: String,
}

/// Prepares a benchmark whose temporary files have a folder of their own.
fn prepared(command: &mut Command, folder: &Path) -> Command {
    let mut command = interruptible(command.env("TMPDIR", folder));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(command: &mut Command, folder: &Path) -> Child {
    prepared(command, folder).spawn().unwrap()
}

fn ended(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits until a household's daemon has read so many bytes from its tiers.
fn read(home: &UserHome, bytes: u64) {
    eventually("epochs have been played", || {
        let Some(status) = home.status() else { return false };
        let tiers = status["tiers"].as_array().unwrap();
        let read = |tier: &Value| tier["tier_read_bytes"].as_u64().unwrap();
        tiers.iter().map(read).sum::<u64>() > bytes
    });
}

fn stored(origin: &Origin) -> u64 {
    (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum()
}

/// Whole epochs are told, and the exit code is the signal's.
#[test]
fn interrupted_starvation_reports_whole_epochs() {
    for (signal, code, name) in [(Signal::INT, 130, "SIGINT"), (Signal::TERM, 143, "SIGTERM")] {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
        let mut command = home.forebay(&["bench", "starvation", "s3://bucket/{0..2}.tar"]);
        command.args(["--daemon", "embedded", "--raw", "--batch-size", "8", "--json"]);
        command.args(["--step", "0.001", "--epochs", "1000000"]).envs(origin.environment());
        let child = start(&mut command, folder.path());
        read(&home, 4 * stored(&origin));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = ended(child);
        assert_eq!(ended.code, Some(code), "{}", ended.said);
        assert!(ended.said.contains(name), "{}", ended.said);
        let epochs = ended.report["epochs"].as_array().unwrap();
        assert!(epochs.len() >= 2 && epochs.iter().all(|epoch| epoch["steps"] == 6), "{epochs:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        eventually("no daemon is left", || home.daemons().is_empty());
    }
}

/// A step that takes an hour does not hold it up, and of nothing measured nothing is told.
#[test]
fn interrupt_ends_a_long_step() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    let mut command = home.forebay(&["bench", "starvation", "s3://bucket/{0..2}.tar"]);
    command.args(["--daemon", "embedded", "--raw", "--batch-size", "8", "--step", "3600"]);
    let child = start(command.envs(origin.environment()), folder.path());
    eventually("the first step is under way", || {
        let samples = |status: Value| status["jobs"][0]["progress"]["samples"].as_u64();
        home.status().and_then(samples).is_some_and(|samples| samples > 0)
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = ended(child);
    assert_eq!((ended.code, ended.report), (Some(130), Value::Null), "{}", ended.said);
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Cases that were measured are told.
#[test]
fn interrupted_throughput_reports_whole_cases() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    let mut command = home.forebay(&["bench", "throughput", "s3://bucket/{0..2}.tar"]);
    let many = (1..=100).map(|threads| threads.to_string()).collect::<Vec<_>>().join(",");
    command.args(["--daemon", "embedded", "--batch-size", "8", "--rounds", "9", "--json"]);
    command.args(["--threads", &many]).envs(origin.environment());
    let child = start(&mut command, folder.path());
    read(&home, 12 * stored(&origin));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = ended(child);
    assert_eq!(ended.code, Some(143), "{}", ended.said);
    let cases = ended.report["cases"].as_array().unwrap();
    assert!((1..100).contains(&cases.len()), "{}", ended.report);
    let rounds = |case: &Value| case["warm"]["rounds"].as_array().unwrap().len();
    assert!(cases.iter().all(|case| rounds(case) == 9));
    eventually("no daemon is left", || home.daemons().is_empty());
}

/// Figures until then are reported, and the folder of temporary files is removed.
#[test]
fn interrupted_scale_removes_its_files() {
    let home = UserHome::new(ACTOR);
    let (folder, directory) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut command = home.forebay(&["bench", "scale", "--json", "--max-samples", "10000"]);
    command.args(["--max-shards", "10", "--max-cached", "1000000", "--directory"]);
    let child = start(command.arg(directory.path()), folder.path());
    let laid = || {
        let made = fs::read_dir(directory.path()).unwrap().next()?.ok()?;
        Some(fs::read_dir(made.path().join("cache/shards")).ok()?.count())
    };
    eventually("shards are laid", || laid().is_some_and(|laid| laid > 100));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = ended(child);
    assert_eq!(ended.code, Some(130), "{}", ended.said);
    let growths = ended.report["growths"].as_array().unwrap();
    let of = |name: &str| {
        growths.iter().filter(|one| one["name"].as_str().unwrap().starts_with(name)).count()
    };
    assert_eq!((of("plan"), of("policy"), of("start"), of("jobs")), (2, 7, 1, 0));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The contest's scripts are asked to end, and their document is told; what they started is gone,
/// and so are all folders. A Ctrl-C of a terminal goes to all of its foreground group: the scripts
/// hear of it from the benchmark alone.
#[test]
fn interrupted_contest_reports_its_results() {
    let origin = Origin::with_shards(1, 4 * SAMPLES, &SIZES);
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    let (work, temporary) = (folder.path().join("work"), folder.path().join("tmp"));
    fs::create_dir(&temporary).unwrap();
    let (shard, python) = (folder.path().join("0.tar"), folder.path().join("python"));
    let started = folder.path().join("started");
    fs::write(&shard, origin.bytes("0.tar")).unwrap();
    let document = r#"{"contenders": [{"name": "forebay"}, {"name": "spdl"}]}"#;
    // A loader that does not listen, and holds the standard error.
    let script = format!(
        "#!/bin/sh\ntrap 'exit 9' INT\ntrap \"echo '{}'; exit 143\" TERM\ncat > /dev/null\n\
         (trap '' TERM; exec sleep 600) &\necho $! > {started}.part; mv {started}.part {started}\nwait\n",
        document.replace('"', "\\\""),
        started = started.display()
    );
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = home.forebay(&["bench", "starvation", "--daemon", "embedded", "--raw"]);
    command.args(["--step", "0.001", "--batch-size", "8", "--json", "--rivals", "spdl"]);
    command.arg("--python").arg(&python).arg("--work").arg(&work).arg(&shard);
    let child = prepared(&mut command, &temporary).process_group(0).spawn().unwrap();
    eventually("the contest is played", || started.exists());
    let loader: u32 = fs::read_to_string(&started).unwrap().trim().parse().unwrap();
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = ended(child);
    assert_eq!(ended.code, Some(130), "{}", ended.said);
    assert_eq!(ended.report["contest"], serde_json::from_str::<Value>(document).unwrap());
    assert_eq!(ended.report["epochs"].as_array().unwrap().len(), 2);
    assert!(ended.said.contains(work.join("contest.json").to_str().unwrap()), "{}", ended.said);
    eventually("nothing that it started is left", || !alive(loader));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    eventually("no daemon is left", || home.daemons().is_empty());
}
