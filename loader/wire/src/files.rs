//! Files that a trainer opens for its daemon, with its own rights.
//!
//! A process that reads for the daemon has a socket of its own to the trainer. It asks for one file
//! at a time, by path. The answer carries the descriptor, or the reason for its absence.
//!
//! Neither side trusts the other. The trainer opens only what its own job names. The asking
//! side takes one descriptor per question, limits the kinds of rejections it accepts, and waits no
//! longer than [`PATIENCE`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::frame::{self, Receiver};

/// Time a trainer may take to open a file. Longer than a slow file system needs, and half of the
/// time the daemon gives a hanging one, so that the error can name the side at fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// Largest message: the kernel accepts no path beyond 4 KiB, and errors are a few lines.
const FRAME_MAX: usize = 64 << 10;

/// Question.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    path: String,
}

/// Answer; a success carries a descriptor.
type Handed = Result<(), Error>;

/// The asking side.
#[derive(Debug)]
pub struct Asking {
    socket: UnixStream,
    receiver: Receiver,
    is_lost: bool,
}

impl Asking {
    /// Asks over `socket`.
    ///
    /// # Errors
    /// The system call's error if the descriptor is not a socket.
    pub fn new(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(false).doing("set the socket to blocking mode")?;
        socket.set_read_timeout(Some(PATIENCE)).doing("limit the wait for a job")?;
        socket.set_write_timeout(Some(PATIENCE)).doing("limit the wait for a job")?;
        Ok(Self { socket, receiver: Receiver::limited(FRAME_MAX), is_lost: false })
    }

    /// Returns the descriptor of the file at `path`; its type is not checked.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` or `Unavailable`, as reported by the trainer or if it does
    /// not answer; `Closed` from then on.
    pub fn open(&mut self, path: &str) -> Result<OwnedFd> {
        if self.is_lost {
            return Err(Error::new(ErrorKind::Closed, "the job no longer answers"));
        }
        // The rest of a broken answer would be read as the next one.
        self.is_lost = true;
        let asked = self.ask(path).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the job does not open its file for the daemon")
                .at("because", error)
                .advise("check that the job still runs, and that its file system answers it")
        });
        let (handed, descriptors) = asked?;
        self.is_lost = false;
        match (handed, descriptors) {
            (Ok(()), mut descriptors) if descriptors.len() == 1 => {
                descriptors.pop().ok_or_else(odd)
            }
            (Err(error), descriptors) if descriptors.is_empty() => Err(refusal(error)),
            _ => {
                self.is_lost = true;
                Err(odd())
            }
        }
    }

    fn ask(&mut self, path: &str) -> Result<(Handed, Vec<OwnedFd>)> {
        send(&self.socket, &Wanted { path: path.to_owned() }, &[])?;
        let handed = self.receiver.receive(&self.socket)?;
        Ok((handed, self.receiver.take_descriptors()))
    }
}

/// Limits a rejection to the kinds that a trainer may report: it says nothing about the shard
/// itself.
pub(crate) fn refusal(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::Unavailable => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}

fn odd() -> Error {
    Error::new(ErrorKind::Unavailable, "the job did not send exactly one descriptor")
        .advise("install the same release on both sides")
}

/// Answers on `socket` until its other end closes; `open` opens a file if the job names it.
///
/// # Errors
/// The protocol error of the other end.
pub fn answer(socket: &UnixStream, open: impl Fn(&str) -> Result<OwnedFd>) -> Result<()> {
    let mut receiver = Receiver::limited(FRAME_MAX);
    loop {
        let Wanted { path } = match receiver.receive(socket) {
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            wanted => wanted?,
        };
        let sent = match open(&path) {
            Ok(file) => send(socket, &Handed::Ok(()), &[file.as_fd()]),
            Err(error) => send(socket, &Handed::Err(error), &[]),
        };
        match sent {
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            sent => sent?,
        }
    }
}

fn send(socket: &UnixStream, message: &impl Serialize, riders: &[BorrowedFd<'_>]) -> Result<()> {
    frame::send_whole(socket, message, riders, "send a file descriptor")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn opened(path: &str) -> Result<OwnedFd> {
        Ok(std::fs::File::open(path).doing("open the shard")?.into())
    }

    #[test]
    fn each_request_returns_a_descriptor_or_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        let trainer = thread::spawn(move || answer(&far, opened));
        let mut asking = Asking::new(near).unwrap();
        for _ in 0..3 {
            asking.open("/dev/null").unwrap();
            assert_eq!(asking.open("/no/such").unwrap_err().kind(), ErrorKind::NotFound);
        }
        drop(asking);
        trainer.join().unwrap().unwrap();
    }

    /// After an invalid answer, a trainer is not asked again.
    #[test]
    fn protocol_violation_ends_requests_to_a_trainer() {
        let file = opened("/dev/null").unwrap();
        let ok = frame::encode(&Handed::Ok(())).unwrap();
        let no = frame::encode(&Handed::Err(Error::new(ErrorKind::NotFound, "no"))).unwrap();
        let long = u32::try_from(FRAME_MAX + 1).unwrap().to_le_bytes().to_vec();
        type Sent<'a> = Vec<(&'a [u8], bool)>;
        let cases: [(&str, Sent<'_>); 6] = [
            ("no descriptor", vec![(&ok, false)]),
            ("a refusal with a descriptor", vec![(&no, true)]),
            ("two descriptors", vec![(&ok[..2], true), (&ok[2..], true)]),
            ("garbage", vec![(&[2, 0, 0, 0, 9, 9], true)]),
            ("a message too long", vec![(&long, false)]),
            ("nothing at all", vec![]),
        ];
        for (what, sent) in cases {
            let (near, far) = UnixStream::pair().unwrap();
            for (bytes, rides) in sent {
                let file = [file.as_fd()];
                frame::send(&far, bytes, if rides { &file } else { &[] }).unwrap();
            }
            far.shutdown(std::net::Shutdown::Write).unwrap();
            let mut asking = Asking::new(near).unwrap();
            let error = asking.open("/dev/null").err().unwrap_or_else(|| panic!("{what}"));
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            assert_eq!(asking.open("/dev/null").unwrap_err().kind(), ErrorKind::Closed, "{what}");
        }
    }

    /// A trainer's report must not declare a shard bad for others.
    #[test]
    fn reported_corruption_counts_as_unavailable() {
        let (near, far) = UnixStream::pair().unwrap();
        let trainer = thread::spawn(move || {
            answer(&far, |_| Err(Error::new(ErrorKind::Corrupt, "the tar is broken")))
        });
        let mut asking = Asking::new(near).unwrap();
        assert_eq!(asking.open("/x").unwrap_err().kind(), ErrorKind::Unavailable);
        drop(asking);
        trainer.join().unwrap().unwrap();
    }
}
