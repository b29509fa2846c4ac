//! Messages between a daemon and its readers, and their encoding on a socket: a length, then
//! postcard.
//!
//! Both ends are of one release, which the greeting checks; a frame beyond [`FRAME_MAX`] is
//! rejected before anything is allocated for it.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::stat::Stat;

/// Bytes that a reader reads at once, at most: a part of a shard as the store asks for them.
pub(crate) const PIECE: usize = 4 << 20;

/// Bytes of the length before each message.
pub(super) const PREFIX: usize = 4;

/// The largest message: the kernel takes no path beyond 4 KiB, and errors are a few lines.
const FRAME_MAX: usize = 64 << 10;

/// Buffer of a receiver: usual messages have a path and a version, a few hundred bytes.
pub(super) const USUAL: usize = 1 << 10;

/// A reader's first words. A byte with the descriptor of its memory goes before them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The reader's release, which must be the daemon's: the program may have been replaced since.
    pub(super) release: String,
}

/// Request to a reader.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Length and version of the file.
    Stat { path: String },
    /// At most [`PIECE`] bytes of it, into the reader's memory; a descriptor that a client passed
    /// serves for it as long as it is of this version.
    Read { path: String, version: String, offset: u64, len: u64 },
}

/// Reply of a reader; `Err` is the file system's error.
pub(super) type Said = Result<Answer>;

/// Answer of a reader.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The file, as it was after the read.
    pub(crate) stat: Stat,
    /// Start of the bytes in the reader's memory.
    pub(crate) start: u64,
    /// Number of bytes: fewer than requested at the file's end, and where its file system reads
    /// only in large blocks.
    pub(crate) len: u64,
    /// False if the file system refuses reads past the page cache.
    pub(crate) direct: bool,
    /// Reason its layout is unknown although its file system reports one.
    pub(crate) layout_fault: Option<Error>,
}

/// A message as it is sent.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let wrong = |why: String| Error::new(ErrorKind::Invalid, why);
    let mut frame = postcard::to_extend(message, vec![0; PREFIX])
        .map_err(|error| wrong(format!("failed to encode a reader's message: {error}")))?;
    let body = frame.len() - PREFIX;
    match u32::try_from(body) {
        Ok(len) if body <= FRAME_MAX => frame[..PREFIX].copy_from_slice(&len.to_le_bytes()),
        _ => return Err(wrong("the shard's path is too long".to_owned()).at("bytes", body)),
    }
    Ok(frame)
}

/// The length of the body that follows.
pub(super) fn body_len(prefix: [u8; PREFIX]) -> Result<usize> {
    match usize::try_from(u32::from_le_bytes(prefix)) {
        Ok(len) if len <= FRAME_MAX => Ok(len),
        _ => Err(Error::new(ErrorKind::Invalid, "a reader's message is too long")),
    }
}

/// The message of a body.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let wrong = |error| format!("a reader's message is invalid: {error}");
    postcard::from_bytes(body).map_err(|error| Error::new(ErrorKind::Invalid, wrong(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_messages_are_rejected_on_both_sides() {
        let error = encode(&Request::Stat { path: "x".repeat(FRAME_MAX) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(body_len(u32::MAX.to_le_bytes()).is_err());
        let frame = encode(&Request::Stat { path: "/a".to_owned() }).unwrap();
        let len = body_len(frame[..PREFIX].try_into().unwrap()).unwrap();
        assert_eq!(len, frame.len() - PREFIX);
        assert!(matches!(decode(&frame[PREFIX..]), Ok(Request::Stat { path }) if path == "/a"));
        assert!(decode::<Request>(&[9, 9]).is_err());
    }
}
