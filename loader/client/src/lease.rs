//! A slot of the slab, until its last user is done.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::fork::Generation;
use forebay_wire::message::{Batch, IN_SLOT, Member, NO_OTHERS, Request};
use forebay_wire::slab::Slab;
use rustix::net::{SendFlags, send};

use crate::connection::Connection;

/// Memory of tiers that a daemon lends, by its number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memories(Vec<(u32, LentMemory)>);

/// Memory of a tier, mapped. The daemon writes nothing over what it lent of it while this process
/// holds the line.
#[derive(Debug, Clone)]
struct LentMemory {
    map: Arc<Slab>,
    _line: Arc<Line>,
}

/// Line to a daemon that waits for the end of all reads of its memory.
#[derive(Debug)]
struct Line {
    end: OwnedFd,
    made_in: Generation,
}

impl Drop for Line {
    fn drop(&mut self) {
        // A forked child has the end, too, and would keep it open for as long as it lives.
        if self.made_in.is_now() {
            // A daemon that is gone waits for nothing. The host may let SIGPIPE end the process.
            let _ = send(&self.end, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

impl Memories {
    /// Adds memory that the daemon announced, with its line; it replaces earlier memory of that
    /// number.
    pub(crate) fn insert(&mut self, number: u32, map: Arc<Slab>, line: OwnedFd) {
        self.0.retain(|(known, _)| *known != number);
        self.0.push((
            number,
            LentMemory { map, _line: Arc::new(Line { end: line, made_in: Generation::now() }) },
        ));
    }

    /// Returns the memory that members of a batch lie in. A lease on others would keep the pages of
    /// a daemon that has ended.
    pub(crate) fn of(&self, batch: &Batch) -> Self {
        let is_used = |number: u32| {
            let members = batch.samples.iter().filter_map(|sample| sample.members.as_ref().ok());
            members.flatten().any(|member| member.memory == number)
        };
        Self(self.0.iter().filter(|(number, _)| is_used(*number)).cloned().collect())
    }
}

/// Keeps a slot's bytes and borrowed shards; the slot goes back to the daemon that filled it when
/// the last holder drops its `Arc`. The bytes stay as they are after the connection and after the
/// daemon: a slab is of one session, and the daemon waits for the end of borrowed memory's line.
#[derive(Debug)]
pub struct Lease {
    connection: Arc<Connection>,
    slab: Arc<Slab>,
    spare: Option<u64>,
    memories: Memories,
    number: u32,
    slot: u64,
    made_in: Generation,
}

impl Lease {
    pub(crate) fn new(
        connection: Arc<Connection>,
        (slab, spare): (Arc<Slab>, Option<u64>),
        memories: Memories,
        (number, slot): (u32, u64),
    ) -> Self {
        Self { connection, slab, spare, memories, number, slot, made_in: Generation::now() }
    }

    /// The slab the slot lies in.
    #[must_use]
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Returns the map that a member lies in.
    ///
    /// # Errors
    /// `Invalid` if the daemon did not announce it.
    pub fn map_of(&self, member: &Member) -> Result<&Arc<Slab>> {
        if member.memory == IN_SLOT {
            return Ok(&self.slab);
        }
        let known = self.memories.0.iter().find(|(number, _)| *number == member.memory);
        known.map(|(_, memory)| &memory.map).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a batch named unknown memory")
                .at("memory", member.memory)
        })
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
