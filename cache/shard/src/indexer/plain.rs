//! Shard bytes that are all there already: a file, or bytes in memory.
//!
//! Checksums run through one small buffer, whatever a member's size.

use std::io::{self, Read, Seek, SeekFrom};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::ShardBytes;
use crate::checksum::Crc32c;

/// Large enough to make the system call cheap, small enough to stay in the L2 cache.
const BUFFER_BYTES: usize = 256 << 10;

/// Makes any complete `Read + Seek` a [`ShardBytes`].
pub struct Plain<R> {
    inner: R,
    buffer: Vec<u8>,
}

impl<R: Read + Seek> Plain<R> {
    /// Wraps `inner`, which must stand for the whole shard.
    pub fn new(inner: R) -> Self {
        Self { inner, buffer: vec![0; BUFFER_BYTES] }
    }
}

impl<R: Read + Seek> Read for Plain<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read(into)
    }
}

impl<R: Read + Seek> Seek for Plain<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<R: Read + Seek> ShardBytes for Plain<R> {
    fn crc32c(&mut self, offset: u64, len: u64) -> Result<u32> {
        self.inner.seek(SeekFrom::Start(offset)).doing("seek in the shard")?;
        let mut rest = self.inner.by_ref().take(len);
        let mut crc = Crc32c::new();
        loop {
            let got = rest.read(&mut self.buffer).doing("read the shard")?;
            if got == 0 {
                break;
            }
            crc.update(&self.buffer[..got]);
        }
        match rest.limit() {
            0 => Ok(crc.value()),
            missing => {
                let error = Error::new(ErrorKind::Corrupt, "the shard ends inside a member");
                Err(error.at("offset", offset).at("missing", missing))
            }
        }
    }
}
