//! Processes stopped by SIGSTOP.

use std::path::Path;
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
    let tasks = format!("/proc/{pid}/task");
    let deadline = Instant::now() + PATIENCE;
    while !are_stopped(Path::new(&tasks)).doing("read the states of a process's threads")? {
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::Unavailable, "a process does not stop"));
        }
        std::thread::park_timeout(LOOK);
    }
    Ok(())
}

/// True if all threads in a folder of `/proc` are stopped. One that ended meanwhile is.
fn are_stopped(tasks: &Path) -> std::io::Result<bool> {
    let mut lives = false;
    for task in std::fs::read_dir(tasks)? {
        let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
        // The program's name before the state may hold any character.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        match state {
            Some('T') => lives = true,
            // Nobody took its exit status yet.
            Some('Z' | 'X') => {}
            _ => return Ok(false),
        }
    }
    if lives { Ok(true) } else { Err(std::io::ErrorKind::NotFound.into()) }
}
