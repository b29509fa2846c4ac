//! `scrub`: checks every byte at rest against its recorded checksum.
//!
//! Jobs come first. One block is read at a time, into one frame, so a scrub takes a fraction
//! of the device and holds little memory.

use std::sync::{Arc, Weak};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_shard::{BLOCK_BYTES, Sidecar};
use forebay_uring::{DiskFile, Engine, Open};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tier;
use super::copy_errors::is_the_copys_fault;
use crate::budget::Space;
use crate::device;
use crate::directory::{Directory, ShardName};
use crate::shard::{Shard, ShardHandle};

/// A shard with wrong bytes at rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flaw {
    /// Name of its tier.
    pub tier: String,
    /// Data file within the directory's `shards`.
    pub file: String,
    /// Error, and where.
    pub why: String,
    /// True if the copy was dropped; the next use fetches it anew.
    pub dropped: bool,
}

/// Progress and result of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// Shards to check.
    pub shards: u64,
    /// Shards checked.
    pub shards_done: u64,
    /// Bytes to check.
    pub bytes: u64,
    /// Bytes checked.
    pub bytes_done: u64,
    /// Shards with flaws.
    pub wrong: u64,
    /// Shards with flaws that were dropped.
    pub dropped: u64,
    /// Flaws, reported at the end; a thousand at most.
    pub flaws: Vec<Flaw>,
    /// True if the scrub is over.
    pub done: bool,
}

/// Maximum number of reported flaws: a device with more of them is beyond repair.
const FLAWS_TOLD: usize = 1000;

impl Tier {
    /// Shards to check; none in memory, which is checked all the time
    /// ([`Tier::shards_in_memory`]).
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) async fn to_scrub(&self) -> Result<Vec<(ShardName, Weak<Space>, u64)>> {
        if self.engine().is_none() || !self.is_readable() {
            return Ok(Vec::new());
        }
        self.scanned().await?;
        Ok(self.table().whole_shards())
    }

    /// Checks shards, and calls `progress` after each. `keep`: reports flaws without dropping the
    /// copies.
    pub(crate) async fn scrub(
        &self,
        shards: Vec<(ShardName, Weak<Space>, u64)>,
        keep: bool,
        scrub: &mut Scrub,
        flaws: &mut Vec<Flaw>,
        progress: &mut impl FnMut(&Scrub),
    ) {
        for (name, space, bytes) in shards {
            if let Some(why) = self.flaw_of(&name, &space).await {
                // A limit of the machine is not a fault of the copy.
                let drop = !keep && is_the_copys_fault(&why);
                let dropped = drop && self.drop_corrupt(&name, &space, &why).await;
                scrub.wrong += 1;
                scrub.dropped += u64::from(dropped);
                if flaws.len() < FLAWS_TOLD {
                    let file = name.as_str().to_owned();
                    let tier = self.name().to_owned();
                    flaws.push(Flaw { tier, file, why: why.to_string(), dropped });
                }
            }
            scrub.shards_done += 1;
            scrub.bytes_done += bytes;
            progress(scrub);
        }
    }

    /// Every whole shard in memory.
    pub(crate) fn shards_in_memory(&self) -> Vec<Weak<Shard>> {
        self.table().shards_in_memory()
    }

    /// Drops a shard whose bytes in memory are wrong. Its readers go to the origin from now on.
    pub(crate) async fn drop_wrong_memory(&self, shard: ShardHandle, why: &Error) {
        // Another reader may have found the same.
        let _ = shard.lost.set(why.clone());
        let Some(home) = &shard.home else { return };
        self.drop_corrupt(shard.name(), &Arc::downgrade(&home.space), why).await;
    }

    /// Error of a shard at rest; none if it left meanwhile.
    pub(super) async fn flaw_of(&self, name: &ShardName, space: &Weak<Space>) -> Option<Error> {
        let is_there = || self.table().get(name).is_some_and(|entry| entry.is_copy(space));
        if !is_there() {
            return None;
        }
        let checked = self.check_at_rest(name).await;
        checked.err().filter(|error| is_there() && error.kind() != ErrorKind::Closed)
    }

    async fn check_at_rest(&self, name: &ShardName) -> Result<()> {
        let of = name.clone();
        let sidecar = self.on_disk(move |directory| directory.read_sidecar(&of)).await?;
        let Some(engine) = self.engine() else { return Ok(()) };
        let directory = self.directory()?;
        let file = directory.open_data(engine, name, Open::Read).await?;
        for (block, offset) in (0..).zip((0..sidecar.len).step_by(BLOCK_BYTES as usize)) {
            self.check_block(&directory, (engine, &file), &sidecar, block, offset).await?;
        }
        Ok(())
    }

    async fn check_block(
        &self,
        directory: &Directory,
        (engine, file): (&Engine, &DiskFile),
        sidecar: &Sidecar,
        block: usize,
        offset: u64,
    ) -> Result<()> {
        let wanted = (sidecar.len - offset).min(BLOCK_BYTES);
        let frame = self.0.shared.frames.lease(BLOCK_BYTES as usize).await?;
        let done = device::answer(engine.read(file, offset, frame)).await?;
        let wrong = |what: &str| Err(Error::new(ErrorKind::Corrupt, what).at("offset", offset));
        // A read to the end of the file returns no padding but that of a cipher's last block.
        let stored = directory.stored_len(wanted);
        match done.result? {
            read if read as u64 != stored => {
                wrong("the length of the copy differs from its sidecar")
            }
            _ if crc32c(&done.span[..wanted as usize]) != sidecar.blocks[block] => {
                wrong("a block differs from the bytes of the origin")
            }
            _ => Ok(()),
        }
    }
}
