//! Requests of a client on their way in: bounded in size, time and memory before they are received.
//!
//! Rule: a client makes this process keep 64 KiB at most that are not reserved, and what they
//! decode to, which is bounded. A greeting is small. Lists of a job take slab memory, as the job's
//! batches do. Other long requests belong to jobs that run already, so they wait for a turn of
//! memory set aside for them. A request counts twice: as its frame, and as the memory that it
//! decodes to.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::session::{Grant, SlabMemory};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::frame::{DECODED_PER_BYTE, MAX_FRAME, Receiver, within};
use forebay_wire::message::{Request, RequestKind};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

/// Time for a greeting. A client sends it at once.
const GREETS_WITHIN: Duration = Duration::from_secs(10);

/// Time for the rest of a request once it has begun. A local client sends 256 MiB within a second;
/// this leaves a stopped or busy one room.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

/// Largest request that is received without a reservation, and the largest greeting: what one
/// system call receives.
const UNRESERVED: usize = 64 << 10;

/// Largest request of a running job, and the most that it may decode to: a choice of a million
/// samples takes 25 MiB, and 24 decoded.
const LONG: usize = 32 << 20;

/// Memory for long requests of running jobs, in permits of [`UNRESERVED`] bytes: one of the
/// largest, or hundreds of the usual ones.
const LONG_PERMITS: usize = LONG / UNRESERVED;

/// Memory set aside for long requests of all clients.
#[derive(Debug)]
pub struct RequestMemory(Semaphore);

impl RequestMemory {
    /// Bytes set aside.
    pub const BYTES: usize = LONG;

    pub(crate) fn new() -> Self {
        Self(Semaphore::new(LONG_PERMITS))
    }
}

/// A received request, and the memory that its content takes.
pub(super) struct Incoming {
    pub(super) request: Request,
    /// Memory of a job's list, to be held as long as the list.
    pub(super) list: Option<(RequestKind, Grant)>,
}

/// Receiving end of a client's connection.
pub(super) struct Intake {
    stream: Arc<UnixStream>,
    receiver: Receiver,
}

impl Intake {
    pub(super) fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, receiver: Receiver::limited(UNRESERVED) }
    }

    /// Receives the first message.
    ///
    /// # Errors
    /// `Closed` if it does not come in time; `Invalid` if it is too long.
    pub(super) async fn greeting(&mut self) -> Result<Request> {
        let Self { stream, receiver } = self;
        let greeting = received(stream, || receiver.try_receive(stream.as_fd()));
        let greeting = tokio::time::timeout(GREETS_WITHIN, greeting).await;
        receiver.limit(MAX_FRAME);
        greeting.map_err(|_| late("the client sent no greeting in time", GREETS_WITHIN))?
    }

    /// Receives the next request.
    ///
    /// # Errors
    /// `Full` if there is no memory for it; `Invalid` if it is too long for its kind; `Closed` if
    /// it does not arrive in time once it has begun.
    pub(super) async fn next(
        &mut self,
        slabs: &SlabMemory,
        memory: &RequestMemory,
    ) -> Result<Incoming> {
        let Self { stream, receiver } = self;
        let (kind, len) = received(stream, || receiver.try_announced(stream.as_fd())).await?;
        let kind = RequestKind::of(kind);
        let full = |what: &str| {
            Error::new(ErrorKind::Full, what)
                .at("bytes", len)
                .at("memory", slabs.limit())
                .advise("end other jobs, name fewer shards, or raise `memory`")
        };
        if kind.is_list() && len > UNRESERVED {
            let full = || full("the daemon has no memory for the job's list of shards");
            let mut list = slabs.reserve(len).ok_or_else(full)?;
            let _frame = slabs.reserve(len).ok_or_else(full)?;
            let mut left = len;
            let mut charge = |bytes: usize| {
                let more = bytes.saturating_sub(left).next_multiple_of(UNRESERVED);
                if !list.grow(more) {
                    return Err(full());
                }
                left = left + more - bytes;
                Ok(())
            };
            let request = rest(stream, receiver, &mut charge).await?;
            return Ok(Incoming { request, list: Some((kind, list)) });
        }
        if len > LONG {
            return Err(Error::new(ErrorKind::Invalid, "the client announced too long a request")
                .at("bytes", len)
                .at("limit", LONG));
        }
        let decoded = len.max(UNRESERVED).saturating_mul(DECODED_PER_BYTE).min(LONG);
        let (mut _turn, mut _beyond) = (None, None);
        if len > UNRESERVED {
            let bytes = len + decoded;
            let permits = bytes.div_ceil(UNRESERVED).min(LONG_PERMITS);
            let permits = u32::try_from(permits).unwrap_or(u32::MAX);
            // The semaphore is never closed, and each holder's time is limited.
            _turn = memory.0.acquire_many(permits).await.ok();
            // What the memory set aside does not hold.
            let beyond = bytes.saturating_sub(LONG);
            if beyond > 0 {
                let full = || full("the daemon has no memory for a request");
                _beyond = Some(slabs.reserve(beyond).ok_or_else(full)?);
            }
        }
        let request = rest(stream, receiver, &mut within(decoded)).await?;
        Ok(Incoming { request, list: None })
    }
}

/// Receives the rest of a request in time; `charge` is told the memory that it decodes to.
async fn rest(
    stream: &UnixStream,
    receiver: &mut Receiver,
    charge: &mut (dyn FnMut(usize) -> Result<()> + Send),
) -> Result<Request> {
    let request = received(stream, || receiver.try_receive_charged(stream.as_fd(), charge));
    let request = tokio::time::timeout(ARRIVES_WITHIN, request).await;
    request.map_err(|_| late("the rest of a request is late", ARRIVES_WITHIN))?
}

fn late(what: &str, limit: Duration) -> Error {
    Error::new(ErrorKind::Closed, what).at("seconds", limit.as_secs())
}

/// Receives from a socket once `try_receive` has all of it.
pub(super) async fn received<T>(
    socket: &UnixStream,
    mut try_receive: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    // It may be here already, behind the one before.
    let mut received = try_receive();
    loop {
        if let Some(received) = received? {
            return Ok(received);
        }
        socket.readable().await.doing("wait for the client")?;
        let mut tried = Ok(None);
        // Reports the socket as empty, so that `readable` waits again.
        let _ = socket.try_io(Interest::READABLE, || {
            tried = try_receive();
            match tried {
                Ok(None) => Err(std::io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        });
        received = tried;
    }
}
