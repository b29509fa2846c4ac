//! A user's cache directory, with embedded daemons and trainers as processes that may be killed.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use forebay_client::{Address, Launch, RuntimeDirectory};
use forebay_testkit::living_threads;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::node::{Daemon, daemon_status};
use crate::trainer::TrainerJob;

/// Seconds until a daemon without trainers ends: the least that the command line takes.
const IDLE: &str = "1";

/// Capacity for every shard of a test.
const CAPACITY: &str = "1GiB";

/// Cache of one user.
pub struct UserHome {
    actor: PathBuf,
    cache: TempDir,
}

/// A trainer process; killed when dropped.
pub struct Trainer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    last: Option<String>,
}

impl UserHome {
    /// A new directory, whose daemons and trainers run the program `actor`.
    ///
    /// # Panics
    /// If the directory cannot be made.
    #[must_use]
    pub fn new(actor: &str) -> Self {
        Self { actor: actor.into(), cache: Daemon::disk() }
    }

    /// Address at which its trainers find their daemon.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Embedded(Launch { command: self.command(), directory: Ok(self.directory()) })
    }

    /// The command line as its user runs it. A daemon that it starts ends soon after it.
    #[must_use]
    pub fn forebay(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.actor);
        command
            .args(arguments)
            .env_remove("FOREBAY_DAEMON")
            .env("FOREBAY_CACHE", self.cache.path())
            .env("FOREBAY_CAPACITY", CAPACITY)
            .env("FOREBAY_IDLE", IDLE);
        command
    }

    fn command(&self) -> Vec<OsString> {
        let mut cache = OsString::from("FOREBAY_CACHE=");
        cache.push(self.cache.path());
        let mut command = vec!["env".into(), cache, self.actor.clone().into()];
        let daemon = ["daemon", "--embedded", "--capacity", CAPACITY, "--idle", IDLE];
        command.extend(daemon.map(OsString::from));
        command
    }

    fn directory(&self) -> RuntimeDirectory {
        let directory = RuntimeDirectory::of(self.cache.path());
        directory.make().expect("it is private");
        directory
    }

    /// Socket of its daemon.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory().socket()
    }

    /// Status document of its daemon, if one answers.
    #[must_use]
    pub fn status(&self) -> Option<serde_json::Value> {
        daemon_status(&self.socket()).ok()
    }

    /// Log of its daemon.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory().log()
    }

    /// Directory of its cache.
    #[must_use]
    pub fn cache(&self) -> &Path {
        self.cache.path()
    }

    /// Shard directory of its cache.
    #[must_use]
    pub fn shards(&self) -> PathBuf {
        self.cache.path().join("shards")
    }

    /// Starts a trainer.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn trainer(&self, part: &TrainerJob) -> Trainer {
        let mut child = Command::new(&self.actor)
            .arg("play")
            .arg(self.cache.path())
            .args(self.command())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the actor starts");
        let stdin = child.stdin.take().expect("piped just above");
        serde_json::to_writer(stdin, part).expect("the actor reads its part");
        let lines = BufReader::new(child.stdout.take().expect("piped just above")).lines();
        Trainer { child, lines, last: None }
    }

    /// Process ids of the daemons on its cache.
    #[must_use]
    pub fn daemons(&self) -> Vec<u32> {
        let mine = self.cache.path().as_os_str().as_encoded_bytes();
        let is_mine = |pid: &u32| {
            let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|at| at == part);
            // A daemon has the directory in its environment, a trainer as an argument.
            has(&read("environ"), mine) && has(&read("cmdline"), b"--embedded")
        };
        processes().filter(is_mine).filter(|pid| alive(*pid)).collect()
    }
}

impl Trainer {
    /// Returns the next line of its output; `None` once it ended.
    pub fn line(&mut self) -> Option<String> {
        let line = self.lines.next()?.ok();
        self.last.clone_from(&line);
        line
    }

    /// Kills it by SIGKILL and waits for its end.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn kill(&mut self) {
        // Fails if it ended by itself.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Reads the rest of its output and asserts that it succeeded.
    ///
    /// # Panics
    /// If it did not.
    pub fn finish(&mut self) {
        while self.line().is_some() {}
        assert!(self.child.wait().expect("a child can be waited for").success());
        assert_eq!(self.last.as_deref(), Some("end"));
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills a process of this test by SIGKILL and waits until it is gone.
///
/// # Panics
/// If it does not end.
pub fn kill(pid: u32) {
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    // Fails if it ended by itself.
    let _ = kill_process(target, Signal::KILL);
    crate::eventually("a killed process is gone", || !alive(pid));
}

/// State and parent of a process.
pub(crate) struct ProcessStat {
    /// Letter of its state.
    pub(crate) state: char,
    /// Process id of its parent.
    pub(crate) parent: u32,
}

/// Reads the state of a process, if there is one.
pub(crate) fn stat_of(pid: u32) -> Option<ProcessStat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name before it may hold any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    Some(ProcessStat { state, parent })
}

/// True if a thread of a process runs. A zombie does not; the others may still hold files.
#[must_use]
pub fn alive(pid: u32) -> bool {
    !living_threads(pid).is_empty()
}

/// Targets of a process's open descriptors.
#[must_use]
pub fn descriptors(pid: u32) -> Vec<PathBuf> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    listed.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
