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

/// Slabs are sized for batches this much larger than the one that asked, in eighths: sample sizes
/// vary, and growing a slab costs a round of page faults.
const HEADROOM_EIGHTHS: usize = 10;

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
    pub(super) credit: OwnedSemaphorePermit,
}

/// What keeps a lent slot's memory.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) _spans: Vec<Span>,
    pub(super) _credit: OwnedSemaphorePermit,
}

struct Slab {
    number: u32,
    arena: Arena,
    batches: u32,
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
    limit: usize,
    prefetch: u32,
    credits: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    state: Mutex<State>,
}

impl Slots {
    pub(super) fn new(
        engine: Engine,
        limit: usize,
        prefetch: u32,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let credits = Arc::new(Semaphore::new(prefetch as usize));
        Self { engine, limit, prefetch, credits, events, state: Mutex::default() }
    }

    /// Leases `bytes` for the next batch, waiting until the trainer has made room.
    pub(super) async fn lease(&self, bytes: usize) -> Result<Slot> {
        let closed = |_| Error::new(ErrorKind::Closed, "the session ended");
        let credit = self.credits.clone().acquire_owned().await.map_err(closed)?;
        let (slab, arena) = self.slab_for(bytes).await?;
        let span = match bytes {
            0 => None,
            _ => Some(arena.lease(bytes).await?),
        };
        let mut state = self.state();
        state.slots_made += 1;
        Ok(Slot { slab, slot: state.slots_made, span, credit })
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

    /// The current slab if a batch fits it, else a new one; its predecessor lives on in its leases.
    async fn slab_for(&self, bytes: usize) -> Result<(u32, Arena)> {
        if let Some(slab) = &self.state().slab
            && slab.arena.capacity() >= bytes
        {
            return Ok((slab.number, slab.arena.clone()));
        }
        let batches = self.batches_that_fit(bytes)?;
        let each = bytes.max(1).div_ceil(8) * HEADROOM_EIGHTHS;
        let len = each.saturating_mul(batches as usize).min(self.limit).max(bytes);
        let number = self.state().slabs_made + 1;
        let region = tokio::task::spawn_blocking(move || {
            Region::create_sealed(&format!("forebay-slab-{number}"), len)
        })
        .await
        .map_err(|_| Error::new(ErrorKind::Closed, "shutting down"))??;
        self.engine.attach(&region).await?;
        let arena = Arena::new(region.clone());
        {
            let mut state = self.state();
            state.slabs_made = number;
            state.slab = Some(Slab { number, arena: arena.clone(), batches });
        }
        tracing::debug!(slab = number, bytes = region.len(), batches, "made a slab");
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        self.events.send(Event::Slab { slab: number, region, batches }).await.map_err(gone)?;
        Ok((number, arena))
    }

    /// Batches of `bytes` within the limit: `prefetch`, cut down as far as one before refusing.
    fn batches_that_fit(&self, bytes: usize) -> Result<u32> {
        let fit = u32::try_from(self.limit / bytes.max(1)).unwrap_or(u32::MAX);
        if fit == 0 {
            return Err(Error::new(ErrorKind::Full, "one batch is larger than the slab may be")
                .at("bytes", bytes)
                .at("limit", self.limit)
                .advise("lower batch_size, ask for fewer fields, or raise the daemon's memory"));
        }
        Ok(fit.min(self.prefetch))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
