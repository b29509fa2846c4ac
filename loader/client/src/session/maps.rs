//! Memory of a daemon, mapped here, and the leases on it.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::frame::Receiver;
use forebay_wire::message::{Batch, Reply};
use forebay_wire::slab::Slab;

use crate::connection::Connection;
use crate::lease::{Lease, Memories, spare_bytes};

/// Maps of one daemon's slabs and of memory of its tiers.
#[derive(Debug, Default)]
pub(super) struct Maps {
    /// Slabs by number, with the bytes of each that a consumer's views must leave free.
    slabs: HashMap<u32, (Arc<Slab>, Option<u64>)>,
    memories: Memories,
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
                // Batches in the older slabs may still be on their way.
                self.slabs.insert(*slab, (Slab::map(descriptor, *len)?, spare));
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
        let slab = self.slabs.get(&batch.slab).cloned().ok_or_else(unknown)?;
        // Slots are taken in batch order: no later batch lies in an older slab.
        self.slabs.retain(|number, _| *number >= batch.slab);
        let slot = (batch.slab, batch.slot);
        let lease = Lease::new(connection.clone(), slab, self.memories.of(&batch), slot);
        Ok((batch, offsets, lease))
    }
}
