//! What is known of a shard before its bytes are.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Length and version of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Length in bytes.
    pub len: u64,
    /// Names this state of the object: a strong ETag where the store has one, else time and length
    /// (remote) or inode, length and time (POSIX).
    pub version: String,
    /// Whether the version is a strong ETag, which the store itself compares.
    pub strong: bool,
}

impl Stat {
    /// How many bytes a part at `offset` into `room` bytes has.
    pub(crate) fn part_len(&self, offset: u64, room: usize) -> Result<usize> {
        let left = self.len.checked_sub(offset).filter(|&left| left > 0 && room > 0);
        let left = left.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a part must start inside the shard and hold a byte")
                .at("offset", offset)
                .at("len", self.len)
        })?;
        Ok(usize::try_from(left).map_or(room, |left| left.min(room)))
    }
}

/// The shard is not what it was when it was asked for.
pub(crate) fn changed(url: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "the shard changed while it was read")
        .at("url", url)
        .advise("read it again from the start; do not replace shards that are in use")
}
