//! Turns and memory of uploads. Each store has its own, so that one that does not answer delays no
//! other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay_engine::session::SlabMemory;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::{Arena, Region, Span};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Files uploaded at once to a store: two keep a link busy while one of them is completed.
const UPLOADS: usize = 2;

/// Stores with uploads at once, each with memory of its own. The jobs of a node save to one or two;
/// beyond that, a store that is down may take so long as its requests are tried again.
const STORES: usize = 4;

/// Memory of a store's parts in flight.
pub(crate) const PART_MEMORY: usize = 64 << 20;

/// Lanes of all stores.
pub(crate) struct Lanes {
    memory: SlabMemory,
    free: Arc<Semaphore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_store: HashMap<String, Weak<Lane>>,
    /// Lane that was asked for last. It keeps its memory until another one is.
    last: Option<Arc<Lane>>,
}

/// Turns and memory of one store.
pub(crate) struct Lane {
    turns: Semaphore,
    memory: OnceCell<Memory>,
}

/// Memory of a lane, and the right to have some.
struct Memory {
    arena: Arena,
    _place: OwnedSemaphorePermit,
}

impl Lanes {
    pub(crate) fn new(memory: SlabMemory) -> Self {
        let free = Arc::new(Semaphore::new(STORES));
        Self { memory, free, known: Mutex::default() }
    }

    /// Returns the lane of a store.
    pub(crate) fn of(&self, store: &str) -> Arc<Lane> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = known.by_store.get(store).and_then(Weak::upgrade).unwrap_or_else(|| {
            Arc::new(Lane { turns: Semaphore::new(UPLOADS), memory: OnceCell::new() })
        });
        known.last = Some(lane.clone());
        known.by_store.retain(|_, lane| lane.strong_count() > 0);
        known.by_store.insert(store.to_owned(), Arc::downgrade(&lane));
        lane
    }

    /// Leases memory of a lane, which has none before its first part.
    ///
    /// # Errors
    /// `Full` if the daemon has no memory left for it, or for more than it has.
    pub(crate) async fn lease(&self, lane: &Lane, bytes: usize) -> Result<Span> {
        let memory = lane.memory.get_or_try_init(|| self.memory()).await?;
        memory.arena.lease(bytes).await
    }

    async fn memory(&self) -> Result<Memory> {
        let place = self.free.clone().acquire_owned().await.map_err(|_| Error::shutting_down())?;
        let full = || {
            Error::new(ErrorKind::Full, "the daemon has no memory for uploads")
                .at("bytes", PART_MEMORY)
                .advise("raise `memory`, or wait for jobs to end")
        };
        let grant = self.memory.reserve(PART_MEMORY).ok_or_else(full)?;
        let make = || Region::create("forebay-uploads", PART_MEMORY);
        let region =
            tokio::task::spawn_blocking(make).await.map_err(|_| Error::shutting_down())??;
        region.keep(grant);
        Ok(Memory { arena: Arena::new(region), _place: place })
    }
}

impl Lane {
    /// Waits for a turn to upload a file.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.turns.acquire().await.map_err(|_| Error::shutting_down())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Bears promise 12: turns and memory that one store holds are none of another's.
    #[tokio::test]
    async fn silent_store_holds_no_turn_of_another() {
        let lanes = Lanes::new(SlabMemory::new(STORES * PART_MEMORY));
        let silent = lanes.of("silent");
        let turns = [silent.turn().await.unwrap(), silent.turn().await.unwrap()];
        let held = lanes.lease(&silent, PART_MEMORY).await.unwrap();
        assert!(silent.turn().now_or_never().is_none());
        assert!(lanes.lease(&silent, MIB).now_or_never().is_none());
        let other = lanes.of("other");
        drop(other.turn().now_or_never().unwrap().unwrap());
        drop(lanes.lease(&other, PART_MEMORY).await.unwrap());
        assert!(Arc::ptr_eq(&silent, &lanes.of("silent")), "all its uploads share it");
        drop((turns, held));
    }

    #[tokio::test]
    async fn idle_stores_give_their_memory_back() {
        let memory = SlabMemory::new(STORES * PART_MEMORY);
        let lanes = Lanes::new(memory.clone());
        for number in 0..2 * STORES {
            let lane = lanes.of(&number.to_string());
            drop(lanes.lease(&lane, MIB).await.unwrap());
            drop(lane);
            assert_eq!(memory.used(), PART_MEMORY, "the last one keeps its own");
        }
        let busy: Vec<_> = (0..STORES).map(|number| lanes.of(&format!("busy-{number}"))).collect();
        for lane in &busy {
            drop(lanes.lease(lane, MIB).await.unwrap());
        }
        let more = lanes.of("one more");
        assert!(lanes.lease(&more, MIB).now_or_never().is_none(), "it waits");
        drop(busy);
        drop(lanes.lease(&more, MIB).await.unwrap());
        assert!(Arc::ptr_eq(&more, &lanes.of("one more")));
        assert_eq!(lanes.known.lock().unwrap().by_store.len(), 1, "others are forgotten");
    }

    #[tokio::test]
    async fn lack_of_memory_is_told_and_passes() {
        let memory = SlabMemory::new(PART_MEMORY);
        let lanes = Lanes::new(memory.clone());
        let taken = memory.reserve(MIB).unwrap();
        let lane = lanes.of("store");
        let error = lanes.lease(&lane, MIB).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        drop(taken);
        drop(lanes.lease(&lane, MIB).await.unwrap());
    }
}
