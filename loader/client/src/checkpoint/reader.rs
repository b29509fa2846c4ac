//! Reading side: any range, checked block by block, with the next blocks on their way.

use std::collections::HashMap;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_wire::checkpoint::{BLOCK, Block, Reply, Request};

use super::{CheckpointPlace, Line, unexpected};

/// Blocks asked for beyond the wanted one, once reads go forward.
const AHEAD: u64 = 8;

/// A file of a published checkpoint.
pub struct CheckpointReader {
    line: Line,
    url: String,
    len: u64,
    blocks: Option<Vec<u32>>,
    /// Slots without a block.
    free: Vec<usize>,
    /// Slots of blocks on their way, by the block's number.
    reading: HashMap<u64, usize>,
    /// Slots of blocks that are here and checked, and the time of their last use.
    here: HashMap<u64, (usize, u64)>,
    /// Counts uses.
    uses: u64,
    /// Block that was read last.
    last: Option<u64>,
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
        let (free, url) = ((0..line.slots()).collect(), format!("{}/{}", place.url, place.name));
        let (reading, here) = (HashMap::new(), HashMap::new());
        Ok(Self { line, url, len, blocks, free, reading, here, uses: 0, last: None })
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
            let slot = self.block(number, (end - 1) / BLOCK)?;
            let within = (at % BLOCK) as usize;
            let some = ((end - at) as usize).min(BLOCK as usize - within);
            let bytes = self.line.lent.get(slot * BLOCK as usize + within, some);
            into[done..done + some].copy_from_slice(bytes);
            (at, done) = (at + some as u64, done + some);
        }
        Ok(done)
    }

    fn block_len(&self, number: u64) -> u64 {
        BLOCK.min(self.len - number * BLOCK)
    }

    /// Slot of a block that is here and checked. `until`: last block that the caller wants.
    fn block(&mut self, number: u64, until: u64) -> Result<usize> {
        self.uses += 1;
        if self.last != Some(number) {
            let goes_on = self.last.is_some_and(|last| last + 1 == number) || number == 0;
            let until = if goes_on { until.max(number + AHEAD) } else { until };
            self.last = Some(number);
            self.ask_until(number, until)?;
        }
        loop {
            if let Some((slot, used)) = self.here.get_mut(&number) {
                *used = self.uses;
                return Ok(*slot);
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
        // One slot stays for a block out of order.
        let most = (self.line.slots() as u64).saturating_sub(1).max(1);
        for wanted in (number..=last).take(usize::try_from(most).unwrap_or(usize::MAX)) {
            if self.here.contains_key(&wanted) || self.reading.contains_key(&wanted) {
                continue;
            }
            if self.free.is_empty() && !self.forget_before(number) {
                break;
            }
            self.ask(wanted, false)?;
        }
        Ok(())
    }

    /// Frees the slot of the block that was used longest ago, except those from `number` on.
    fn forget_before(&mut self, number: u64) -> bool {
        let done = self.here.iter().filter(|(block, _)| **block < number);
        let oldest = done.min_by_key(|(_, (_, used))| *used).map(|(block, _)| *block);
        let freed = oldest.and_then(|block| self.here.remove(&block));
        self.free.extend(freed.map(|(slot, _)| slot));
        freed.is_some()
    }

    fn ask(&mut self, number: u64, is_distrusted: bool) -> Result<()> {
        while self.free.is_empty() {
            let oldest = self.here.iter().min_by_key(|(_, (_, used))| *used);
            match oldest.map(|(block, _)| *block).and_then(|block| self.here.remove(&block)) {
                Some((slot, _)) => self.free.push(slot),
                None => self.hear()?,
            }
        }
        let Some(slot) = self.free.pop() else { return Err(unexpected()) };
        self.reading.insert(number, slot);
        let (memory, len) = ((slot * BLOCK as usize) as u64, self.block_len(number));
        let block = Block { number, memory, len, crc: 0 };
        self.line.send(Request::Read { block, is_distrusted })
    }

    /// Waits for a block, and checks it.
    fn hear(&mut self) -> Result<()> {
        let Reply::Done { number } = self.line.receive()? else { return Err(unexpected()) };
        let slot = self.reading.remove(&number).ok_or_else(unexpected)?;
        if self.is_right(number, slot) {
            self.here.insert(number, (slot, self.uses));
            return Ok(());
        }
        tracing::warn!(
            url = self.url,
            block = number,
            "a block of a checkpoint came with wrong bytes"
        );
        self.again(number, slot)
    }

    fn is_right(&self, number: u64, slot: usize) -> bool {
        let Some(blocks) = &self.blocks else { return true };
        let len = self.block_len(number) as usize;
        let bytes = self.line.lent.get(slot * BLOCK as usize, len);
        let wanted = usize::try_from(number).ok().and_then(|at| blocks.get(at));
        wanted == Some(&crc32c(bytes))
    }

    /// Asks for a block once more, from the store.
    fn again(&mut self, number: u64, slot: usize) -> Result<()> {
        self.free.push(slot);
        self.ask(number, true)?;
        while self.reading.contains_key(&number) {
            let Reply::Done { number: came } = self.line.receive()? else {
                return Err(unexpected());
            };
            let slot = self.reading.remove(&came).ok_or_else(unexpected)?;
            match (self.is_right(came, slot), came == number) {
                (true, _) => drop(self.here.insert(came, (slot, self.uses))),
                // It is asked for anew when it is wanted.
                (false, false) => self.free.push(slot),
                (false, true) => {
                    let what = "a block of a checkpoint is not what was saved, in the store either";
                    return Err(Error::new(ErrorKind::Corrupt, what)
                        .at("url", &self.url)
                        .at("offset", number * BLOCK)
                        .advise("restore an earlier checkpoint"));
                }
            }
        }
        Ok(())
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
