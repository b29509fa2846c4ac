//! Facts about a shard before its bytes arrive.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// Length and version of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Length in bytes; 0 where only the end tells it ([`Binding::Stream`]).
    pub len: u64,
    /// Names this state of the object: its strong ETag where the store gives one, else what
    /// [`Binding`] says.
    pub version: String,
    /// Way to tell that parts are of this version.
    pub binding: Binding,
    /// Layout of its bytes on its file system's servers.
    pub layout: Layout,
}

/// Ways to bind the parts of a shard to one version of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binding {
    /// By a strong ETag: the store compares it with each request (`If-Match`), and each reply is
    /// compared, too, for not every store does.
    Strong,
    /// By what each reply says of time and length (remote: `Last-Modified` and the total length, or
    /// a weak ETag; files: inode, length and time). A change within the clock's step goes unseen.
    Weak,
    /// By nothing, or the server serves no ranges: all bytes come in one reply, from the first to
    /// the last, or not at all.
    Sequential,
    /// By nothing, and nobody knows its length before its end: bytes come from the first to the
    /// last, or not at all, as a command says them.
    Stream,
}

impl Stat {
    /// Creates the stat of a shard without a known layout.
    #[must_use]
    pub fn new(len: u64, version: String, binding: Binding) -> Self {
        Self { len, version, binding, layout: Layout::default() }
    }

    /// Returns the bytes of a part at `offset` into `room` bytes.
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

/// The version of a file; its time is in seconds and nanoseconds.
pub(crate) fn file_version(
    inode: u64,
    len: u64,
    (seconds, rest): (i64, impl std::fmt::Display),
) -> String {
    format!("{inode:x}-{len:x}-{seconds}.{rest:09}")
}

/// The shard is not what it was when it was asked for.
pub(crate) fn changed(url: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "the shard changed while it was read")
        .at("url", url)
        .at("reason", "changed")
        .advise("read it again from the start; do not replace shards in use")
}
