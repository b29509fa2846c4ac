//! Commands that this process runs for its daemon, with its own rights.
//!
//! It runs what its own job names, after somebody allowed that, and nothing else. A command that
//! nobody reads any more is ended, with all that it started, and so is every one when the
//! connection ends.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Doing, Error, ErrorKind, Result, command};
use forebay_wire::commands::tell;
use forebay_wire::message::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Shell for commands: the one `subprocess` and WebDataset use.
const SHELL: &str = "/bin/sh";

/// Commands that run at once for one daemon. It asks for one or two; more is no daemon of ours.
const AT_ONCE: usize = 8;

/// Time for a command without a reader to end by itself, before it is killed.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A shell's exit codes for a missing command, and for one that may not be run.
const NOT_FOUND: i32 = 127;
const NOT_ALLOWED: i32 = 126;

/// The commands of one connection.
#[derive(Debug, Default)]
pub(crate) struct Commands(Mutex<CommandState>);

#[derive(Debug, Default)]
struct CommandState {
    /// Those that jobs name; none while nobody allowed them.
    named: Option<BTreeSet<Box<str>>>,
    /// Process groups at work, by the number of their run.
    running: HashMap<u64, Pid>,
    runs: u64,
    /// No more are to be run.
    over: bool,
}

impl Commands {
    /// From now on, what jobs name is run.
    pub(crate) fn allow(&self) {
        self.lock().named.get_or_insert_default();
    }

    /// Notes which commands a request names.
    pub(crate) fn note(&self, request: &Request) {
        let urls = match request {
            Request::Open(open) => open.urls.as_slice(),
            Request::Index { url, .. } | Request::Members { url, .. } => std::slice::from_ref(url),
            _ => return,
        };
        if let Some(named) = &mut self.lock().named {
            let commands = urls.iter().filter(|url| command(url).is_some());
            named.extend(commands.map(|url| Box::from(url.as_str())));
        }
    }

    /// Runs the command of `url`, what it says going to `output`, and tells its end on `line`.
    pub(crate) fn run(self: &Arc<Self>, url: String, output: OwnedFd, line: OwnedFd) {
        let (commands, line) = (self.clone(), UnixStream::from(line));
        let running = std::thread::Builder::new().name("fb-command".into()).spawn(move || {
            let ended = commands.run_to_end(&url, output, &line);
            // Nobody may want to know any more.
            let _ = tell(&line, ended);
        });
        if let Err(error) = running {
            // The daemon finds its line closed, and says so.
            tracing::warn!(%error, "failed to start a thread that runs a command");
        }
    }

    /// Ends all that run, and lets no other begin.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        for group in state.running.values() {
            // One that is just ending is gone.
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }

    fn run_to_end(&self, url: &str, output: OwnedFd, line: &UnixStream) -> Result<()> {
        let (number, mut child) = self.start(url, output)?;
        let waited = wait(&child, line);
        if !matches!(waited, Ok(Waited::Ended)) {
            // Its children may have ignored the signal as well.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        // The pid is not reused before it is waited for.
        self.lock().running.remove(&number);
        let status = child.wait().doing("wait for a command")?;
        waited?;
        succeeded(status)
    }

    /// Starts a command that may be run, in a process group of its own.
    fn start(&self, url: &str, output: OwnedFd) -> Result<(u64, Child)> {
        let mut state = self.lock();
        let Some(script) = command(url) else {
            return Err(Error::new(ErrorKind::PermissionDenied, "the URL names no command"));
        };
        match &state.named {
            None => {
                let what = "this job runs no commands";
                return Err(Error::new(ErrorKind::PermissionDenied, what)
                    .advise("if you trust its list of shards, give allow_pipe=True"));
            }
            Some(named) if !named.contains(url) => {
                let what = "the daemon requested a command that this job does not name";
                return Err(Error::new(ErrorKind::PermissionDenied, what));
            }
            Some(_) => {}
        }
        if state.over || state.running.len() >= AT_ONCE {
            let what = "this job's limit on concurrent commands is reached";
            return Err(Error::new(ErrorKind::Unavailable, what).at("limit", AT_ONCE));
        }
        let child = Command::new(SHELL)
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(output)
            .process_group(0)
            .spawn()
            .doing("start a shell for a command")?;
        state.runs += 1;
        let number = state.runs;
        state.running.insert(number, Pid::from_child(&child));
        Ok((number, child))
    }

    fn lock(&self) -> MutexGuard<'_, CommandState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reason a command is no longer waited for.
enum Waited {
    /// It is over.
    Ended,
    /// Nobody reads it; it was asked to end.
    Unwanted,
}

/// Waits for a command's end, or for whoever reads it to go.
fn wait(child: &Child, line: &UnixStream) -> Result<Waited> {
    let pid = Pid::from_child(child);
    let process = pidfd_open(pid, PidfdFlags::empty()).doing("watch a command")?;
    let mut watched = [
        PollFd::new(&process, PollFlags::IN),
        PollFd::from_borrowed_fd(line.as_fd(), PollFlags::IN),
    ];
    until_any(&mut watched, None)?;
    if !watched[0].revents().is_empty() {
        return Ok(Waited::Ended);
    }
    // Nothing is ever sent to this end of the line: the other was closed.
    let _ = kill_process_group(pid, Signal::TERM);
    until_any(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE))?;
    Ok(Waited::Unwanted)
}

/// Waits for an event, or until the time is over.
fn until_any(watched: &mut [PollFd<'_>], limit: Option<&Timespec>) -> Result<()> {
    loop {
        match poll(watched, limit) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("watch a command"),
        }
    }
}

/// Returns an error unless a command delivered everything.
fn succeeded(status: ExitStatus) -> Result<()> {
    let failed = |kind, what: &str| {
        let error = Error::new(kind, what).at("status", status);
        Err(error.advise("read its output on the job's standard error, or run it by hand"))
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(NOT_FOUND), _) => failed(ErrorKind::NotFound, "there is no such command"),
        (Some(NOT_ALLOWED), _) => failed(ErrorKind::PermissionDenied, "the command may not be run"),
        (_, Some(_)) => failed(ErrorKind::Unavailable, "the command was killed"),
        _ => failed(ErrorKind::Unavailable, "the command failed"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use forebay_wire::commands::Line;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn allowed(urls: &[&str]) -> Arc<Commands> {
        let commands = Arc::new(Commands::default());
        commands.allow();
        for url in urls {
            let origin = BTreeMap::new();
            commands.note(&Request::Index { url: (*url).to_owned(), origin });
        }
        commands
    }

    /// Runs a command; returns its output and its result.
    fn run(commands: &Arc<Commands>, url: &str) -> (Vec<u8>, Result<()>) {
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        commands.run(url.to_owned(), theirs, far.into());
        let mut said = Vec::new();
        std::fs::File::from(output).read_to_end(&mut said).unwrap();
        (said, Line::default().try_hear(&near).unwrap().unwrap())
    }

    #[test]
    fn named_commands_run_and_report_their_end() {
        let urls = [
            "pipe:printf 'a b' | tr a-z A-Z",
            "pipe:exit 3",
            "pipe:/no/such/command",
            "pipe:kill -9 $$",
            "pipe:printf x; exit 1",
            "pipe:cat",
        ];
        let commands = allowed(&urls);
        let kind = |url| {
            let (said, ended) = run(&commands, url);
            (said, ended.err().map(|error| error.kind()))
        };
        assert_eq!(kind(urls[0]), (b"A B".to_vec(), None));
        assert_eq!(kind(urls[1]).1, Some(ErrorKind::Unavailable));
        assert_eq!(kind(urls[2]).1, Some(ErrorKind::NotFound));
        assert_eq!(kind(urls[3]).1, Some(ErrorKind::Unavailable));
        assert_eq!(kind(urls[4]), (b"x".to_vec(), Some(ErrorKind::Unavailable)));
        // It has no input to wait for.
        assert_eq!(kind(urls[5]), (Vec::new(), None));
        assert!(commands.lock().running.is_empty());
    }

    #[test]
    fn unnamed_commands_are_denied() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("ran");
        let url = format!("pipe:touch {}", mark.display());
        let not_asked = Arc::new(Commands::default());
        not_asked.note(&Request::Index { url: url.clone(), origin: BTreeMap::new() });
        let others = allowed(&["pipe:true"]);
        let over = allowed(&[&url]);
        over.end();
        for (commands, kind) in [
            (not_asked, ErrorKind::PermissionDenied),
            (others, ErrorKind::PermissionDenied),
            (over, ErrorKind::Unavailable),
        ] {
            let (said, ended) = run(&commands, &url);
            assert!(said.is_empty());
            assert_eq!(ended.unwrap_err().kind(), kind);
        }
        assert!(!mark.exists());
        let known = allowed(&[&url]);
        run(&known, &url).1.unwrap();
        assert!(mark.exists(), "the test could not fail");
    }

    /// A command is killed with its children, silent ones included.
    #[test]
    fn command_without_a_reader_is_killed() {
        // The first ends when it is asked to, the second only when it is killed.
        for script in ["sleep 3600 & wait", "trap '' TERM; echo x; sleep 3600; sleep 3600"] {
            let url = format!("pipe:{script}");
            let commands = allowed(&[&url]);
            let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let (near, far) = UnixStream::pair().unwrap();
            commands.run(url, theirs, far.into());
            drop(near);
            // The holder of the other end is gone.
            let mut said = Vec::new();
            std::fs::File::from(output).read_to_end(&mut said).unwrap();
        }
    }

    #[test]
    fn commands_end_with_their_connection() {
        let url = "pipe:echo x; sleep 3600";
        let commands = allowed(&[url]);
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        commands.run(url.to_owned(), theirs, far.into());
        let mut output = std::fs::File::from(output);
        output.read_exact(&mut [0; 2]).unwrap();
        commands.end();
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }
}
