//! A node and a trainer as processes of their own.
//!
//! The test holds the standard input of each process, and the process ends with it. A failed
//! test leaves nothing behind.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Address, Next};
use forebay_error::{Doing, Result};
use forebay_testkit::pause;
use forebay_wire::message::{Begin, Open};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::cache_contents::CacheContents;
use crate::kill_point::{KillPoint, KillingFiles};
use crate::node::Daemon;
use crate::saving_node::saves_anywhere;
use crate::trainer::{TrainerJob, epoch, loader, next};

/// Path of `forebay-actor`: this program, or the one built beside this test.
///
/// # Panics
/// If a process does not know its program.
#[must_use]
pub(crate) fn actor() -> PathBuf {
    let program = std::env::current_exe().expect("a process knows its program");
    match program.file_name() {
        Some(name) if name == ACTOR => program,
        _ => program.ancestors().nth(2).expect("tests lie in a folder of the build").join(ACTOR),
    }
}

/// File name of the actor.
const ACTOR: &str = "forebay-actor";

/// Configuration of a node process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Cache directory.
    pub cache: PathBuf,
    /// Socket.
    pub socket: PathBuf,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Call at which it kills itself.
    pub kill_point: Option<KillPoint>,
    /// Time limit of a file system, if not the default.
    pub file_timeout: Option<Duration>,
    /// True if it saves checkpoints anywhere.
    pub saves: bool,
}

/// A node process; killed when dropped.
pub struct NodeProcess(Process);

/// A trainer process that plays a job again and again; killed when dropped.
pub struct Reader(Process);

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(actor: &str, verb: &str, what: &impl Serialize) -> Self {
        let mut child = Command::new(actor)
            .arg(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the actor starts");
        let stdin = child.stdin.as_mut().expect("piped just above");
        let line = serde_json::to_string(what).expect("it is JSON");
        writeln!(stdin, "{line}").expect("the actor reads its part");
        let lines = BufReader::new(child.stdout.take().expect("piped just above")).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> Option<String> {
        self.lines.next()?.ok()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Fails if it ended by itself.
        let _ = kill_process(pid.expect("a process id"), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NodeProcess {
    /// Starts a process of the program `actor` and waits until it listens or died.
    ///
    /// # Panics
    /// If it does not start though it was not told to die, or if its counters differ from its
    /// directory.
    #[must_use]
    pub fn start(actor: &str, setup: &Setup) -> (Self, Option<String>) {
        let mut process = Process::start(actor, "node", setup);
        let line = process.line();
        let died = line.clone().filter(|line| line.starts_with("died "));
        assert!(died.is_some() || line.as_deref() == Some("ready"), "{line:?}");
        (Self(process), died)
    }

    /// Kills it by SIGKILL.
    pub fn kill(&self) {
        self.0.signal(Signal::KILL);
    }

    /// Waits until it died; returns the last line of its output, if any.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[must_use]
    pub fn end(mut self) -> Option<String> {
        let mut last = None;
        while let Some(line) = self.0.line() {
            last = Some(line);
        }
        self.0.child.wait().expect("a child can be waited for");
        last
    }

    /// Ends its standard input and waits.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[must_use]
    pub fn stop(mut self) -> ExitStatus {
        drop(self.0.child.stdin.take());
        while self.0.line().is_some() {}
        self.0.child.wait().expect("a child can be waited for")
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }
}

impl Reader {
    /// Starts a trainer of `open` at this daemon and waits for its first batch.
    ///
    /// # Panics
    /// If it gets none.
    #[must_use]
    pub fn start(actor: &str, socket: &Path, open: &Open) -> Self {
        let mut process = Process::start(actor, "read", &(socket, open));
        assert_eq!(process.line().as_deref(), Some("batch"), "the reader gets a batch");
        Self(process)
    }

    /// Stops it by SIGSTOP: it keeps everything it holds.
    ///
    /// # Panics
    /// If it ended.
    pub fn pause(&self) {
        pause(self.0.child.id()).expect("it runs until now");
    }
}

/// Runs the actor as a node: serves until standard input ends. Compares counters and directory
/// before it accepts connections.
///
/// # Errors
/// The node's, if it does not start.
///
/// # Panics
/// If its counters differ from the directory.
pub fn serve_until_eof() -> Result<()> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).doing("read what to do")?;
    let setup: Setup = serde_json::from_str(&line).expect("a set-up is given");
    let killing = Arc::new(KillingFiles::new(setup.kill_point));
    let mut config = Daemon::config(&setup.cache, setup.capacity);
    if let Some(limit) = setup.file_timeout {
        config.limits.file_timeout = limit;
    }
    if setup.saves {
        config = saves_anywhere(config);
    }
    config.files = killing.clone();
    config.faults = Some(killing);
    let check = |store: &forebay_store::Store| {
        let (used, rest) = (store.counters().used_bytes, CacheContents::of(&setup.cache));
        let used = used - store.staged_bytes();
        assert!(used == rest.bytes() && rest.others.is_empty(), "{used} bytes count of {rest:?}");
    };
    let daemon = Daemon::try_start_after(config, &setup.socket, check)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready").doing("tell that it is ready")?;
    // Only the end of the input matters.
    let _ = input.read_to_end(&mut Vec::new());
    daemon.stop();
    Ok(())
}

/// Runs the actor as a reader: reports its first batch, and plays on until it is killed or standard
/// input ends.
///
/// # Errors
/// The loader's, if there is no batch.
///
/// # Panics
/// If standard input holds no job.
pub fn read_until_eof() -> Result<()> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).doing("read what to do")?;
    let (socket, open): (PathBuf, Open) = serde_json::from_str(&line).expect("a job is given");
    std::thread::spawn(move || {
        let _ = input.read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let loader = loader(Address::Unix(socket), open)?;
    for number in 0.. {
        loader.start(Begin::at(number, 0))?;
        while let Next::Batch(batch) = next(&loader)? {
            if (number, batch.index) == (0, 0) {
                writeln!(std::io::stdout(), "batch").doing("tell of a batch")?;
            }
        }
    }
    Ok(())
}

/// Runs the actor as a trainer of one epoch: plays the job on standard input and checks its
/// samples. Writes an error as JSON.
///
/// # Errors
/// The loader's, if the epoch fails.
///
/// # Panics
/// If standard input holds no job, or if a sample differs.
pub fn play_once() -> Result<()> {
    let given = serde_json::from_reader(std::io::stdin());
    let (socket, part): (PathBuf, TrainerJob) = given.expect("a part is given");
    let played = epoch(Address::Unix(socket), part.open);
    let played = played.and_then(|mut epoch| epoch.errors.pop().map_or(Ok(epoch), Err));
    if let Err(error) = &played {
        let error = serde_json::to_string(error).expect("an error encodes");
        writeln!(std::io::stdout(), "{error}").doing("report an error")?;
    }
    let epoch = played?;
    epoch.assert_whole(part.shards, part.samples, &part.sizes);
    Ok(())
}
