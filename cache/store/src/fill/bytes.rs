//! Bytes of an arriving shard for the indexer: read forward, waiting for parts, checksummed in
//! place.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::ShardBytes;
use forebay_shard::checksum::Crc32c;

use crate::parts::{Frame, Parts, parts_of};
use crate::sizes::PART_BYTES;

/// Reads the parts of a fill in order, and releases those behind the position.
pub(super) struct FillBytes {
    parts: Arc<Parts>,
    position: u64,
    /// The part last read, its frame, and the bytes of the shard in it: so 8,000 headers of one
    /// part lock the parts once.
    current: Option<(usize, Arc<Frame>, usize)>,
}

impl FillBytes {
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        Self { parts, position: 0, current: None }
    }

    /// Frame of a part once it is here, and the shard's bytes in it; `None` after the last part.
    fn frame(&mut self, part: usize) -> Result<Option<(Arc<Frame>, usize)>> {
        if let Some((have, frame, held)) = &self.current
            && *have == part
        {
            return Ok(Some((frame.clone(), *held)));
        }
        // Released before the wait: the window may need this frame to move.
        self.current = None;
        self.parts.move_indexer(part as u64 * PART_BYTES as u64);
        let arrived = self.parts.wait(part)?;
        self.current = arrived.clone().map(|(frame, held)| (part, frame, held));
        Ok(arrived)
    }

    /// Bytes from `offset` to the end of its part or of the shard; `None` if the shard ends before.
    fn with<T>(&mut self, offset: u64, take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let part = parts_of(&(offset..offset + 1)).start;
        let Some((frame, held)) = self.frame(part)? else { return Ok(None) };
        let from = usize::try_from(offset % PART_BYTES as u64).expect("below a part's size");
        match from < held {
            true => Ok(Some(take(&frame.bytes()[from..held]))),
            false => self.parts.broken().map(|()| None),
        }
    }
}

impl Read for FillBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let copied = self.with(self.position, |bytes| {
            let len = bytes.len().min(into.len());
            into[..len].copy_from_slice(&bytes[..len]);
            len
        });
        let len = copied.map_err(io::Error::other)?.unwrap_or(0);
        self.position += len as u64;
        Ok(len)
    }
}

impl Seek for FillBytes {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.parts.len().checked_add_signed(by),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl ShardBytes for FillBytes {
    fn crc32c(&mut self, offset: u64, len: u64) -> Result<u32> {
        let mut crc = Crc32c::new();
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let taken = self.with(at, |bytes| {
                let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                crc.update(&bytes[..len]);
                len as u64
            })?;
            let Some(taken) = taken else {
                // If the length was known, nothing is read beyond it.
                let what = "a member extends past the end of the shard";
                return Err(Error::new(ErrorKind::Corrupt, what)
                    .at("offset", offset)
                    .at("member_bytes", len)
                    .at("shard_bytes", at)
                    .advise("upload the shard again: it looks truncated"));
            };
            (at, left) = (at + taken, left - taken);
        }
        Ok(crc.value())
    }
}

#[cfg(test)]
mod tests;
