//! Commands that a trainer runs for its daemon, in its own process and with its own rights.
//!
//! The daemon makes a pipe for the command's output, and a socket for its exit status; one end of
//! each is attached to [`crate::message::Reply::Command`].
//!
//! The daemon takes nothing from the trainer but bytes. It made both descriptors that it
//! keeps, so no descriptor of the trainer's can hang it. If either side goes away, the other sees
//! its end closed.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use forebay_error::{Error, ErrorKind, Result};

use crate::files::refusal;
use crate::frame::{self, Receiver};

/// The largest message: errors are a few lines.
const FRAME_MAX: usize = 64 << 10;

/// Outcome of a command.
type Ended = Result<(), Error>;

/// The daemon's end of the status socket.
#[derive(Debug)]
pub struct Line {
    receiver: Receiver,
}

impl Default for Line {
    fn default() -> Self {
        Self { receiver: Receiver::limited(FRAME_MAX) }
    }
}

impl Line {
    /// Reads the command's outcome from a non-blocking socket; `None` while it runs.
    ///
    /// # Errors
    /// `Unavailable` if the trainer is gone or violates the protocol.
    pub fn try_hear(&mut self, socket: impl AsFd) -> Result<Option<Result<()>>> {
        let heard = self.receiver.try_receive::<Ended>(socket).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the job that ran the command is gone")
                .at("because", error)
        })?;
        Ok(heard.map(|ended| ended.map_err(refusal)))
    }
}

/// Reports a command's outcome to the daemon, over the trainer's end of the status socket.
///
/// # Errors
/// `Closed` if the daemon is gone.
pub fn tell(line: &UnixStream, ended: Result<()>) -> Result<()> {
    frame::send_whole(line, &ended, &[], "report the end of a command")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_reports_the_end_of_a_command_once() {
        let failed = || Err(Error::new(ErrorKind::NotFound, "no such command"));
        let broken = || Err(Error::new(ErrorKind::Corrupt, "the tar is broken"));
        for (ended, kind) in [
            (Ok(()), None),
            (failed(), Some(ErrorKind::NotFound)),
            // A trainer's report must not declare a shard bad for others.
            (broken(), Some(ErrorKind::Unavailable)),
        ] {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            let mut line = Line::default();
            assert!(line.try_hear(&near).unwrap().is_none(), "it runs");
            tell(&far, ended).unwrap();
            let heard = line.try_hear(&near).unwrap().unwrap();
            assert_eq!(heard.err().map(|error| error.kind()), kind);
            drop(far);
            assert_eq!(line.try_hear(&near).unwrap_err().kind(), ErrorKind::Unavailable);
        }
    }

    #[test]
    fn invalid_message_means_a_lost_job() {
        for bytes in [&[2, 0, 0, 0, 9, 9][..], &[255; 8]] {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            frame::send(&far, bytes, &[]).unwrap();
            let error = Line::default().try_hear(&near).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}
