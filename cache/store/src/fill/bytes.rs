//! A filling shard as the indexer reads it: forward, waiting for parts, checksumming in place.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use forebay_error::Result;
use forebay_shard::ShardBytes;
use forebay_shard::checksum::Crc32c;

use super::PART_BYTES;
use super::parts::{Frame, Parts, parts_of};

/// Reads the parts of a fill in order; what lies behind the position is given back.
pub(super) struct FillBytes {
    parts: Arc<Parts>,
    position: u64,
    /// The frame last read, so that 8,000 headers of a part take its lock once.
    current: Option<(usize, Arc<Frame>)>,
}

impl FillBytes {
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        Self { parts, position: 0, current: None }
    }

    fn frame(&mut self, part: usize) -> Result<Arc<Frame>> {
        if let Some((have, frame)) = &self.current
            && *have == part
        {
            return Ok(frame.clone());
        }
        // Given up before the wait: the window may need this very frame to move.
        self.current = None;
        self.parts.pass(part as u64 * PART_BYTES as u64);
        let frame = self.parts.wait(part)?;
        self.current = Some((part, frame.clone()));
        Ok(frame)
    }
}

impl Read for FillBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.parts.len().saturating_sub(self.position);
        let wanted = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let part = parts_of(&(self.position..self.position + 1)).start;
        let at = usize::try_from(self.position % PART_BYTES as u64).expect("below a part's size");
        let len = wanted.min(PART_BYTES - at);
        let frame = self.frame(part).map_err(io::Error::other)?;
        into[..len].copy_from_slice(&frame.bytes()[at..at + len]);
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
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let part = parts_of(&(at..at + 1)).start;
            let from = usize::try_from(at % PART_BYTES as u64).expect("below a part's size");
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let len = left.min(PART_BYTES - from);
            crc.update(&self.frame(part)?.bytes()[from..from + len]);
            at += len as u64;
        }
        Ok(crc.value())
    }
}
