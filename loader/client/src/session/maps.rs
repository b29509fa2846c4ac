//! Memory of a daemon, mapped here, and the leases on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Batch, NO_OTHERS, REREADS_MAX, Reply};
use forebay_wire::slab::Slab;

use crate::connection::Connection;
use crate::lease::{Lease, Memories, spare_bytes};

/// Maps of one daemon's slabs and of memory of its tiers.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// Slabs by number.
    slabs: BTreeMap<u32, MappedSlab>,
    memories: Memories,
}

/// A slab that is mapped.
#[derive(Debug)]
struct MappedSlab {
    map: Arc<Slab>,
    /// Bytes that a consumer's views must leave free.
    spare: Option<u64>,
    /// True if it holds one batch alone.
    is_lone: bool,
}

impl Maps {
    /// Maps the memory of a message, for a job of `prefetch` batches.
    ///
    /// # Errors
    /// `Invalid` if the message or its descriptors have none, else as [`Slab::map`].
    pub(super) fn add(
        &mut self,
        reply: &Reply,
        receiver: &mut Receiver,
        prefetch: u32,
    ) -> Result<()> {
        let descriptor = receiver.take_descriptor()?;
        match reply {
            Reply::Slab { slab, len, batches } => {
                let spare = spare_bytes(prefetch, *len, *batches);
                let (map, is_lone) = (Slab::map(descriptor, *len)?, *batches == NO_OTHERS);
                // Batches in the older slabs may still be on their way.
                self.slabs.insert(*slab, MappedSlab { map, spare, is_lone });
                self.forget_dead(prefetch);
            }
            Reply::Memory { memory, len } => {
                let line = receiver.take_descriptor()?;
                self.memories.insert(*memory, Slab::map(descriptor, *len)?, line);
            }
            _ => return Err(Error::new(ErrorKind::Invalid, "the message has no memory")),
        }
        Ok(())
    }

    /// Returns the batch of a message, the offsets of its samples, and the lease on its slot.
    ///
    /// # Errors
    /// `Invalid` for a message without a batch, or whose batch lies in an unknown slab.
    pub(super) fn lease(
        &mut self,
        reply: Reply,
        connection: &Arc<Connection>,
    ) -> Result<(Box<Batch>, Vec<u64>, Lease)> {
        let (batch, offsets) = match reply {
            Reply::Batch(batch) => (batch, Vec::new()),
            Reply::Placed { batch, offsets } => (batch, offsets),
            Reply::Lent { mut batch, offsets, memories } => {
                batch.set_memories(&memories)?;
                (batch, offsets)
            }
            _ => return Err(Error::new(ErrorKind::Invalid, "the message has no batch")),
        };
        let unknown = || Error::new(ErrorKind::Invalid, "a batch named an unknown slab");
        let slab = self.slabs.get(&batch.slab).ok_or_else(unknown)?;
        let (is_lone, slab) = (slab.is_lone, (slab.map.clone(), slab.spare));
        if is_lone {
            // Later batches may lie in older slabs: a batch that is read again gets a new one.
            self.slabs.remove(&batch.slab);
        } else {
            // Slots of slabs of several batches are taken in batch order.
            self.slabs.retain(|number, _| *number >= batch.slab);
        }
        let slot = (batch.slab, batch.slot);
        let lease = Lease::new(connection.clone(), slab, self.memories.of(&batch), slot);
        Ok((batch, offsets, lease))
    }

    /// Forgets the oldest slabs of one batch, if there are more of them than the batches in flight
    /// can have had: the batches of the others were read again, or their run ended.
    fn forget_dead(&mut self, prefetch: u32) {
        let most = prefetch.saturating_mul(1 + REREADS_MAX) as usize;
        let lone = self.slabs.iter().filter(|(_, slab)| slab.is_lone);
        let lone: Vec<u32> = lone.map(|(number, _)| *number).collect();
        for number in lone.iter().rev().skip(most) {
            self.slabs.remove(number);
        }
    }
}
