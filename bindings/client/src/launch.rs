//! The embedded daemon: a private one per user, started by whoever comes first.
//!
//! One rule: a lock decides, not luck. A client that finds nobody listening takes `start.lock`,
//! looks again, and only then starts a daemon and waits until it listens; eight ranks at once make
//! one daemon. The daemon itself holds `daemon.lock` for its life and leaves at once if another
//! holds it.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use crate::address::is_absent;
use crate::connection::Connection;

/// A daemon opens its ring and its directory and listens; half a minute covers a node whose disk is
/// saturated by the job's own start.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a user's embedded daemon keeps its socket, locks and log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    /// `$XDG_RUNTIME_DIR/forebay`, else `forebay-<uid>` under the temp directory; made 0700 and
    /// refused if it is anybody else's.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to someone else or others may enter it.
    pub fn of_this_user() -> Result<Self> {
        let uid = rustix::process::geteuid();
        let path = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
            Some(runtime) => Path::new(&runtime).join("forebay"),
            None => std::env::temp_dir().join(format!("forebay-{}", uid.as_raw())),
        };
        Self::at(path)
    }

    /// The directory at `path`, made if missing and checked.
    ///
    /// # Errors
    /// As [`RuntimeDirectory::of_this_user`].
    pub fn at(path: PathBuf) -> Result<Self> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error)
                    .doing("make the runtime directory")
                    .map_err(|error| error.at("path", path.display()));
            }
            _ => {}
        }
        // A link planted in a shared temp directory must not lead elsewhere.
        let found = path.symlink_metadata().doing("stat the runtime directory")?;
        let uid = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
            return Err(Error::new(
                ErrorKind::PermissionDenied,
                "the runtime directory is not private to this user",
            )
            .at("path", path.display())
            .advise(format!("remove it, or make it `chmod 700` and owned by uid {uid}")));
        }
        Ok(Self(path))
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join("forebayd.sock")
    }

    /// The lock a daemon holds while it lives.
    #[must_use]
    pub fn daemon_lock(&self) -> PathBuf {
        self.0.join("daemon.lock")
    }

    /// What the daemon logs.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("forebayd.log")
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn start_lock(&self) -> PathBuf {
        self.0.join("start.lock")
    }
}

/// How to start this user's daemon.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Program and arguments; the daemon writes a line to its standard output once it listens.
    pub command: Vec<OsString>,
    /// Where it lives.
    pub directory: RuntimeDirectory,
}

impl Launch {
    /// Connects to this user's daemon, starting one if nobody listens.
    ///
    /// # Errors
    /// `Unavailable` if a daemon was started and does not listen, quoting its log.
    pub fn connect(&self, deadline: Instant) -> Result<Connection> {
        let socket = self.directory.socket();
        match Connection::open(&socket) {
            Err(error) if is_absent(&error) => {}
            answered => return answered,
        }
        // Whoever holds this lock is bounded by READY_TIMEOUT, and a killed holder frees it.
        let lock = open_lock(&self.directory.start_lock())?;
        flock(&lock, FlockOperation::LockExclusive).doing("take the start lock")?;
        match Connection::open(&socket) {
            Err(error) if is_absent(&error) => {}
            answered => return answered,
        }
        self.start(deadline)?;
        match Connection::open(&socket) {
            // "Ready" may have meant a daemon of somebody killed since, which was about to end.
            Err(error) if is_absent(&error) => self.start(deadline)?,
            answered => return answered,
        }
        Connection::open(&socket)
    }

    /// Starts a daemon and waits until it listens, or until it ended.
    fn start(&self, deadline: Instant) -> Result<()> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Error::new(ErrorKind::Invalid, "no command to start a daemon with"));
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.directory.log())
            .doing("open the daemon's log")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // The daemon makes a session of its own as its first act, so that a Ctrl-C meant for the
            // trainer does not reach it. It could not if it led a process group already.
            .stderr(log);
        let mut child = command
            .spawn()
            .doing("start the daemon")
            .map_err(|error| error.at("command", Path::new(program).display()))?;
        let mut ready = child.stdout.take().expect("stdout was piped just above");
        let limit = deadline.min(Instant::now() + READY_TIMEOUT);
        let line = wait_for_line(&mut ready, limit)?;
        // The daemon detaches: the process we started is reaped by a thread of no other use.
        std::thread::Builder::new()
            .name("fb-reap".into())
            .spawn(move || child.wait())
            .doing("start a thread")?;
        if line {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the daemon did not start")
            .at("log", self.directory.log().display())
            .advise(format!("its last words: {}", self.last_words())))
    }

    fn last_words(&self) -> String {
        let text = std::fs::read(self.directory.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .doing("open a lock")
        .map_err(|error| error.at("path", path.display()))
}

/// Waits for any output: true if some came, false if the writer ended or the limit passed.
fn wait_for_line(from: &mut (impl Read + std::os::fd::AsFd), limit: Instant) -> Result<bool> {
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for the daemon"),
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(from.read(&mut [0; 16]).doing("hear from the daemon")? > 0),
        }
    }
}
