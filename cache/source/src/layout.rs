//! Layout of a file on its file system's servers: in stripes over servers in turn, or in blocks.
//!
//! A layout affects speed, never correctness. So an unknown one counts as none, and a reported one
//! is used only if it is plausible.

mod lustre;

use std::ops::Range;

use forebay_error::Result;
use serde::{Deserialize, Serialize};

/// Blocks beyond this are no blocks: GPFS, which has the largest, goes to 16 MiB.
const BLOCK_MAX: u64 = 64 << 20;

/// Known placement of a file's bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes that its file system reads best at once, and multiples of them; 0: nothing is known.
    block: u64,
    /// Striped stretches of the file, in order, without overlap.
    stretches: Vec<Striped>,
}

/// A stretch of a file whose stripes its servers take by turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Striped {
    /// Start …
    start: u64,
    /// … and ends.
    end: u64,
    /// Bytes of a stripe; they count from the file's first byte.
    stripe: u64,
    /// The server of each stripe in turn; none where they are not told, or the metadata server has
    /// it.
    servers: Vec<u32>,
}

impl Layout {
    /// In blocks of `said` bytes, as far as that makes sense.
    pub(crate) fn of_blocks(said: u64) -> Self {
        let makes_sense = said.is_power_of_two() && said <= BLOCK_MAX;
        Self { block: if makes_sense { said } else { 0 }, stretches: Vec::new() }
    }

    /// As the value of `lustre.lov` says.
    ///
    /// # Errors
    /// `Invalid` for bytes that are none of the layouts known here, or contradict themselves.
    pub(crate) fn of_lustre(value: &[u8]) -> Result<Self> {
        Ok(Self { block: 0, stretches: lustre::parse(value)? })
    }

    /// Bytes of the read from `offset` on that is best made at once: at most `most`, whole stripes
    /// or blocks as far as they fit, and of a larger one no more than the rest of it.
    pub(crate) fn cut(&self, offset: u64, most: u64) -> u64 {
        let (unit, until) = match self.stretch_at(offset) {
            Some(striped) => (striped.stripe, striped.end),
            None => (self.block, self.next_stretch(offset)),
        };
        let room = (until - offset).min(most);
        if unit == 0 {
            return room;
        }
        // As many whole units as fit, but at least one.
        let whole = unit * (most / unit).max(1);
        (whole - offset % whole).min(room)
    }

    /// The servers that a read of these bytes asks, each once.
    pub(crate) fn servers(&self, range: &Range<u64>) -> Vec<u32> {
        let mut servers = Vec::new();
        for striped in &self.stretches {
            let (start, end) = (range.start.max(striped.start), range.end.min(striped.end));
            if start >= end || striped.servers.is_empty() {
                continue;
            }
            let turns = striped.servers.len() as u64;
            let (first, last) = (start / striped.stripe, (end - 1) / striped.stripe);
            // After one turn they come again.
            for stripe in first..=last.min(first + turns - 1) {
                let turn = usize::try_from(stripe % turns).expect("below a length");
                servers.push(striped.servers[turn]);
            }
        }
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    fn stretch_at(&self, offset: u64) -> Option<&Striped> {
        self.stretches.iter().find(|striped| (striped.start..striped.end).contains(&offset))
    }

    /// Returns the start of the next striped stretch.
    fn next_stretch(&self, offset: u64) -> u64 {
        let starts = self.stretches.iter().map(|striped| striped.start);
        starts.filter(|start| *start > offset).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
