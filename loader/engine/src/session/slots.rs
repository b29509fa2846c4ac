//! Slab of a session: spans taken for batches, and lent until the trainer returns them.
//!
//! A span returns to its arena only when the trainer releases it or the session ends, never
//! because of a new slab or run. Spans are taken in batch order, so a batch never waits for memory
//! held by a later one.
//!
//! A disk that does not answer keeps the spans of its reads. Their slab is retired: the next batch
//! gets a new one instead of waiting for the disk, and the old one counts as used until the disk
//! returns its last span.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{ANSWER_TIMEOUT, ShardLoan};
use forebay_uring::{Arena, CHUNK, Engine, Region, Span};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{Batch, Cause, NO_OTHERS, Stage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SetOnce, mpsc};
use tokio::task::JoinHandle;

use super::Event;
use super::awaited::{Awaited, GATHERED, Waits};
use super::shared_memory::{SharedMemory, keep_until_unused};
use super::slab_memory::{Grant, SlabMemory};

/// Time a slab waits for memory that its own trainer still uses. Batches return as they are
/// decoded; a trainer that returns none for so long keeps them, and its error says what to change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time a disk's engine may take to register a slab: milliseconds, unless the disk hangs with its
/// full queue.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Headroom of a slab over the requesting batch, in eighths: sample sizes vary, and a new slab
/// costs a round of page faults.
const HEADROOM_EIGHTHS: usize = 10;

/// Size above which the first slab is not awaited: the first batch gets a slab of its own, and the
/// full one is made in parallel with its reads. Backing memory takes a tenth of a second per GiB on
/// a bare machine and up to three in a virtual one, so this size takes 3 to 100 ms.
const WORTH_A_START: usize = 32 << 20;

/// Slab memory and slots in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the current slab.
    pub slab_bytes: usize,
    /// Bytes of it in taken slots.
    pub leased_bytes: usize,
    /// Slots the trainer holds.
    pub lent_slots: usize,
    /// Batches the slab is sized for; below `prefetch` if memory is short.
    pub batches: u32,
}

/// Memory for one batch, and the right to one more batch in flight.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) slab: u32,
    pub(super) slot: u64,
    pub(super) span: Option<Span>,
    pub(super) right: Right,
    /// Wait for memory of other jobs, if there was one.
    pub(super) waited: Option<Stage>,
}

/// Right to a batch in flight, beside its memory: one of the job's slots, and its slab.
#[derive(Debug)]
pub(super) struct Right {
    // Dropped in this order: once every slot has returned, no memory is reserved for one.
    _region: Arc<Region>,
    _credit: OwnedSemaphorePermit,
}

/// Owner of a lent slot's memory, and of shards that the batch borrows.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) _spans: Vec<Span>,
    pub(super) _loans: Vec<ShardLoan>,
    pub(super) _right: Right,
}

#[derive(Clone)]
struct Slab {
    number: u32,
    /// Memory of the slots; the region keeps the slab's [`Grant`].
    arena: Arena,
    batches: u32,
    /// Set once a disk keeps spans of it.
    retired: Arc<SetOnce<()>>,
}

impl Slab {
    /// Returns the share of a batch before a larger slab is made: a trainer keeps views only in a
    /// slab that holds all of `prefetch` batches, and counts on this much room for the next.
    fn share(&self, prefetch: u32) -> usize {
        let batches = if self.batches < prefetch { 1 } else { self.batches };
        self.arena.capacity() / batches as usize
    }

    /// Returns the piece of each batch in a slab that holds all of `prefetch` batches: equal
    /// pieces, however small the batch, so that kept views never split the room for the next one.
    fn piece(&self, prefetch: u32) -> Option<usize> {
        (self.batches >= prefetch).then(|| self.share(prefetch))
    }
}

/// The first slab, made while the samples of its batch arrive.
struct EarlySlab {
    /// Bytes of one batch in it.
    each: usize,
    /// Batches it is for; [`NO_OTHERS`] if it holds the first one alone.
    batches: u32,
    made: JoinHandle<Result<Arc<Region>>>,
}

#[derive(Default)]
struct SlotState {
    slab: Option<Slab>,
    early: Option<EarlySlab>,
    slabs_made: u32,
    slots_made: u64,
    /// Wait for memory of other jobs, until the slot that it was for is taken.
    waited: Option<Stage>,
    lent: HashMap<(u32, u64), Hold>,
    /// Time since which the trainer has no batch.
    empty_since_ns: Option<u64>,
    /// Time the trainer had no batch because bytes of the next one were not on the node.
    missed: Duration,
}

impl SlotState {
    /// Records that the trainer has a batch from now on.
    fn note_lent(&mut self, stages: &[Stage]) {
        if let Some(since_ns) = self.empty_since_ns.take() {
            self.missed += arrival_wait(stages, since_ns);
        }
    }

    /// Records that the trainer has returned a batch.
    fn note_returned(&mut self) {
        if self.lent.is_empty() {
            self.empty_since_ns.get_or_insert_with(now_ns);
        }
    }
}

/// Returns the time since `since_ns` in which a batch with these stages waited for its origin or
/// for another node.
fn arrival_wait(stages: &[Stage], since_ns: u64) -> Duration {
    let waits = stages.iter().filter(|stage| stage.cause.is_arrival());
    Duration::from_nanos(
        waits.map(|wait| wait.end_ns.saturating_sub(wait.start_ns.max(since_ns))).sum(),
    )
}

pub(crate) struct Slots {
    engines: Vec<Engine>,
    memory: SlabMemory,
    prefetch: u32,
    /// Limit on the wait for memory of other jobs.
    patience: Duration,
    /// Limit on the wait for reads of a run that ended.
    reads_end: Duration,
    credits: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    waits: Arc<Waits>,
    state: Mutex<SlotState>,
    /// Memory of tiers that the trainer knows; the first is number 1.
    shared: tokio::sync::Mutex<Vec<SharedMemory>>,
}

impl Slots {
    pub(super) fn new(
        engines: Vec<Engine>,
        memory: SlabMemory,
        prefetch: u32,
        patience: Duration,
        events: mpsc::Sender<Event>,
        waits: Arc<Waits>,
    ) -> Self {
        let credits = Arc::new(Semaphore::new(prefetch as usize));
        let state = Mutex::default();
        let shared = tokio::sync::Mutex::default();
        let reads_end = ANSWER_TIMEOUT;
        Self {
            engines,
            memory,
            prefetch,
            patience,
            reads_end,
            credits,
            events,
            waits,
            state,
            shared,
        }
    }

    /// Returns the size of the largest batch that an otherwise empty memory can hold.
    pub(super) fn largest(&self) -> usize {
        self.memory.limit() / CHUNK * CHUNK
    }

    /// Takes `bytes` for the next batch, waiting until the trainer has made room.
    pub(super) async fn lease(&self, bytes: usize) -> Result<Slot> {
        let closed = |_| Error::new(ErrorKind::Closed, "the session ended");
        let listed = self.waits.begin(GATHERED, Awaited::Slot);
        let credit = self.credits.clone().acquire_owned().await.map_err(closed)?;
        drop(listed);
        let (slab, span) = loop {
            let slab = self.slab_for(bytes).await?;
            if bytes == 0 {
                break (slab, None);
            }
            let _listed = self.waits.begin(GATHERED, Awaited::Slot);
            let piece = slab.piece(self.prefetch).unwrap_or(bytes);
            tokio::select! {
                span = slab.arena.lease(piece) => break (slab, Some(span?)),
                _retired = slab.retired.wait() => {}
                // No batch is in flight: reads of a run that ended have the memory. They end in
                // time unless a disk keeps them.
                _home = self.credits.acquire_many(self.prefetch - 1) => {
                    let lease = tokio::time::timeout(self.reads_end, slab.arena.lease(piece));
                    match lease.await {
                        Ok(span) => break (slab, Some(span?)),
                        Err(_) => self.retire(slab.number),
                    }
                }
            }
        };
        let mut state = self.state();
        state.slots_made += 1;
        let right = Right { _region: slab.arena.region().clone(), _credit: credit };
        let waited = state.waited.take();
        Ok(Slot { slab: slab.number, slot: state.slots_made, span, right, waited })
    }

    /// Takes other memory for a batch that is read again. It does not wait for memory: later
    /// batches may hold what there is.
    pub(super) async fn replace(&self, slot: Slot, bytes: usize) -> Result<Slot> {
        if bytes == 0 {
            return Ok(slot);
        }
        let each = bytes.max(1).next_multiple_of(CHUNK);
        let (grant, _) = self.memory.take(each, 1).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "no slab memory is left beside that a disk keeps")
                .at("bytes", each)
                .at("used", self.memory.used())
                .at("limit", self.memory.limit())
                .advise("raise the daemon's memory, and see `forebay tier ls`")
        })?;
        let slab = self.make(grant, NO_OTHERS).await?;
        let span = Some(slab.arena.lease(bytes).await?);
        let mut state = self.state();
        state.slots_made += 1;
        let right = Right { _region: slab.arena.region().clone(), _credit: slot.right._credit };
        Ok(Slot { slab: slab.number, slot: state.slots_made, span, right, waited: None })
    }

    /// Keeps later batches out of a slab with spans that a disk keeps.
    pub(super) fn retire(&self, number: u32) {
        let mut state = self.state();
        if let Some(slab) = state.slab.take_if(|slab| slab.number == number) {
            let _once: Result<(), _> = slab.retired.set(());
        }
    }

    /// Lends the batch to the trainer until it releases the slot.
    pub(super) fn lend(&self, batch: &Batch, hold: Hold) {
        let mut state = self.state();
        state.lent.insert((batch.slab, batch.slot), hold);
        state.note_lent(&batch.stages);
    }

    /// Returns the trainer's number of memory of a tier, after announcing memory that is new.
    ///
    /// # Errors
    /// `Closed` if the trainer is gone.
    pub(super) async fn share(&self, region: &Arc<Region>) -> Result<u32> {
        let mut shared = self.shared.lock().await;
        let known = shared.iter().position(|known| known.is_of(region));
        let at = known.unwrap_or(shared.len());
        let memory = u32::try_from(at + 1).expect("a node has a handful of tiers");
        if known.is_none() {
            let (new, line) = SharedMemory::new(region)?;
            self.send(Event::Memory { memory, region: region.clone(), line }).await?;
            shared.push(new);
        }
        Ok(memory)
    }

    async fn send(&self, event: Event) -> Result<()> {
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        self.events.send(event).await.map_err(gone)
    }

    /// Returns the time since the last call in which the trainer had no batch because the next one
    /// waited for its origin or for another node. Other waits (for a tier, decoding or memory) are
    /// part of the job's pace: a shard that comes earlier does not shorten them.
    pub(super) fn missed(&self) -> Duration {
        std::mem::take(&mut self.state().missed)
    }

    /// Releases a slot. An unknown slot is the trainer's mistake and has no effect.
    pub(super) fn release(&self, slab: u32, slot: u64) {
        let hold = {
            let mut state = self.state();
            let hold = state.lent.remove(&(slab, slot));
            state.note_returned();
            hold
        };
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

    /// True until the first slab is made or begun.
    pub(super) fn is_new(&self) -> bool {
        let state = self.state();
        state.slabs_made == 0 && state.early.is_none()
    }

    /// Begins to make the first slab, for batches of about `bytes`, if half of all memory stays
    /// free: it is made while their samples arrive, and kept however long they take.
    pub(super) fn make_early(&self, bytes: usize) {
        if !self.is_new() || self.memory.has_queue() {
            return;
        }
        let each = self.share_for(bytes);
        let all = each.saturating_mul(self.prefetch as usize);
        let (bytes, batches) =
            if all > WORTH_A_START { (each, NO_OTHERS) } else { (all, self.prefetch) };
        let Some(grant) = self.memory.reserve_beside_half(bytes) else { return };
        let engines = self.engines.clone();
        let made = tokio::spawn(async move { back(&engines, grant).await });
        self.state().early = Some(EarlySlab { each, batches, made });
    }

    /// Returns the slab that was begun early, if a batch of `bytes` fits.
    async fn early_slab(&self, bytes: usize) -> Result<Option<Slab>> {
        let early = self.state().early.take();
        let Some(EarlySlab { each, batches, made }) = early else { return Ok(None) };
        // Awaited even if it is too small: its memory is free for another one then.
        let region = made.await.map_err(|_| Error::shutting_down())?;
        // If there was too little memory for this much, there may be enough for less.
        let Some(region) = region.ok().filter(|_| each >= bytes) else { return Ok(None) };
        let slab = self.announce(region, batches).await?;
        if batches != NO_OTHERS {
            self.state().slab = Some(slab.clone());
        }
        Ok(Some(slab))
    }

    /// Returns the bytes of a slab for one batch of `bytes`.
    fn share_for(&self, bytes: usize) -> usize {
        let roomy = (bytes.max(1).div_ceil(8) * HEADROOM_EIGHTHS).next_multiple_of(CHUNK);
        // A batch that fits without headroom needs none.
        roomy.min(self.largest()).max(bytes.max(1).next_multiple_of(CHUNK))
    }

    /// Reserves a slab of its own for the first batch, if the slab of all batches is too large to
    /// be awaited.
    fn first_alone(&self, each: usize) -> Option<Grant> {
        let is_large = each.saturating_mul(self.prefetch as usize) > WORTH_A_START;
        is_large.then(|| self.memory.take_beside(each, self.prefetch)).flatten()
    }

    /// Returns the current slab if a batch of `bytes` may lie there, else a new one; the old one
    /// lives on in its slots.
    async fn slab_for(&self, bytes: usize) -> Result<Slab> {
        if let Some(slab) = self.early_slab(bytes).await? {
            return Ok(slab);
        }
        let each = self.share_for(bytes);
        let current = self.state().slab.clone();
        if let Some(slab) = current {
            if slab.share(self.prefetch) >= bytes {
                return Ok(slab);
            }
            if slab.arena.capacity() >= bytes {
                return match self.memory.take(each, self.prefetch) {
                    Some((grant, batches)) if batches == self.prefetch => {
                        self.make_and_keep(grant, batches).await
                    }
                    // Fewer batches in a fitting slab are better than still fewer in a new one.
                    _ => Ok(slab),
                };
            }
        }
        let is_first = self.state().slabs_made == 0;
        if is_first && let Some(grant) = self.first_alone(each) {
            return self.make(grant, NO_OTHERS).await;
        }
        // The old slab's bytes are free for the new one unless the trainer still uses them.
        self.state().slab = None;
        let (grant, batches) = self.room(each).await?;
        self.make_and_keep(grant, batches).await
    }

    /// Makes the slab for the next batches and keeps it.
    async fn make_and_keep(&self, grant: Grant, batches: u32) -> Result<Slab> {
        let slab = self.make(grant, batches).await?;
        self.state().slab = Some(slab.clone());
        Ok(slab)
    }

    /// Reserves memory for as many batches of `each` bytes as there is room for, waiting for memory
    /// that this job's earlier batches hold, and then for memory of other jobs.
    async fn room(&self, each: usize) -> Result<(Grant, u32)> {
        let room = async {
            let _listed = self.waits.begin(GATHERED, Awaited::Slot);
            loop {
                let mut freed = pin!(self.memory.freed());
                freed.as_mut().enable();
                let is_next = !self.memory.has_queue();
                if is_next && let Some(taken) = self.memory.take(each, self.prefetch) {
                    return Some(taken);
                }
                tokio::select! {
                    () = freed => {}
                    // All other slots have returned: the rest is other jobs'.
                    _home = self.credits.acquire_many(self.prefetch - 1) => return None,
                }
            }
        };
        let taken = match tokio::time::timeout(PATIENCE, room).await {
            Ok(Some(taken)) => Some(taken),
            Ok(None) if each <= self.memory.limit() => {
                tracing::info!(bytes = each, "a job waits for slab memory of other jobs");
                let _listed = self.waits.begin(GATHERED, Awaited::Slab);
                let start_ns = now_ns();
                let taken = self.memory.take_in_turn(each, self.prefetch);
                let taken = tokio::time::timeout(self.patience, taken).await.ok();
                let waited = Stage { cause: Cause::Slab, start_ns, end_ns: now_ns() };
                self.state().waited = Some(waited);
                taken
            }
            // More than there is at all, or kept by its own trainer.
            _ => None,
        };
        taken.ok_or_else(|| {
            Error::new(ErrorKind::Full, "no slab memory is left for one batch")
                .at("bytes", each)
                .at("used", self.memory.used())
                .at("limit", self.memory.limit())
                .advise(
                    "lower batch_size, ask for fewer fields, keep fewer views, or raise the \
                     daemon's memory",
                )
        })
    }

    /// Makes a slab within `grant`, and announces it.
    async fn make(&self, grant: Grant, batches: u32) -> Result<Slab> {
        let region = back(&self.engines, grant).await?;
        self.announce(region, batches).await
    }

    /// Announces a slab to the trainer.
    async fn announce(&self, region: Arc<Region>, batches: u32) -> Result<Slab> {
        let number = {
            let mut state = self.state();
            state.slabs_made += 1;
            state.slabs_made
        };
        let arena = Arena::new(region.clone());
        let slab = Slab { number, arena, batches, retired: Arc::default() };
        tracing::debug!(slab = number, bytes = region.len(), batches, "made a slab");
        self.send(Event::Slab { slab: number, region, batches }).await?;
        Ok(slab)
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let loans = state.lent.drain().flat_map(|(_, hold)| hold._loans).collect();
        keep_until_unused(loans, std::mem::take(self.shared.get_mut()));
    }
}

/// Makes the memory of a slab, and registers it with the engines. The memory keeps its reservation.
async fn back(engines: &[Engine], grant: Grant) -> Result<Arc<Region>> {
    let len = grant.bytes();
    let region = tokio::task::spawn_blocking(move || Region::create_sealed("forebay-slab", len));
    let region = region.await.map_err(|_| Error::shutting_down())??;
    region.keep(grant);
    let slab = &region;
    let attached = engines.iter().map(|engine| async move {
        // A hanging disk must not keep jobs of other disks from their memory: its reads, should
        // it recover, are unregistered.
        match tokio::time::timeout(ATTACH_TIMEOUT, engine.attach(slab)).await {
            Ok(attached) => attached.map(drop),
            Err(_) => {
                tracing::warn!(?engine, "a disk does not register a slab's memory in time");
                Ok(())
            }
        }
    });
    futures::future::try_join_all(attached).await?;
    Ok(region)
}

#[cfg(test)]
mod tests;
