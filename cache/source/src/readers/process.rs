//! A reader as its daemon sees it: a process, a socket to it, and its memory to read from.
//!
//! Nothing but the socket is inherited, and bytes come out of the reader's memory by
//! reading it as a file: it never has a way into ours.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::process::Child;

use super::client::Right;
use super::message::{self, Hello, PREFIX, Said, USUAL};
use crate::helper_process::HelperProcess;

/// A program that needs longer than this to greet hangs: an interpreter on a cold network file
/// system takes seconds.
const START: Duration = Duration::from_secs(30);

/// The processes of a mount, and which of them were killed and are still there.
#[derive(Debug, Default)]
pub(super) struct Pids(Mutex<BTreeMap<u32, bool>>);

impl Pids {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that reads files. Dropped, it is killed and not waited for.
pub(super) struct Reader {
    child: Child,
    /// Buffered, so that a usual answer takes one system call.
    socket: BufReader<UnixStream>,
    memory: OwnedFd,
    /// Time of last use.
    pub(super) since: Instant,
    listed: Listed,
}

/// A process on its mount's list, until dropped.
struct Listed {
    pid: u32,
    pids: Arc<Pids>,
    /// The right to be one more process, where those are counted beyond the mount.
    _right: Option<Right>,
}

/// A client's end is on its way to it: the other, and the right to have a process there.
pub(super) struct ClientSocket {
    pub(super) socket: OwnedFd,
    pub(super) right: Right,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.pids.lock().remove(&self.pid);
    }
}

impl Reader {
    /// Starts one, and waits until it greets; with a client, that one opens what it reads.
    pub(super) async fn start(
        command: &[OsString],
        pids: &Arc<Pids>,
        client: Option<ClientSocket>,
    ) -> Result<Self> {
        let mut process = HelperProcess::new(command)?;
        let program = process.command.as_std().get_program().to_owned();
        let at = |error: Error| error.at("program", Path::new(&program).display());
        let (near, far) = Pair::pair().doing("make a reader's socket")?;
        near.set_nonblocking(true).doing("make a reader's socket")?;
        process.command.stdin(OwnedFd::from(far));
        let child = process.start().await?;
        let socket = UnixStream::from_std(near).doing("make a reader's socket")?;
        let pid = child.id().unwrap_or_default();
        pids.lock().insert(pid, false);
        let (client, right) = client.map(|ClientSocket { socket, right }| (socket, right)).unzip();
        let listed = Listed { pid, pids: pids.clone(), _right: right };
        let greeted = tokio::time::timeout(START, greeted(socket)).await;
        let broken = |why: &str| {
            let error = Error::new(ErrorKind::Unavailable, format!("a reader {why}"));
            at(error).advise("check that the program runs: `forebay --version`")
        };
        let (socket, memory, hello) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error)) if error.kind() == ErrorKind::Closed => {
                return Err(broken("ended as it started"));
            }
            Ok(Err(error)) => return Err(at(error)),
            Err(_) => return Err(broken("does not start")),
        };
        if hello.release != env!("CARGO_PKG_VERSION") {
            let error = Error::new(ErrorKind::Unavailable, "another release was installed");
            return Err(error.at("release", hello.release).advise("restart the daemon"));
        }
        tell_client(&socket, client).await?;
        let socket = BufReader::with_capacity(USUAL, socket);
        Ok(Self { child, socket, memory, since: Instant::now(), listed })
    }

    /// Sends a request and receives the answer to it. An error is the reader's end: it is of no use
    /// any more.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Said> {
        self.socket.write_all(request).await.doing("ask a reader")?;
        receive(&mut self.socket).await
    }

    /// Copies what the reader has in its memory from `from`.
    pub(super) fn copy(&self, from: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let some = rustix::io::pread(&self.memory, &mut into[done..], from + done as u64);
            match some.doing("take what a reader read")? {
                0 => {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "a reader returned fewer bytes than it reported",
                    ));
                }
                some => done += some,
            }
        }
        Ok(())
    }

    /// Notes that it does not answer.
    pub(super) fn mark_stuck(&self) {
        if let Some(is_stuck) = self.listed.pids.lock().get_mut(&self.listed.pid) {
            *is_stuck = true;
        }
    }

    /// Kills it and waits until it is gone, which takes as long as its file system hangs.
    pub(super) async fn bury(self) {
        let Self { mut child, socket, listed: _listed, .. } = self;
        // One that only waits for us ends by this alone.
        drop(socket);
        // It may be gone already.
        let _ = child.start_kill();
        if let Err(error) = child.wait().await {
            tracing::warn!(%error, "failed to wait for a reader's end");
        }
    }
}

/// The reader's first words, and its memory, which comes before them.
async fn greeted(mut socket: UnixStream) -> Result<(UnixStream, OwnedFd, Hello)> {
    let memory = socket.async_io(Interest::READABLE, || receive_descriptor(&socket)).await;
    let memory = memory.doing("receive a reader's greeting")?;
    let hello = receive(&mut socket).await?;
    Ok((socket, memory, hello))
}

/// Tells a reader that has greeted who opens files: a byte, on which the socket to a client rides.
async fn tell_client(socket: &UnixStream, client: Option<OwnedFd>) -> Result<()> {
    let tell = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights = client.as_ref().map(AsFd::as_fd);
        let has_room = rights.as_slice().is_empty()
            || ancillary.push(SendAncillaryMessage::ScmRights(rights.as_slice()));
        debug_assert!(has_room, "the space is that of one descriptor");
        rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    };
    socket.async_io(Interest::WRITABLE, tell).await.doing("send a reader its client")
}

fn receive_descriptor(socket: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut target = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut target, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    rights.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

async fn receive<T: DeserializeOwned>(socket: &mut (impl AsyncRead + Unpin)) -> Result<T> {
    let mut prefix = [0; PREFIX];
    socket.read_exact(&mut prefix).await.doing("hear a reader")?;
    let mut body = vec![0; message::body_len(prefix)?];
    socket.read_exact(&mut body).await.doing("hear a reader")?;
    message::decode(&body)
}
