//! A slot of the slab, until its last user is done.

use std::sync::Arc;

use forebay_wire::fork::Generation;
use forebay_wire::message::{NO_OTHERS, Request};
use forebay_wire::slab::Slab;

use crate::connection::Connection;

/// Keeps a slot's bytes; the slot goes back to the daemon that filled it when the last holder drops
/// its `Arc`. The mapping outlives the daemon, so the bytes stay readable whatever happens to it.
#[derive(Debug)]
pub struct Lease {
    connection: Arc<Connection>,
    slab: Arc<Slab>,
    spare: Option<u64>,
    number: u32,
    slot: u64,
    made_in: Generation,
}

impl Lease {
    pub(crate) fn new(
        connection: Arc<Connection>,
        slab: Arc<Slab>,
        spare: Option<u64>,
        number: u32,
        slot: u64,
    ) -> Self {
        Self { connection, slab, spare, number, slot, made_in: Generation::now() }
    }

    /// The slab the slot lies in.
    #[must_use]
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Bytes in one piece that the daemon needs of the slab to go on, 0 if no other
    /// batch will lie there; `None` if it needs all.
    pub(crate) fn spare(&self) -> Option<u64> {
        self.spare
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // After a fork the slot is the parent's to give back, not the child's.
        if self.made_in.is_now() {
            // A daemon that is gone took its slots with it.
            let _ = self.connection.send(&Request::Release { slab: self.number, slot: self.slot });
        }
    }
}

/// Returns the bytes of a slab that a consumer's views must leave free; none without such a limit.
pub(crate) fn spare_bytes(prefetch: u32, len: u64, batches: u32) -> Option<u64> {
    match batches {
        // The next batch may need all of a slab that was cut short for want of memory.
        NO_OTHERS => Some(0),
        _ if batches >= prefetch => Some(len.div_ceil(u64::from(batches))),
        _ => None,
    }
}
