//! The slab of a session: spans leased for batches, and lent until the trainer returns them.
//!
//! One rule: a span goes back to its arena only when the trainer released it (or the session
//! ended), never because a new slab or a new run came. Leases are taken in batch order, so a batch
//! never waits for memory held by a later one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{Arena, Engine, Region, Span};
use forebay_wire::message::Batch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Event;

/// A region is rounded up to this (a huge page), so a grant is too: what is granted is what is used.
const GRANULE: usize = 2 << 20;

/// Slabs are sized for batches this much larger than the one that asked, in eighths: sample sizes
/// vary, and a new slab costs a round of page faults.
const HEADROOM_EIGHTHS: usize = 10;

/// Memory for the slabs of all sessions of a node: a hard limit, taken before anything is mapped.
#[derive(Debug, Clone)]
pub struct SlabMemory(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    limit: usize,
    used: Mutex<usize>,
}

/// A share of the slab memory, until dropped.
#[derive(Debug)]
struct Grant {
    pool: SlabMemory,
    bytes: usize,
}

impl SlabMemory {
    /// A pool of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Pool { limit, used: Mutex::new(0) }))
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        *self.used_mut()
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Takes `batches` times `each` bytes, or for as many fewer batches as still fit, down to one.
    fn take(&self, each: usize, batches: u32) -> Option<(Grant, u32)> {
        let mut used = self.used_mut();
        let left = self.0.limit - *used;
        let fit = u32::try_from(left / each.max(1)).unwrap_or(u32::MAX).min(batches);
        let bytes = each * fit as usize;
        *used += bytes;
        (fit > 0).then(|| (Grant { pool: self.clone(), bytes }, fit))
    }

    fn used_mut(&self) -> MutexGuard<'_, usize> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        *self.pool.used_mut() -= self.bytes;
    }
}

/// Slab memory and slots in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the current slab.
    pub slab_bytes: usize,
    /// Bytes of it in leased slots.
    pub leased_bytes: usize,
    /// Slots the trainer holds.
    pub lent_slots: usize,
    /// Batches the slab was sized for; below `prefetch` where memory is short.
    pub batches: u32,
}

/// Memory for one batch, and the right to have one more batch under way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) slab: u32,
    pub(super) slot: u64,
    pub(super) span: Option<Span>,
    pub(super) right: Right,
}

/// What a batch under way holds besides its memory: one of the job's slots, and its slab's grant.
#[derive(Debug)]
pub(super) struct Right {
    _credit: OwnedSemaphorePermit,
    _grant: Arc<Grant>,
}

/// What keeps a lent slot's memory.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) _spans: Vec<Span>,
    pub(super) _right: Right,
}

#[derive(Clone)]
struct Slab {
    number: u32,
    arena: Arena,
    batches: u32,
    grant: Arc<Grant>,
}

impl Slab {
    /// What a batch may need of it before a larger slab is made: a trainer keeps views only in a
    /// slab that holds all of `prefetch` batches, and counts on this much room for the next.
    fn share(&self, prefetch: u32) -> usize {
        let batches = if self.batches < prefetch { 1 } else { self.batches };
        self.arena.capacity() / batches as usize
    }
}

#[derive(Default)]
struct State {
    slab: Option<Slab>,
    slabs_made: u32,
    slots_made: u64,
    lent: HashMap<(u32, u64), Hold>,
}

pub(crate) struct Slots {
    engine: Engine,
    memory: SlabMemory,
    prefetch: u32,
    credits: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    state: Mutex<State>,
}

impl Slots {
    pub(super) fn new(
        engine: Engine,
        memory: SlabMemory,
        prefetch: u32,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let credits = Arc::new(Semaphore::new(prefetch as usize));
        Self { engine, memory, prefetch, credits, events, state: Mutex::default() }
    }

    /// Leases `bytes` for the next batch, waiting until the trainer has made room.
    pub(super) async fn lease(&self, bytes: usize) -> Result<Slot> {
        let closed = |_| Error::new(ErrorKind::Closed, "the session ended");
        let credit = self.credits.clone().acquire_owned().await.map_err(closed)?;
        let slab = self.slab_for(bytes).await?;
        let span = match bytes {
            0 => None,
            _ => Some(slab.arena.lease(bytes).await?),
        };
        let mut state = self.state();
        state.slots_made += 1;
        let right = Right { _credit: credit, _grant: slab.grant };
        Ok(Slot { slab: slab.number, slot: state.slots_made, span, right })
    }

    /// The batch is the trainer's until it releases the slot.
    pub(super) fn lend(&self, batch: &Batch, hold: Hold) {
        self.state().lent.insert((batch.slab, batch.slot), hold);
    }

    /// The trainer is done with a slot. One it never had is its own mistake, and changes nothing.
    pub(super) fn release(&self, slab: u32, slot: u64) {
        let hold = self.state().lent.remove(&(slab, slot));
        drop(hold);
    }

    pub(super) fn memory(&self) -> Memory {
        let state = self.state();
        let slab = state.slab.as_ref();
        Memory {
            slab_bytes: slab.map_or(0, |slab| slab.arena.capacity()),
            leased_bytes: slab.map_or(0, |slab| slab.arena.in_use()),
            lent_slots: state.lent.len(),
            batches: slab.map_or(0, |slab| slab.batches),
        }
    }

    /// The current slab if a batch of `bytes` may lie there, else a new one; its predecessor lives
    /// on in its leases.
    async fn slab_for(&self, bytes: usize) -> Result<Slab> {
        let each = (bytes.max(1).div_ceil(8) * HEADROOM_EIGHTHS).next_multiple_of(GRANULE);
        let current = self.state().slab.clone();
        let beside = match current {
            Some(slab) if slab.share(self.prefetch) >= bytes => return Ok(slab),
            Some(slab) if slab.arena.capacity() >= bytes => {
                match self.memory.take(each, self.prefetch) {
                    Some((grant, batches)) if batches == self.prefetch => Some((grant, batches)),
                    // Fewer batches in a slab they fit are better than fewer still in a new one.
                    _ => return Ok(slab),
                }
            }
            _ => None,
        };
        // The predecessor's bytes are free for its successor unless the trainer still uses them.
        self.state().slab = None;
        let taken = beside.or_else(|| self.memory.take(each, self.prefetch));
        let (grant, batches) = taken.ok_or_else(|| {
            Error::new(ErrorKind::Full, "no slab memory is left for one batch")
                .at("bytes", each)
                .at("used", self.memory.used())
                .at("limit", self.memory.limit())
                .advise("lower batch_size, ask for fewer fields, or raise the daemon's memory")
        })?;
        let number = {
            let mut state = self.state();
            state.slabs_made += 1;
            state.slabs_made
        };
        let len = grant.bytes;
        let region = tokio::task::spawn_blocking(move || {
            Region::create_sealed(&format!("forebay-slab-{number}"), len)
        })
        .await
        .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        self.engine.attach(&region).await?;
        let arena = Arena::new(region.clone());
        let slab = Slab { number, arena, batches, grant: Arc::new(grant) };
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        // No await between the two: a slab that is in use was announced.
        let place = self.events.reserve().await.map_err(gone)?;
        self.state().slab = Some(slab.clone());
        tracing::debug!(slab = number, bytes = region.len(), batches, "made a slab");
        place.send(Event::Slab { slab: number, region, batches });
        Ok(slab)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
