//! Processes of the demonstration: this very program as a daemon, and as a benchmark.
//!
//! Each is in a process group of its own, so that Ctrl-C reaches this process alone, which ends
//! them in order.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::stop::Stop;
use crate::Launcher;

/// A daemon opens its ring and its directory and listens within this time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that was told to end has this long; a daemon finishes its writes.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Seconds without a job after which the daemon ends by itself, if this process was killed.
const IDLE_SECONDS: &str = "30";

/// Command that runs this program on a cache of its own.
pub(super) struct Program<'a> {
    pub(super) launcher: &'a Launcher,
    pub(super) cache: &'a Path,
}

/// A daemon that was started; killed if it is dropped.
pub(super) struct Daemon(Child);

impl Program<'_> {
    fn command(&self, arguments: &[OsString]) -> Result<Command> {
        let Some((program, first)) = self.launcher.split_first() else {
            return Err(Error::new(ErrorKind::Invalid, "the program's own command is not known"));
        };
        let mut command = Command::new(program);
        command
            .args(first)
            .args(arguments)
            .env("FOREBAY_DAEMON", "embedded")
            .env("FOREBAY_CACHE", self.cache)
            .env("FOREBAY_IDLE", IDLE_SECONDS)
            .env_remove("FOREBAY_CAPACITY")
            // A proxy does not reach this machine's loopback.
            .envs([("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1")])
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Starts a daemon, whose log goes to `log`, and waits until it listens.
    ///
    /// # Errors
    /// `Unavailable` if it does not start, with its log; `Closed` once a signal came.
    pub(super) async fn daemon(&self, log: &Path, stop: &mut Stop) -> Result<Daemon> {
        let lines = File::create(log).doing("make the daemon's log")?;
        let mut command = self.command(&["daemon".into(), "--embedded".into()])?;
        command.stdout(Stdio::piped()).stderr(lines);
        let mut daemon = Daemon(command.spawn().doing("start a daemon")?);
        let mut ready = BufReader::new(daemon.0.stdout.take().expect("piped just above")).lines();
        let first = tokio::select! {
            line = timeout(START_TIMEOUT, ready.next_line()) => line.ok().and_then(Result::ok),
            error = stop.came() => {
                daemon.end().await;
                return Err(error);
            }
        };
        if first.flatten().is_some() {
            return Ok(daemon);
        }
        daemon.end().await;
        let said = std::fs::read_to_string(log).unwrap_or_default();
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the daemon did not start: {}", said.trim()),
        )
        .advise("run forebay doctor"))
    }

    /// Runs the program to its end, or until a signal comes, which ends it.
    ///
    /// # Errors
    /// `Closed` once a signal came.
    pub(super) async fn run(&self, arguments: &[OsString], stop: &mut Stop) -> Result<ExitStatus> {
        let mut child = self.command(arguments)?.spawn().doing("start this program")?;
        let ended = tokio::select! {
            ended = child.wait() => Ok(ended),
            error = stop.came() => Err(error),
        };
        match ended {
            Ok(ended) => ended.doing("wait for this program"),
            Err(error) => {
                end(&mut child).await;
                Err(error)
            }
        }
    }
}

impl Daemon {
    /// Ends it.
    pub(super) async fn end(mut self) {
        end(&mut self.0).await;
    }
}

/// Asks a process to end, and kills it if that takes too long.
async fn end(child: &mut Child) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
    if !asked || timeout(END_TIMEOUT, child.wait()).await.is_err() {
        // It has ended, or hangs.
        let _ = child.kill().await;
    }
}
