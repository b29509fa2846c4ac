//! One socket to one daemon: handshake, requests out, replies and descriptors in.
//!
//! One rule: any thread may send; one thread receives.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Reply, Request};
use forebay_wire::{PROTOCOL, PROTOCOL_OLDEST};

/// A daemon that takes a connection answers its greeting from memory; one that needs longer than
/// this hangs.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected, greeted daemon.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    /// Held for one frame at a time.
    sending: Mutex<()>,
    /// The daemon's process.
    pub daemon_pid: u32,
}

impl Connection {
    /// Connects to the daemon at `path` and agrees on a protocol.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable` if nobody listens there, `PermissionDenied` if the daemon does
    /// not serve this user, `Invalid` if it speaks no protocol of ours.
    pub fn open(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at("socket", path.display());
        let socket = UnixStream::connect(path).doing("connect to the daemon").map_err(at)?;
        let mut connection = Self { socket, sending: Mutex::new(()), daemon_pid: 0 };
        connection.daemon_pid = connection.greet().map_err(at)?;
        Ok(connection)
    }

    fn greet(&self) -> Result<u32> {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        self.send(&Request::Hello { protocol: PROTOCOL, release })?;
        self.socket
            .set_read_timeout(Some(GREETING_TIMEOUT))
            .doing("limit the wait for the daemon")?;
        let reply = Receiver::default().receive(&self.socket)?;
        self.socket.set_read_timeout(None).doing("lift the limit again")?;
        match reply {
            Reply::Welcome { protocol, pid, .. }
                if (PROTOCOL_OLDEST..=PROTOCOL).contains(&protocol) =>
            {
                Ok(pid)
            }
            Reply::Welcome { protocol, release, .. } => {
                Err(Error::new(ErrorKind::Invalid, "the daemon speaks another protocol")
                    .at("daemon", release)
                    .at("protocol", protocol)
                    .advise("install the same release on both sides"))
            }
            Reply::Failed { error, .. } => Err(error),
            _ => Err(Error::new(ErrorKind::Invalid, "the daemon did not greet back")),
        }
    }

    /// Sends one request.
    ///
    /// # Errors
    /// `Closed` if the daemon is gone.
    pub fn send(&self, request: &Request) -> Result<()> {
        let bytes = frame::encode(request)?;
        let _one_at_a_time = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match frame::send(&self.socket, rest, None) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).doing("send to the daemon"),
            }
        }
        Ok(())
    }

    /// Blocks until the next reply. `receiver` belongs to this connection alone.
    ///
    /// # Errors
    /// `Closed` once the daemon is gone.
    pub fn receive(&self, receiver: &mut Receiver) -> Result<Reply> {
        receiver.receive(&self.socket)
    }

    /// Asks one thing and waits for the answer, on a connection used for nothing else.
    ///
    /// # Errors
    /// What the daemon answered, or `Closed`.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        self.send(request)?;
        match self.receive(&mut Receiver::default())? {
            Reply::Failed { error, .. } => Err(error),
            reply => Ok(reply),
        }
    }

    /// Ends the connection: a thread that is receiving comes back with `Closed`.
    pub fn shut(&self) {
        // A socket that is closed already needs no more closing.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
