//! Processes stopped by SIGSTOP, and the states of threads.

use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Limit of a stop: a thread stops once it is scheduled, far sooner even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two checks: short beside any test, long beside the cost of a check.
const LOOK: Duration = Duration::from_millis(1);

/// Stops a process and waits until none of its threads runs. The signal alone stops none of them:
/// until the thread that receives it is scheduled, the others go on.
///
/// # Errors
/// `NotFound` if the process ended, `Unavailable` if a thread of it runs on.
pub fn pause(pid: u32) -> Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| Error::new(ErrorKind::Invalid, "no process id"))?;
    kill_process(process, Signal::STOP).map_err(std::io::Error::from).doing("stop a process")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let states = living_threads(pid);
        if states.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the process ended"));
        }
        if states.iter().all(|state| *state == 'T') {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::Unavailable, "a process does not stop"));
        }
        std::thread::park_timeout(LOOK);
    }
}

/// Returns the states of a process's threads, as letters of `proc(5)`; none once it ended. Zombies
/// are left out: nobody took their exit status yet.
#[must_use]
pub fn living_threads(pid: u32) -> Vec<char> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = threads.filter_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // The program's name before the state may hold any character.
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    });
    states.filter(|state| !matches!(state, 'Z' | 'X')).collect()
}
