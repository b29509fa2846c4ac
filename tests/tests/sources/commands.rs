//! Shards that are what a command says: run by the job that names them, cached by the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forebay_error::{Error, ErrorKind, Result};
use forebay_testkit::shard;
use forebay_tests::{
    Daemon, PATIENCE, TrainerJob, config, epoch, eventually, job_with, loader, next,
};
use forebay_wire::message::{Begin, Open};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};
use tempfile::TempDir;

use crate::ACTOR;

/// Three parts.
const SIZES: std::ops::Range<usize> = 90_000..110_000;
const SAMPLES: u64 = 100;

/// More than a part, and no end of a sample.
const SOME: u64 = 5_000_000;

/// A daemon, and a folder with a shard that commands read.
struct Bench {
    daemon: Option<Daemon>,
    folder: TempDir,
    capacity: u64,
}

impl Bench {
    fn new() -> Self {
        Self::of(1 << 28)
    }

    fn of(capacity: u64) -> Self {
        let folder = Daemon::disk();
        fs::write(folder.path().join("0.tar"), shard(SAMPLES, 0, &SIZES)).unwrap();
        let mut bench = Self { daemon: None, folder, capacity };
        bench.start();
        bench
    }

    fn start(&mut self) {
        self.daemon = None;
        let config = Daemon::config(&self.folder.path().join("cache"), self.capacity);
        self.daemon = Some(Daemon::try_start(config).unwrap());
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A script, with the folder for its working directory, as a shard.
    fn url(&self, script: &str) -> String {
        format!("pipe:cd {}; {script}", self.folder.path().display())
    }

    fn job(&self, script: &str) -> Open {
        job_with(BTreeMap::new(), vec![self.url(script)])
    }

    /// Plays an epoch of one shard: its bytes are right, or why there are none.
    fn play(&self, script: &str) -> Result<(), Error> {
        let mut played = epoch(self.daemon().address(), self.job(script))?;
        match played.errors.pop() {
            Some(error) => Err(error),
            None => {
                played.assert_whole(1, SAMPLES, &SIZES);
                Ok(())
            }
        }
    }

    /// Lines that scripts wrote: one each time that they ran.
    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).map_or(0, |runs| runs.lines().count())
    }

    /// The only whole shard, as it rests.
    fn resting(&self) -> Vec<u8> {
        let files = self.daemon().files();
        let whole = |file: &&PathBuf| files.contains(&format!("{}.idx", file.display()).into());
        let whole: Vec<_> = files.iter().filter(whole).collect();
        assert_eq!(whole.len(), 1, "{files:?}");
        fs::read(whole[0]).unwrap()
    }

    fn used(&self) -> u64 {
        self.daemon().number("/tiers/0/used_bytes")
    }

    /// The process that a script noted with `echo $$ > pid`.
    fn pid(&self) -> Pid {
        let read = || fs::read_to_string(self.path("pid")).ok()?.trim().parse().ok();
        eventually("the command runs", || read().is_some());
        Pid::from_raw(read().unwrap()).unwrap()
    }

    fn fills(&self) -> u64 {
        self.daemon().number("/cache/fills")
    }
}

fn is_gone(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
}

/// It runs once, though several epochs, jobs and daemons want what it says.
#[test]
fn command_output_is_cached() {
    let mut bench = Bench::new();
    let script = "echo x >> runs; cat 0.tar";
    bench.play(script).unwrap();
    eventually("the shard is whole", || bench.fills() == 1);
    assert_eq!(bench.resting(), fs::read(bench.path("0.tar")).unwrap());
    assert_eq!(bench.daemon().number("/cache/origin_bytes"), bench.resting().len() as u64);
    bench.play(script).unwrap();
    bench.start();
    bench.play(script).unwrap();
    assert_eq!(bench.runs(), 1);
    // Whoever drops the copy asks for another run.
    let socket = format!("unix:{}", bench.daemon().socket().display());
    let evict = Command::new(ACTOR)
        .args(["dataset", "evict", &bench.url(script)])
        .env("FOREBAY_DAEMON", socket)
        .output()
        .unwrap();
    assert!(evict.status.success(), "{evict:?}");
    bench.play(script).unwrap();
    assert_eq!(bench.runs(), 2);
}

/// Several want it while it runs: one of them runs it.
#[test]
fn concurrent_jobs_run_a_command_once() {
    let bench = Bench::new();
    let script = "echo x >> runs; cat 0.tar";
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| bench.play(script).unwrap());
        }
    });
    assert_eq!(bench.runs(), 1);
}

#[test]
fn compressed_command_output_is_unpacked() {
    let bench = Bench::new();
    bench.play("gzip -1 < 0.tar").unwrap();
    eventually("the shard is whole", || bench.fills() == 1);
    assert_eq!(bench.resting(), fs::read(bench.path("0.tar")).unwrap());
    let sent = bench.daemon().number("/cache/origin_bytes");
    assert!(sent > 0 && sent < bench.resting().len() as u64, "{sent}");
}

/// A command that failed may have said half of a shard, or none of it: nothing is kept of that, and
/// the next attempt is a whole one.
#[test]
fn output_of_a_failed_command_is_not_kept() {
    let bench = Bench::new();
    let half =
        format!("echo x >> runs; test -e good && cat 0.tar || {{ head -c {SOME} 0.tar; exit 3; }}");
    for (script, kind, status) in [
        (half.as_str(), ErrorKind::Unavailable, "exit status: 3"),
        ("exit 1", ErrorKind::Unavailable, "exit status: 1"),
        ("cat no-such.tar", ErrorKind::Unavailable, "exit status: 1"),
        ("no-such-command", ErrorKind::NotFound, "exit status: 127"),
        ("head -c 5000000 0.tar; kill -9 $$", ErrorKind::Unavailable, "signal: 9 (SIGKILL)"),
    ] {
        let error = bench.play(script).unwrap_err();
        assert_eq!(
            (error.kind(), error.place("status")),
            (kind, Some(status)),
            "{script}: {error}"
        );
    }
    // A command that succeeds and writes no shard: only the empty one has no offset of its fault.
    for (script, has_offset) in
        [("true", false), ("echo no tar", true), ("head -c 5000000 0.tar", true)]
    {
        let error = bench.play(script).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{script}: {error}");
        assert!(error.place("url").unwrap().starts_with("pipe:cd"), "{script}: {error}");
        assert_eq!(error.place("offset").is_some(), has_offset, "{script}: {error}");
    }
    let runs = bench.runs();
    fs::write(bench.path("good"), "").unwrap();
    bench.play(&half).unwrap();
    assert_eq!(bench.runs(), runs + 1);
}

/// A pipeline tells only how its last command ended: what broke off is found by its bytes, and is
/// no answer for jobs to come.
#[test]
fn truncated_stream_is_requested_again() {
    let bench = Bench::new();
    let script = format!("{{ test -e good && cat 0.tar || head -c {SOME} 0.tar; }} | cat");
    assert_eq!(bench.play(&script).unwrap_err().kind(), ErrorKind::Corrupt);
    fs::write(bench.path("good"), "").unwrap();
    // Until the job before is quite gone.
    eventually("it is asked for again", || bench.play(&script).is_ok());
}

/// A job that has begun outlives a command that fails once, as it does a store that is away.
#[test]
fn running_job_retries_a_failed_command() {
    let bench = Bench::new();
    fs::write(bench.path("1.tar"), shard(SAMPLES, 1, &SIZES)).unwrap();
    let flaky = "echo x >> runs; mkdir once 2>/dev/null && exit 1; cat 1.tar";
    let mut open = bench.job("cat 0.tar");
    open.urls.push(bench.url(flaky));
    open.patience_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
    let played = epoch(bench.daemon().address(), open).unwrap();
    assert_eq!(played.errors, []);
    played.assert_whole(2, SAMPLES, &SIZES);
    assert_eq!(bench.runs(), 2);
}

/// Endless output is no tar, or fits no tier: either ends the command, and releases its resources.
#[test]
fn endless_command_is_killed() {
    let bench = Bench::of(48 << 20);
    for (script, kind) in [
        ("echo $$ > pid; exec yes", ErrorKind::Corrupt),
        ("echo $$ > pid; exec cat 0.tar /dev/zero", ErrorKind::Full),
    ] {
        let _ = fs::remove_file(bench.path("pid"));
        let error = bench.play(script).unwrap_err();
        assert_eq!(error.kind(), kind, "{script}: {error}");
        let pid = bench.pid();
        eventually("the command is ended", || is_gone(pid));
        eventually("its room is free", || bench.used() == 0);
    }
}

/// Nobody reads any more what a job's commands say that is gone.
#[test]
fn command_ends_with_its_job() {
    let bench = Bench::new();
    let open = bench.job(&format!("echo $$ > pid; head -c {SOME} 0.tar; sleep 3600 & wait"));
    let loader = loader(bench.daemon().address(), open).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    next(&loader).unwrap();
    let pid = bench.pid();
    assert!(!is_gone(pid));
    drop(loader);
    eventually("the command is ended", || is_gone(pid));
    eventually("its room is free", || bench.used() == 0);
}

/// A trainer that reads one epoch in a process of its own.
fn trainer(bench: &Bench, script: &str) -> Child {
    let part = TrainerJob { open: bench.job(script), shards: 1, samples: SAMPLES, sizes: SIZES };
    let part = serde_json::to_string(&(bench.daemon().socket(), part)).unwrap();
    let mut trainer = Command::new(ACTOR)
        .arg("once")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    trainer.stdin.take().unwrap().write_all(part.as_bytes()).unwrap();
    trainer
}

/// A job that waits for another job's command runs it itself if that job is killed.
#[test]
fn job_reruns_the_command_of_a_killed_job() {
    let bench = Bench::new();
    let script = format!(
        "echo x >> runs; test -e go && exec cat 0.tar; echo $$ > pid; head -c {SOME} 0.tar; sleep 3600"
    );
    let mut first = trainer(&bench, &script);
    let pid = bench.pid();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| bench.play(&script));
        eventually("both are there", || {
            bench.daemon().status()["jobs"].as_array().unwrap().len() == 2
        });
        fs::write(bench.path("go"), "").unwrap();
        first.kill().unwrap();
        first.wait().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(bench.runs(), 2);
    // Its process is no child of anybody who is left, and says nothing that would end it.
    kill_process_group(pid, Signal::KILL).unwrap();
}

#[test]
fn commands_need_permission_to_run() {
    let bench = Bench::new();
    let url = bench.url("echo x >> runs; cat 0.tar");
    let job = job_with(BTreeMap::new(), vec![url.clone()]);
    let refused = forebay_client::Loader::open(config(bench.daemon().address(), job)).unwrap();
    refused.start(Begin::at(0, 0)).unwrap();
    let error = next(&refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("allow_pipe"), "{error}");
    // The command line, too: it has nobody to run them for, or was not told to.
    let manifest = bench.path("m.json");
    let forebay = |arguments: &[&str]| {
        let socket = format!("unix:{}", bench.daemon().socket().display());
        Command::new(ACTOR).args(arguments).env("FOREBAY_DAEMON", socket).output().unwrap()
    };
    for verb in [&["dataset", "warm"][..], &["dataset", "check"], &["bench", "starvation"]] {
        let told = forebay(&[verb, &[&url]].concat());
        assert_eq!(told.status.code(), Some(2), "{verb:?}: {told:?}");
    }
    let index = ["index", &url, "-o", manifest.to_str().unwrap()];
    assert_eq!(forebay(&index).status.code(), Some(2));
    assert_eq!(bench.runs(), 0);
    let told = forebay(&[&index[..], &["--allow-pipe"]].concat());
    assert!(told.status.success(), "{told:?}");
    assert_eq!(bench.runs(), 1);
    assert_manifest(&manifest);
}

fn assert_manifest(path: &Path) {
    let manifest = forebay_shard::Manifest::read(path).unwrap();
    assert_eq!(manifest.samples(), SAMPLES);
}

/// A command's arguments may be secret; the URL it reads is not.
#[test]
fn errors_show_no_secrets() {
    let bench = Bench::new();
    let url = format!("pipe:TOKEN=hunter2 cat {}/no-such.tar", bench.folder.path().display());
    let open = job_with(BTreeMap::new(), vec![url]);
    let error = epoch(bench.daemon().address(), open).unwrap_err();
    assert!(error.place("url").unwrap().ends_with("no-such.tar"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}
