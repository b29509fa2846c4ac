//! Reading side: any range, checked block by block, with the next blocks on their way.

use std::collections::HashMap;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::Crc32c;
use forebay_wire::checkpoint::{BLOCK, Block, Reply, Request};

use super::{CheckpointPlace, Line, unexpected};

/// Bytes whose checksum is taken before they are copied: they are still in the core's cache then
/// (256 KiB of L2 at least, in servers of the last ten years).
const AT_ONCE: usize = 64 << 10;

/// Reason in the error of a disk that did not answer in time, as daemons give it.
const NO_ANSWER: &str = "no-answer";

/// Slots that stay for blocks out of order: torch's archives are described at their end, that of
/// the tensor that is read and that of the next.
const OUT_OF_ORDER: usize = 2;

/// A file of a published checkpoint.
pub struct CheckpointReader {
    line: Line,
    url: String,
    len: u64,
    blocks: Option<Vec<u32>>,
    /// Slots of blocks on their way, by the block's number.
    reading: HashMap<u64, usize>,
    /// Blocks that are here.
    here: HashMap<u64, Here>,
    /// Blocks that could not be read, each until it is wanted; no more than slots.
    failed: HashMap<u64, Error>,
    /// Reason that nothing can be read any more.
    ended: Option<Error>,
    /// Counts uses.
    uses: u64,
    /// Block that was read last, apart from those that came out of order.
    last: Option<u64>,
}

/// A block in lent memory.
#[derive(Clone, Copy)]
struct Here {
    slot: usize,
    /// Time of its last use.
    used: u64,
    /// True once its bytes were compared with their checksum.
    is_checked: bool,
}

impl CheckpointReader {
    /// Finds a file.
    ///
    /// # Errors
    /// `NotFound` if there is no such file in a published checkpoint; `PermissionDenied`;
    /// `Unavailable` if the daemon or the store does not answer in time.
    pub fn open(place: &CheckpointPlace) -> Result<Self> {
        let (line, reply) = Line::begin(place, Request::Load(place.place()))?;
        let Reply::Found { len, blocks, .. } = reply else { return Err(unexpected()) };
        let is_whole = |blocks: &Vec<u32>| blocks.len() as u64 == len.div_ceil(BLOCK);
        if blocks.as_ref().is_some_and(|blocks| !is_whole(blocks)) {
            return Err(unexpected());
        }
        let url = format!("{}/{}", place.url, place.name);
        let (reading, here, failed) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (uses, last, ended) = (0, None, None);
        Ok(Self { line, url, len, blocks, reading, here, failed, ended, uses, last })
    }

    /// Length of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a file without bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `into` with the bytes from an offset on, as far as there are any; returns their
    /// number.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those that were saved, in the store as well; those of the
    /// store.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let end = self.len.min(offset.saturating_add(into.len() as u64));
        let (mut at, mut done) = (offset, 0);
        while at < end {
            let number = at / BLOCK;
            let block = self.block(number, (end - 1) / BLOCK)?;
            let within = (at % BLOCK) as usize;
            let some = ((end - at) as usize).min(BLOCK as usize - within);
            let some_of = &mut into[done..done + some];
            if !block.is_checked {
                let is_whole = some as u64 == self.block_len(number);
                let is_right = match is_whole {
                    // Both in one pass: most blocks are wanted whole.
                    true => self.check(number, block.slot, Some(&mut *some_of)),
                    false => self.check(number, block.slot, None),
                };
                match is_right {
                    true => self.note_checked(number),
                    // What was copied is overwritten by the next turn.
                    false => {
                        self.again(number)?;
                        continue;
                    }
                }
                if is_whole {
                    (at, done) = (at + some as u64, done + some);
                    continue;
                }
            }
            let start = block.slot * BLOCK as usize + within;
            some_of.copy_from_slice(self.line.lent.get(start, some));
            (at, done) = (at + some as u64, done + some);
        }
        Ok(done)
    }

    /// Asks for bytes that will be read soon, as far as memory is free. A failure shows when they
    /// are read.
    ///
    /// # Errors
    /// `Closed` if the daemon ended.
    pub fn prefetch(&mut self, offset: u64, len: u64) -> Result<()> {
        let end = self.len.min(offset.saturating_add(len));
        if offset < end {
            for number in offset / BLOCK..=(end - 1) / BLOCK {
                let is_known = self.is_known(number);
                if !is_known && !self.has_slot(self.last.unwrap_or(0)) {
                    break;
                }
                if !is_known {
                    self.ask(number, false)?;
                }
            }
        }
        Ok(())
    }

    /// True for a block that is here or on its way.
    fn is_known(&self, number: u64) -> bool {
        self.here.contains_key(&number) || self.reading.contains_key(&number)
    }

    /// Returns true if a slot is free; if need be, frees that of a block before `number`.
    fn has_slot(&mut self, number: u64) -> bool {
        self.line.free_slots() > 0 || self.forget_before(number)
    }

    fn block_len(&self, number: u64) -> u64 {
        BLOCK.min(self.len - number * BLOCK)
    }

    /// Returns a block once it is here. `until`: last block that the caller wants.
    fn block(&mut self, number: u64, until: u64) -> Result<Here> {
        self.uses += 1;
        let goes_on = number == self.last.map_or(0, |last| last + 1);
        // A block that was prefetched is a glance ahead: reads go on from where they were.
        if self.last != Some(number) && (goes_on || !self.is_known(number)) {
            // Once reads go forward, the disk works on all slots.
            let ahead = number + self.line.slots() as u64;
            let until = if goes_on { until.max(ahead) } else { until };
            self.last = Some(number);
            self.ask_until(number, until)?;
        }
        loop {
            if let Some(block) = self.here.get_mut(&number) {
                block.used = self.uses;
                return Ok(*block);
            }
            // The next read asks again.
            if let Some(error) = self.failed.remove(&number) {
                return Err(error);
            }
            if !self.reading.contains_key(&number) {
                self.ask(number, false)?;
            }
            self.hear()?;
        }
    }

    /// Asks for the blocks from one on, as far as slots are free or of blocks that are done with.
    fn ask_until(&mut self, number: u64, until: u64) -> Result<()> {
        let last = self.len.div_ceil(BLOCK).saturating_sub(1).min(until);
        let most = self.line.slots().saturating_sub(OUT_OF_ORDER).max(1);
        for wanted in (number..=last).take(most) {
            if self.is_known(wanted) {
                continue;
            }
            if !self.has_slot(number) {
                break;
            }
            self.ask(wanted, false)?;
        }
        Ok(())
    }

    /// Frees the slot of the block that was used longest ago, except those from `number` on.
    fn forget_before(&mut self, number: u64) -> bool {
        let done = self.here.iter().filter(|(block, _)| **block < number);
        let oldest = done.min_by_key(|(_, here)| here.used).map(|(block, _)| *block);
        let freed = oldest.and_then(|block| self.here.remove(&block));
        self.line.free.extend(freed.map(|here| here.slot));
        freed.is_some()
    }

    fn ask(&mut self, number: u64, is_distrusted: bool) -> Result<()> {
        let slot = loop {
            if self.has_slot(self.last.unwrap_or(0))
                && let Some(slot) = self.line.slot()
            {
                break slot;
            }
            // Reads have not passed the blocks that are here: one of them would have to come again,
            // which takes longer than memory that is on its way.
            if self.line.grows {
                self.hear()?;
                continue;
            }
            let oldest = self.here.iter().min_by_key(|(_, here)| here.used);
            match oldest.map(|(block, _)| *block).and_then(|block| self.here.remove(&block)) {
                Some(here) => self.line.free.push(here.slot),
                None => drop(self.hear()?),
            }
        };
        self.failed.remove(&number);
        self.reading.insert(number, slot);
        let (memory, len) = ((slot * BLOCK as usize) as u64, self.block_len(number));
        let block = Block { number, memory, len, crc: 0 };
        self.line.send(Request::Read { block, is_distrusted })
    }

    /// Waits for a block that comes or fails, and returns its number; none if there is more memory
    /// instead.
    fn hear(&mut self) -> Result<Option<u64>> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let (number, error) = match self.line.hear()? {
            None => return Ok(None),
            Some(Reply::Done { number }) => (number, None),
            Some(Reply::Unread { error, .. }) if error.place("reason") == Some(NO_ANSWER) => {
                // The disk may still write to the slot: no other block may have it.
                self.ended = Some(error.clone());
                return Err(error);
            }
            Some(Reply::Unread { number, error }) => (number, Some(error)),
            Some(_) => return Err(unexpected()),
        };
        let slot = self.reading.remove(&number).ok_or_else(unexpected)?;
        match error {
            None => {
                self.here.insert(number, Here { slot, used: self.uses, is_checked: false });
            }
            Some(error) => {
                self.line.free.push(slot);
                if self.failed.len() >= self.line.slots()
                    && let Some(other) = self.failed.keys().next().copied()
                {
                    self.failed.remove(&other);
                }
                self.failed.insert(number, error);
            }
        }
        Ok(Some(number))
    }

    fn note_checked(&mut self, number: u64) {
        if let Some(here) = self.here.get_mut(&number) {
            here.is_checked = true;
        }
    }

    /// Compares a whole block with its checksum, and copies it meanwhile.
    fn check(&self, number: u64, slot: usize, into: Option<&mut [u8]>) -> bool {
        let len = self.block_len(number) as usize;
        let bytes = self.line.lent.get(slot * BLOCK as usize, len);
        let wanted = self.blocks.as_ref().map(|all| {
            let at = usize::try_from(number).ok();
            at.and_then(|at| all.get(at))
        });
        let mut crc = Crc32c::new();
        let mut into = into;
        for (at, piece) in (0..).step_by(AT_ONCE).zip(bytes.chunks(AT_ONCE)) {
            if wanted.is_some() {
                crc.update(piece);
            }
            if let Some(into) = &mut into {
                into[at..at + piece.len()].copy_from_slice(piece);
            }
        }
        // A checkpoint of another writer has no checksums.
        wanted.is_none_or(|wanted| wanted == Some(&crc.value()))
    }

    /// Asks for a block once more, from the store, and checks what comes.
    fn again(&mut self, number: u64) -> Result<()> {
        let url = &self.url;
        tracing::warn!(url, block = number, "a block of a checkpoint came with wrong bytes");
        self.line.free.extend(self.here.remove(&number).map(|here| here.slot));
        self.ask(number, true)?;
        while self.hear()? != Some(number) {}
        if let Some(error) = self.failed.remove(&number) {
            return Err(error);
        }
        let slot = self.here.get(&number).ok_or_else(unexpected)?.slot;
        if self.check(number, slot, None) {
            self.note_checked(number);
            return Ok(());
        }
        let what = "a block of a checkpoint is not what was saved, in the store either";
        Err(Error::new(ErrorKind::Corrupt, what)
            .at("url", &self.url)
            .at("offset", number * BLOCK)
            .advise("restore an earlier checkpoint"))
    }
}

impl std::fmt::Debug for CheckpointReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointReader")
            .field("url", &self.url)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
