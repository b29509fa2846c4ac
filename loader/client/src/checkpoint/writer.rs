//! Writing side: bytes in order, any number at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_shard::checksum::Crc32c;
use forebay_wire::checkpoint::{BLOCK, Block, Commit, FileId, Reply, Request, Save};

use super::{CheckpointPlace, Line, unexpected};

/// Bytes that are copied before their checksum is taken: they are still in the core's cache then
/// (256 KiB of L2 at least, in servers of the last ten years).
const AT_ONCE: usize = 64 << 10;

/// Unit of direct I/O.
const GRANULE: usize = 4096;

/// A file to save.
#[derive(Debug, Clone)]
pub struct SaveConfig {
    /// Place of the file.
    pub place: CheckpointPlace,
    /// Identity of the file, drawn at random.
    pub id: FileId,
    /// Length, or a lower bound.
    pub expected: u64,
    /// True for a file of its own, which is visible once it is uploaded.
    pub is_lone: bool,
    /// Name of the job, shown to admins.
    pub job: String,
}

impl SaveConfig {
    /// A file whose identity is drawn now.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn drawn(place: CheckpointPlace, expected: u64, is_lone: bool, job: &str) -> Result<Self> {
        let mut id = FileId::default();
        let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
        random.doing("draw a random number")?;
        Ok(Self { place, id, expected, is_lone, job: job.to_owned() })
    }
}

/// A file of a checkpoint that is being written. Dropped before [`CheckpointWriter::finish`], it
/// leaves nothing.
pub struct CheckpointWriter {
    line: Line,
    /// Slots of blocks under way, by the block's number.
    writing: HashMap<u64, usize>,
    /// Block that is being filled.
    filling: Option<Filling>,
    /// Number of the next block.
    next: u64,
    /// Bytes written so far.
    len: u64,
    /// First failure: everything after it fails as well.
    failed: Option<Error>,
}

struct Filling {
    slot: usize,
    len: usize,
    crc: Crc32c,
}

impl CheckpointWriter {
    /// Begins a file. Its expected room is taken before the first byte.
    ///
    /// # Errors
    /// `Full` if there is no room; `PermissionDenied` and `Invalid` for a place that may not be
    /// written; `Unavailable` if the daemon does not answer in time.
    pub fn open(config: SaveConfig) -> Result<Self> {
        let SaveConfig { place, id, expected, is_lone, job } = config;
        let save = Save { place: place.place(), id, expected, is_lone, job };
        let (line, reply) = Line::begin(&place, Request::Save(save))?;
        let Reply::Ready { .. } = reply else { return Err(unexpected()) };
        let (writing, filling, failed) = (HashMap::new(), None, None);
        Ok(Self { line, writing, filling, next: 0, len: 0, failed })
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True before the first byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `Full` if the disk has no room; those of the device; `Closed` if the daemon is gone.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let written = self.append(bytes);
        if let Err(error) = &written {
            self.failed = Some(error.clone());
        }
        written
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mut filling = match self.filling.take() {
                Some(filling) => filling,
                None => Filling { slot: self.free_slot()?, len: 0, crc: Crc32c::new() },
            };
            let room = (BLOCK as usize - filling.len).min(AT_ONCE);
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            self.line.lent.write(filling.slot * BLOCK as usize + filling.len, piece);
            filling.crc.update(piece);
            filling.len += piece.len();
            self.len += piece.len() as u64;
            bytes = rest;
            match filling.len == BLOCK as usize {
                true => self.send(filling)?,
                false => self.filling = Some(filling),
            }
        }
        Ok(())
    }

    fn free_slot(&mut self) -> Result<usize> {
        loop {
            if let Some(slot) = self.line.slot() {
                return Ok(slot);
            }
            self.hear()?;
        }
    }

    /// Waits for the end of one block, or for more memory.
    fn hear(&mut self) -> Result<()> {
        match self.line.hear()? {
            None => Ok(()),
            Some(Reply::Done { number }) => {
                let slot = self.writing.remove(&number).ok_or_else(unexpected)?;
                self.line.free.push(slot);
                Ok(())
            }
            Some(_) => Err(unexpected()),
        }
    }

    fn send(&mut self, filling: Filling) -> Result<()> {
        let Filling { slot, len, crc } = filling;
        let start = slot * BLOCK as usize;
        // Direct I/O writes whole granules; the file is cut to its length at the end.
        self.line.lent.clear(start + len, len.next_multiple_of(GRANULE) - len);
        let (number, memory, len) = (self.next, start as u64, len as u64);
        self.next += 1;
        self.writing.insert(number, slot);
        self.line.send(Request::Write(Block { number, memory, len, crc: crc.value() }))
    }

    /// Makes the file durable on this node; returns its length.
    ///
    /// # Errors
    /// As [`CheckpointWriter::write`]; then nothing of the file stays.
    pub fn finish(mut self, commit: Option<Commit>) -> Result<u64> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if let Some(filling) = self.filling.take() {
            self.send(filling)?;
        }
        while !self.writing.is_empty() {
            self.hear()?;
        }
        self.line.send(Request::Seal { len: self.len, commit })?;
        match self.line.receive()? {
            Reply::Staged => Ok(self.len),
            _ => Err(Error::new(ErrorKind::Invalid, "the daemon did not seal the file")),
        }
    }
}

impl std::fmt::Debug for CheckpointWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointWriter").field("len", &self.len).finish_non_exhaustive()
    }
}
