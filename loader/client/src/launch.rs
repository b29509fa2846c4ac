//! The embedded daemon: one per cache directory, started by the first trainer.
//!
//! A lock decides, not luck. A client that finds nobody listening takes `start.lock`,
//! looks again, and only then starts a daemon and waits until it listens; eight ranks at once make
//! one daemon. The daemon itself holds `daemon.lock` for its life and leaves at once if another
//! holds it.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytesize::ByteSize;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_store::occupant;
use rustix::event::PollFlags;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cache::{CACHE, CAPACITY, cache_directory, wanted_capacity};
use crate::connection::{Connection, Found};
use crate::deadline::Deadline;

/// A daemon opens its ring and its directory and listens; half a minute covers a node whose disk is
/// saturated by the job's own start.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Daemons started one after the other before giving up: more than a batch system kills by
/// accident.
const STARTS: usize = 5;

/// An embedded daemon's log starts anew beyond this many bytes: years of normal lines.
pub const LOG_MAX: u64 = 1 << 20;

/// The end of the log in which a daemon's last words are looked for, in bytes.
const LOG_TAIL: u64 = 4 << 10;

/// Lines of it that are quoted.
const LAST_LINES: usize = 3;

/// Folder of an embedded daemon within its cache directory: socket, locks and log. So whoever names
/// a cache finds the daemon that holds it, and another cache has another daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    /// The directory of the cache that the environment names.
    ///
    /// # Errors
    /// As [`cache_directory`].
    pub fn of_this_user() -> Result<Self> {
        cache_directory().map(|cache| Self::of(&cache))
    }

    /// The directory of the daemon that holds `cache`; nothing is made.
    #[must_use]
    pub fn of(cache: &Path) -> Self {
        Self(cache.join("daemon"))
    }

    /// Makes the directory if it is missing, and checks that it is this user's alone.
    ///
    /// # Errors
    /// `PermissionDenied` if the directory belongs to someone else or others may enter it;
    /// `Invalid` if it would lie in a directory that is no cache, which stays as it is.
    pub fn make(&self) -> Result<()> {
        let Self(path) = self;
        let at = |error: Error| error.at("path", path.display());
        // A running daemon may be of another release, whose cache it is.
        if let Some(cache) = path.parent().filter(|cache| cache.exists() && !path.exists()) {
            occupant(cache).map_err(|error| error.at("directory", cache.display()))?;
        }
        let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.doing("make the daemon's directory").map_err(at)?;
        // A link planted in a shared directory must not lead elsewhere.
        let found = path.symlink_metadata().doing("stat the daemon's directory").map_err(at)?;
        let uid = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
            return Err(at(Error::new(
                ErrorKind::PermissionDenied,
                "the daemon's directory is not private to this user",
            ))
            .advise(format!("remove it, or make it `chmod 700` and owned by uid {uid}")));
        }
        Ok(())
    }

    /// Notes the capacity of the daemon that is starting, for later clients.
    ///
    /// # Errors
    /// The error of writing the file.
    pub fn note_capacity(&self, capacity: &Capacity) -> Result<()> {
        let text = serde_json::to_string(capacity).expect("numbers always encode");
        std::fs::write(self.capacity(), text).doing("note the cache's capacity")
    }

    fn capacity(&self) -> PathBuf {
        self.0.join("capacity.json")
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

    /// Returns the path of the daemon's log.
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

/// Capacity of an embedded daemon's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Bytes asked for, if any were.
    pub wanted: Option<u64>,
    /// Bytes in force.
    pub bytes: u64,
}

/// Settings to start this user's daemon.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Program and arguments; the daemon writes a line to its standard output once it listens.
    pub command: Vec<OsString>,
    /// Folder of the daemon, if the environment names a usable one: a node daemon needs none.
    pub directory: Result<RuntimeDirectory>,
}

impl Launch {
    /// Connects to this user's daemon, starting one if nobody listens.
    ///
    /// # Errors
    /// `Invalid` if the environment names no usable cache; `Unavailable` if a daemon was started
    /// and does not listen, quoting its log.
    pub fn connect(&self, deadline: &Deadline) -> Result<Connection> {
        let starter = Starter {
            command: &self.command,
            directory: self.directory.as_ref().map_err(Clone::clone)?,
        };
        starter.connect(deadline)
    }
}

/// Client that may start the daemon of a directory.
struct Starter<'a> {
    command: &'a [OsString],
    directory: &'a RuntimeDirectory,
}

impl Starter<'_> {
    fn connect(&self, deadline: &Deadline) -> Result<Connection> {
        let wanted = wanted_capacity()?;
        self.directory.make()?;
        let socket = self.directory.socket();
        if let Found::Daemon(mut connection) = Connection::find(&socket, deadline)? {
            connection.notices.extend(self.other_capacity(wanted));
            return Ok(connection);
        }
        let _lock = self.lock(deadline)?;
        let mut found = Connection::find(&socket, deadline)?;
        for _ in 0..STARTS {
            match found {
                Found::Daemon(connection) => return Ok(connection),
                // One that is gone again was killed, or just ending when it said that it serves.
                Found::Nobody(_) if self.start(deadline)? => {
                    found = Connection::find(&socket, deadline)?;
                }
                Found::Nobody(_) => {}
            }
        }
        match found {
            Found::Daemon(connection) => Ok(connection),
            Found::Nobody(_) => {
                Err(Error::new(ErrorKind::Unavailable, "each daemon started was killed")
                    .at("socket", socket.display()))
            }
        }
    }

    /// Returns a warning if the daemon that runs was started with another capacity than is wanted.
    fn other_capacity(&self, wanted: Option<u64>) -> Option<String> {
        let wanted = wanted?;
        // A daemon that is just starting has noted nothing yet.
        let noted = std::fs::read(self.directory.capacity()).ok()?;
        let noted: Capacity = serde_json::from_slice(&noted).ok()?;
        (noted.wanted != Some(wanted)).then(|| {
            format!(
                "{CAPACITY} asks for {}, but the daemon that already runs holds {} at most; the \
                 new capacity applies once that daemon has ended ({})",
                ByteSize(wanted),
                ByteSize(noted.bytes),
                self.directory.socket().display(),
            )
        })
    }

    /// Takes the lock of whoever starts a daemon.
    fn lock(&self, deadline: &Deadline) -> Result<File> {
        let path = self.directory.start_lock();
        let lock = open_lock(&path)?;
        // flock knows no time limit. Its holder is bounded by READY_TIMEOUT, and a killed holder
        // frees it; one that was stopped does neither.
        let taken =
            deadline.retry(|| match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(())),
                Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
                Err(error) => Err(error).doing("take the start lock"),
            });
        match taken? {
            Some(()) => Ok(lock),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                "another process is starting the daemon and hangs",
            )
            .at("lock", path.display())
            .advise("end the process that holds the lock (`fuser` names it), or wait for it")),
        }
    }

    /// Starts a daemon and waits until it listens; false if it was killed before that.
    fn start(&self, deadline: &Deadline) -> Result<bool> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Error::new(ErrorKind::Invalid, "no command to start a daemon with"));
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.directory.log())
            .doing("open the daemon's log")?;
        // We hold the start lock: no daemon that would miss its lines runs yet.
        if log.metadata().doing("measure the daemon's log")?.len() > LOG_MAX {
            log.set_len(0).doing("start a new log of the daemon")?;
        }
        let mut command = Command::new(program);
        if let Some(chosen) = std::env::var_os(CACHE).filter(|path| !path.is_empty()) {
            // A relative path means this process's folder, which the daemon leaves.
            command.env(CACHE, std::path::absolute(chosen).doing("find the cache directory")?);
        }
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // The daemon makes a session of its own as its first act, so that a Ctrl-C meant for
            // the trainer does not reach it. It could not if it led a process group already.
            .stderr(log);
        let mut child = command
            .spawn()
            .doing("start the daemon")
            .map_err(|error| error.at("command", Path::new(program).display()))?;
        let mut ready = child.stdout.take().expect("stdout was piped just above");
        let limit = deadline.or_after(READY_TIMEOUT);
        let heard = wait_for_line(&mut ready, &limit);
        if matches!(heard, Ok(Heard::End)) {
            // It closed its output, so it is ending: killed with the job of whoever shares it, or
            // by a fault of its own.
            let ended = child.wait().doing("wait for the daemon's end")?;
            if ended.signal().is_some() {
                return Ok(false);
            }
        } else {
            // The daemon detaches: the process we started is reaped by a thread of no other use.
            std::thread::Builder::new()
                .name("fb-reap".into())
                .spawn(move || child.wait())
                .doing("start a thread")?;
        }
        if matches!(heard?, Heard::Line) {
            return Ok(true);
        }
        Err(Error::new(ErrorKind::Unavailable, "the daemon did not start")
            .at("log", self.directory.log().display())
            .advise(format!(
                "run `forebay doctor`, or read the log; its last lines: {}",
                self.last_words()
            )))
    }

    fn last_words(&self) -> String {
        // A log that cannot be read says nothing; the error names its path.
        let text = tail(&self.directory.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(LAST_LINES).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

/// The last [`LOG_TAIL`] bytes of a log.
fn tail(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut log = File::open(path)?;
    let len = log.metadata()?.len();
    log.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL)))?;
    let mut text = Vec::new();
    log.take(LOG_TAIL).read_to_end(&mut text)?;
    Ok(text)
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

/// First message of a daemon just started.
enum Heard {
    /// It listens.
    Line,
    /// Nothing, and it will say nothing any more.
    End,
    /// Nothing in time.
    Nothing,
}

fn wait_for_line(from: &mut (impl Read + std::os::fd::AsFd), limit: &Deadline) -> Result<Heard> {
    if !limit.wait_for(&*from, PollFlags::IN)? {
        return Ok(Heard::Nothing);
    }
    match from.read(&mut [0; 16]).doing("receive from the daemon")? {
        0 => Ok(Heard::End),
        _ => Ok(Heard::Line),
    }
}
