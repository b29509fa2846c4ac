//! Files that a trainer opens for its daemon, with its own rights.
//!
//! A process that reads for the daemon has a socket of its own to the trainer. It asks for one file at a
//! time, by its path; the answer is the descriptor, which rides on it, or why there is none.
//!
//! Its rule: neither side trusts the other. The trainer opens what its own job names and nothing else;
//! who asks takes one descriptor for one question, believes a refusal only as far as it can be one, and
//! waits for no answer longer than [`PATIENCE`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::frame::{self, Receiver};

/// How long a trainer may take to open a file. Longer than a file system that is only slow needs, and
/// half of what the daemon leaves one that hangs, so that whoever waits is told which of both it is.
const PATIENCE: Duration = Duration::from_secs(30);

/// The largest message: the kernel takes no path beyond 4 KiB, and errors are a few lines.
const FRAME_MAX: usize = 64 << 10;

/// The question.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    path: String,
}

/// The answer; a descriptor rides on it if it is one.
type Handed = Result<(), Error>;

/// The side that asks.
#[derive(Debug)]
pub struct Asking {
    socket: UnixStream,
    receiver: Receiver,
    is_lost: bool,
}

impl Asking {
    /// Asks at `socket`.
    ///
    /// # Errors
    /// If the socket is none.
    pub fn new(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(false).doing("set the socket's mode")?;
        socket.set_read_timeout(Some(PATIENCE)).doing("limit the wait for a job")?;
        socket.set_write_timeout(Some(PATIENCE)).doing("limit the wait for a job")?;
        Ok(Self { socket, receiver: Receiver::limited(FRAME_MAX), is_lost: false })
    }

    /// The descriptor of the file at `path`, whatever it is a descriptor of.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` or `Unavailable`, as the trainer says or if it does not answer;
    /// `Closed` from then on.
    pub fn open(&mut self, path: &str) -> Result<OwnedFd> {
        if self.is_lost {
            return Err(Error::new(ErrorKind::Closed, "the job answers no more"));
        }
        // What is left of a broken answer would be taken for the next one.
        self.is_lost = true;
        let asked = self.ask(path).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the job does not open its file for the daemon")
                .at("because", error)
                .advise("see whether the job still runs, and whether its file system answers it")
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

/// A refusal as a trainer may give one: it says nothing of the shard itself.
pub(crate) fn refusal(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::Unavailable => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()),
    }
}

fn odd() -> Error {
    Error::new(ErrorKind::Unavailable, "the job sent another number of descriptors than one")
        .advise("install the same release on both sides")
}

/// Answers at `socket` until its other end closes; `open` opens a file if the job names it.
///
/// # Errors
/// If the other end does not keep to the protocol.
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
    frame::send_whole(socket, message, riders, "hand a file over")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn opened(path: &str) -> Result<OwnedFd> {
        Ok(std::fs::File::open(path).doing("open the shard")?.into())
    }

    #[test]
    fn one_question_brings_one_descriptor_or_a_reason() {
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

    /// What a trainer may send that is no answer; the next question is not asked.
    #[test]
    fn a_trainer_that_breaks_the_protocol_is_asked_no_more() {
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

    /// A trainer says nothing of what others' shards are like.
    #[test]
    fn a_refusal_is_never_more_than_one() {
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
