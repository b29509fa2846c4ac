//! One socket to one daemon: handshake, requests out, replies and descriptors in.
//!
//! Any thread may send; one thread receives.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::frame::{self, Receiver};
use forebay_wire::leases::{Mark, Sharing};
use forebay_wire::message::{
    Bad, Begin, Binning, Chosen, Extent, Joined, LeftOut, Located, Mixture, PartsEstimate, Picked,
    Progress, Reply, Request,
};
use forebay_wire::socket::SocketPath;
use forebay_wire::{PROTOCOL, PROTOCOL_OLDEST, PROTOCOL_POSITIONS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::commands::Commands;
use crate::deadline::Deadline;
use crate::files::Files;

/// The shortest limit a socket takes.
const SEND_LIMIT_MIN: Duration = Duration::from_millis(1);

/// Advice about a daemon that does not answer.
pub(crate) const SILENT: &str =
    "it hangs or was stopped: read its log and end its process; the next one starts cleanly";

/// A connected, greeted daemon.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    path: PathBuf,
    /// Held for one frame at a time.
    sending: Mutex<()>,
    /// Files this process opens for the daemon,
    files: Arc<Files>,
    /// and what it runs.
    commands: Arc<Commands>,
    /// The daemon's process.
    pub daemon_pid: u32,
    /// Warnings for the user, which are in the log as well: a setting that this daemon does not
    /// have, or that it is not the node's.
    pub notices: Vec<String>,
    /// Protocol version of both sides.
    protocol: u32,
}

/// State of a socket.
pub(crate) enum Found {
    /// A daemon that greeted back.
    Daemon(Connection),
    /// Nobody who listens, or nobody any more.
    Nobody(Error),
}

impl Connection {
    /// Connects to the daemon at `path` and agrees on a protocol.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable` or `Closed` if nobody listens there, `Unavailable` if the daemon
    /// does not answer by `deadline`, `PermissionDenied` if it does not serve this user, `Invalid`
    /// if it speaks no protocol of ours.
    pub fn open(path: &Path, deadline: &Deadline) -> Result<Self> {
        match Self::find(path, deadline)? {
            Found::Daemon(connection) => Ok(connection),
            Found::Nobody(error) => Err(error),
        }
    }

    /// Connects as [`Connection::open`] does, telling an absent daemon from one that fails.
    pub(crate) fn find(path: &Path, deadline: &Deadline) -> Result<Found> {
        let at = |error: Error| error.at("socket", path.display());
        let socket = match dial(path, deadline)? {
            Ok(socket) => socket,
            Err(nobody) => return Ok(Found::Nobody(nobody)),
        };
        let (path, sending) = (path.to_owned(), Mutex::new(()));
        let (files, commands) = (Arc::default(), Arc::default());
        let mut connection = Self {
            socket,
            path,
            sending,
            files,
            commands,
            daemon_pid: 0,
            notices: Vec::new(),
            protocol: PROTOCOL,
        };
        match connection.greet(deadline) {
            Ok((pid, protocol)) => (connection.daemon_pid, connection.protocol) = (pid, protocol),
            // It is just ending.
            Err(error) if error.kind() == ErrorKind::Closed && !deadline.is_closing() => {
                return Ok(Found::Nobody(at(error)));
            }
            Err(error) => return Err(at(error)),
        }
        connection.may_block(true)?;
        Ok(Found::Daemon(connection))
    }

    fn greet(&self, deadline: &Deadline) -> Result<(u32, u32)> {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        match self.exchange(&Request::Hello { protocol: PROTOCOL, release }, deadline)? {
            Reply::Welcome { protocol, pid, .. }
                if (PROTOCOL_OLDEST..=PROTOCOL).contains(&protocol) =>
            {
                Ok((pid, protocol))
            }
            Reply::Welcome { protocol, release, .. } => {
                Err(Error::new(ErrorKind::Invalid, "the daemon speaks another protocol")
                    .at("daemon", release)
                    .at("protocol", protocol)
                    .advise("install the same release on both sides"))
            }
            Reply::Failed { error, .. } => Err(error),
            _ => Err(Error::new(ErrorKind::Invalid, "the daemon did not answer the greeting")),
        }
    }

    /// Lets no later [`Connection::send`] wait longer than this.
    pub(crate) fn limit_sends(&self, limit: Duration) -> Result<()> {
        let limit = limit.max(SEND_LIMIT_MIN);
        self.socket.set_write_timeout(Some(limit)).doing("limit the wait for the daemon")
    }

    /// Starts a run; an older daemon is asked in its own words.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release knows no such run, else as [`Connection::send`].
    pub(crate) fn play(&self, run: u64, begin: Begin) -> Result<()> {
        match begin {
            _ if self.protocol >= PROTOCOL_POSITIONS => self.send(&Request::Play { run, begin }),
            Begin { epoch, base: 0, batch, step: 1 } => {
                self.send(&Request::Start { run, epoch, batch })
            }
            _ => Err(self.is_older("resumes only at the start of its own batches")),
        }
    }

    /// Starts a run whose consumer has not come yet.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release knows no such run, else as [`Connection::send`].
    pub(crate) fn play_ahead(&self, run: u64, begin: Begin) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("begins no epoch ahead"));
        }
        self.send(&Request::PlayAhead { run, begin })
    }

    /// Says that the consumer of a run that was started ahead has come.
    ///
    /// # Errors
    /// As [`Connection::play_ahead`].
    pub(crate) fn confirm(&self, run: u64) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("confirms no run"));
        }
        self.send(&Request::Confirm { run })
    }

    /// Asks for samples by their places.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release gives none so, else as [`Connection::send`].
    pub(crate) fn pick(&self, run: u64, samples: &[Picked]) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("does not give samples by position"));
        }
        self.send(&Request::Pick { run, samples: samples.to_vec() })
    }

    /// Sends a request that a daemon of the release before does not know. It gets none.
    fn send_unless_older(&self, request: &Request) -> Result<()> {
        match self.protocol < PROTOCOL_POSITIONS {
            true => Ok(()),
            false => self.send(request),
        }
    }

    /// Locates the samples of the next [`Connection::pick`]. A daemon of the release before reads
    /// whole shards.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn locate(&self, shards: &[Located]) -> Result<()> {
        match shards.is_empty() {
            true => Ok(()),
            false => self.send_unless_older(&Request::Locate { shards: shards.to_vec() }),
        }
    }

    /// Says that the places of all samples of the next job are known here, and what they cost. A
    /// daemon of the release before reads whole shards.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn parts(&self, estimate: &PartsEstimate) -> Result<()> {
        self.send_unless_older(&Request::Parts(*estimate))
    }

    /// Asks that the next job gets members where they lie in memory of a tier. A daemon of the
    /// release before copies them.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn borrow(&self) -> Result<()> {
        self.send_unless_older(&Request::Borrow)
    }

    /// Begins a run of leased shards, or goes on with one.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release leases none, else as [`Connection::send`].
    pub(crate) fn share(&self, run: u64, sharing: Sharing) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("leases no shards"));
        }
        self.send(&Request::Share { run, sharing: Box::new(sharing) })
    }

    /// Says how far the consumer came with leased shards.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn acknowledge(
        &self,
        run: u64,
        number: u64,
        batch: u64,
        marks: Vec<Mark>,
    ) -> Result<()> {
        self.send(&Request::Acknowledge { run, number, batch, marks })
    }

    /// Says which data sets the next job mixes.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release mixes none, else as [`Connection::send`].
    pub(crate) fn mix(&self, mixture: &Mixture) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("mixes no data sets"));
        }
        self.send(&Request::Mix(mixture.clone()))
    }

    /// Says how large the shards of the next job are; a daemon of the release before does not ask.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn extend(&self, extent: &Extent) -> Result<()> {
        self.send_unless_older(&Request::Extent(extent.clone()))
    }

    /// Says which samples of its shards the next job reads.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release reads whole shards only, else as [`Connection::send`].
    pub(crate) fn choose(&self, shards: &[Chosen]) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("applies no filters"));
        }
        self.send(&Request::Choose { shards: shards.to_vec() })
    }

    /// Says which shards of the next job complete samples of others.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release joins none, else as [`Connection::send`].
    pub(crate) fn join(&self, joined: &[Joined]) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("joins no shards"));
        }
        self.send(&Request::Join(joined.to_vec()))
    }

    /// Cuts the next job's batches by tokens.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release cuts them by samples only, else as [`Connection::send`].
    pub(crate) fn bin(&self, binning: &Binning) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("makes no batches by tokens"));
        }
        self.send(&Request::Bin(Box::new(binning.clone())))
    }

    /// Asks that the next job hear of what comes in of its shards.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release does not tell, else as [`Connection::send`].
    pub(crate) fn trace(&self) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("cannot be traced"));
        }
        self.send(&Request::Trace)
    }

    /// Asks that the next job be served shards that change during a run.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release cannot, else as [`Connection::send`].
    pub(crate) fn serve_changes(&self) -> Result<()> {
        if self.protocol < PROTOCOL_POSITIONS {
            return Err(self.is_older("does not compare the versions of shards"));
        }
        self.send(&Request::ServeChanges)
    }

    /// Tells what of its job could not be used; a daemon whose release does not listen is not told.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn tell(&self, bad: &Bad) -> Result<()> {
        self.send_unless_older(&Request::Bad(bad.clone()))
    }

    /// Tells how far its job's consumer came; a daemon whose release does not listen is not told.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn tell_progress(&self, progress: &Progress) -> Result<()> {
        self.send_unless_older(&Request::Progress(Box::new(progress.clone())))
    }

    /// Asks what the next batch waits for; a daemon whose release does not tell is not asked.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(crate) fn explain(&self, run: u64) -> Result<()> {
        self.send_unless_older(&Request::Explain { run })
    }

    /// True if the daemon's release tells what a batch waits for.
    pub(crate) fn explains(&self) -> bool {
        self.protocol >= PROTOCOL_POSITIONS
    }

    pub(crate) fn is_older(&self, what: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("the daemon's release {what}"))
            .at("socket", self.path.display())
            .at("pid", self.daemon_pid)
            .at("reason", "older")
            .advise("install this release there and restart it")
    }

    /// Sends one request.
    ///
    /// # Errors
    /// `Closed` if the daemon is gone; whatever the error, the connection is at its end.
    pub fn send(&self, request: &Request) -> Result<()> {
        let bytes = frame::encode(request)?;
        self.files.note(request);
        self.commands.note(request);
        let _one_at_a_time = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match frame::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The rest of a frame cannot follow later.
                    self.shut();
                    return Err(error).doing("send to the daemon");
                }
            }
        }
        Ok(())
    }

    /// Returns true if a request of some kilobytes can be sent without a wait. A daemon that reads
    /// nothing is told no more: whoever tells would wait, with all who need the same lock.
    pub(crate) fn has_room(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Blocks until the next reply. `receiver` belongs to this connection alone.
    ///
    /// # Errors
    /// `Closed` once the daemon is gone.
    pub fn receive(&self, receiver: &mut Receiver) -> Result<Reply> {
        loop {
            let reply = receiver.receive(&self.socket)?;
            if let Some(reply) = self.unless_for_daemon(reply, receiver)? {
                return Ok(reply);
            }
        }
    }

    /// Takes what the daemon wants opened or run; any other reply is the caller's.
    fn unless_for_daemon(&self, reply: Reply, receiver: &mut Receiver) -> Result<Option<Reply>> {
        match reply {
            Reply::Reader => {
                self.files.serve(receiver.take_descriptor()?);
                Ok(None)
            }
            Reply::Command { url } => {
                let (output, line) = (receiver.take_descriptor()?, receiver.take_descriptor()?);
                self.commands.run(url, output, line);
                Ok(None)
            }
            reply => Ok(Some(reply)),
        }
    }

    /// Asks one thing and waits for the answer, on a connection used for nothing else so far.
    ///
    /// # Errors
    /// The daemon's error, `Closed`, or `Unavailable` if it does not answer by `deadline`.
    pub fn ask(&self, request: &Request, deadline: &Deadline) -> Result<Reply> {
        self.may_block(false)?;
        let reply = self
            .exchange(request, deadline)
            .map_err(|error| error.at("socket", self.path.display()).at("pid", self.daemon_pid))?;
        self.may_block(true)?;
        match reply {
            Reply::Failed { error, .. } => Err(error),
            reply => Ok(reply),
        }
    }

    /// Asks which shards a pattern of a remote store means, on a connection used for nothing else
    /// so far. Also returns the matching keys that are no shards because no URL can name them.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn list(
        &self,
        pattern: &str,
        origin: BTreeMap<String, String>,
        deadline: &Deadline,
    ) -> Result<(Vec<String>, LeftOut)> {
        let at = |error: Error| {
            error.at("urls", pattern).at("socket", self.path.display()).at("pid", self.daemon_pid)
        };
        self.may_block(false)?;
        let request = Request::List { pattern: pattern.to_owned(), origin };
        self.put(&request, deadline).map_err(at)?;
        let (mut receiver, mut listed) = (Receiver::default(), Vec::new());
        let mut left_out = LeftOut::default();
        let late = |error: Error| match is_silent(&error) {
            true => Error::new(ErrorKind::Unavailable, "the store's list did not come in time")
                .at("waited_for", "list")
                .advise(
                    "check the store and the way to it; if it is slow, raise the loader's timeout=",
                ),
            false => error,
        };
        loop {
            match self.take(&mut receiver, deadline).map_err(late).map_err(at)? {
                Reply::Listed { urls, more } => {
                    listed.extend(urls);
                    if !more {
                        break;
                    }
                }
                Reply::LeftOut(keys) => left_out = keys,
                Reply::Failed { error, .. } => return Err(error),
                _ => return Err(at(unexpected())),
            }
        }
        self.may_block(true)?;
        Ok((listed, left_out))
    }

    /// One request and its reply, on a socket that does not block.
    fn exchange(&self, request: &Request, deadline: &Deadline) -> Result<Reply> {
        let mut receiver = Receiver::default();
        let Err(error) = self.put(request, deadline) else {
            return self.take(&mut receiver, deadline);
        };
        // A daemon that does not serve this user says so, and hangs up.
        match receiver.try_receive(&self.socket) {
            Ok(Some(refusal @ Reply::Failed { .. })) => Ok(refusal),
            _ => Err(error),
        }
    }

    pub(crate) fn put(&self, request: &Request, deadline: &Deadline) -> Result<()> {
        let bytes = frame::encode(request)?;
        self.files.note(request);
        self.commands.note(request);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match frame::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, deadline)?;
                }
                Err(error) => return Err(error).doing("send to the daemon"),
            }
        }
        Ok(())
    }

    pub(crate) fn take(&self, receiver: &mut Receiver, deadline: &Deadline) -> Result<Reply> {
        loop {
            // Part of it may have come with the one before.
            if let Some(reply) = receiver.try_receive(&self.socket)? {
                match self.unless_for_daemon(reply, receiver)? {
                    Some(reply) => return Ok(reply),
                    None => continue,
                }
            }
            self.wait(PollFlags::IN, deadline)?;
        }
    }

    fn wait(&self, event: PollFlags, deadline: &Deadline) -> Result<()> {
        match deadline.wait_for(&self.socket, event)? {
            true => Ok(()),
            false => Err(silent()),
        }
    }

    pub(crate) fn may_block(&self, may: bool) -> Result<()> {
        self.socket.set_nonblocking(!may).doing("set the socket's mode")
    }

    /// Lets the daemon have commands run that are named from now on, as in `pipe:cat
    /// /data/000.tar`.
    pub fn allow_commands(&self) {
        self.commands.allow();
    }

    /// Returns the path of its daemon's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the connection: a thread that is receiving comes back with `Closed`, and commands end.
    pub fn shut(&self) {
        self.commands.end();
        // A socket that is closed already needs no more closing.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Connects a socket that does not block; or says that nobody listens there, or nobody any more.
pub(crate) fn dial(
    path: &Path,
    deadline: &Deadline,
) -> Result<std::result::Result<UnixStream, Error>> {
    let at = |error: Error| error.at("socket", path.display());
    let doing = "connect to the daemon";
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket: OwnedFd = socket.doing("make a socket")?;
    let place = match SocketPath::of(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err(at(error))),
        place => place.map_err(at)?,
    };
    let address = SocketAddrUnix::new(place.path()).doing(doing).map_err(at)?;
    let tried = deadline.retry(|| match connect(&socket, &address) {
        // The backlog is full: the daemon accepts no connections, or not as many at once.
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        tried => Ok(Some(tried)),
    });
    match tried.map_err(at)? {
        Some(Err(error @ (Errno::NOENT | Errno::CONNREFUSED))) => {
            Ok(Err(at(Error::from_io(doing, &error.into()))))
        }
        Some(tried) => tried.doing(doing).map_err(at).map(|()| Ok(socket.into())),
        None => Err(at(silent())),
    }
}

/// Returns the error of an answer that the request does not have.
#[must_use]
pub fn unexpected() -> Error {
    Error::new(ErrorKind::Invalid, "the daemon answered something else")
        .advise("install the same release on both sides")
}

/// Returns true if the daemon did not answer in time.
pub(crate) fn is_silent(error: &Error) -> bool {
    error.place("reason") == Some("silent")
}

pub(crate) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the daemon does not answer")
        .at("reason", "silent")
        .advise(SILENT)
}
