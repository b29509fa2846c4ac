//! Turns of fills, and pauses in which they let others go first.
//!
//! Samples that somebody waits for come first, sample by sample and not shard by shard. A
//! fill none of whose samples is waited for lets awaited fills go first, and goes on after them.
//! Running and waiting fills are counted apart from the queue, so that waiting work beside an idle
//! worker shows in reports.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::Result;
use forebay_source::{Queue, QueuePermit, Rank, Source, Turn};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use utoipa::ToSchema;

use super::starts::{FirstBatchWaits, StartState};
use crate::shutdown::shutting_down;
use crate::sizes::FILLS;

/// Fills that have begun and are paused. Each keeps a sleeping indexer thread; with the running
/// fills that is half of tokio's blocking threads. Beyond this number, shards come one after
/// another. It is more than two jobs of 96 lanes need.
const RESTING: usize = 250;

/// Fills that sync at once, after their turn. They hold no frames, and a journalling file system
/// syncs many small files in the time of one; each takes one of tokio's blocking threads.
const SYNCING: usize = 32;

/// Fills of a store: fetches from origins, and moves between tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fills {
    /// Running fills.
    pub running: usize,
    /// Fills that wait for their turn, or that let others go first.
    pub waiting: usize,
    /// Maximum number of running fills.
    pub limit: usize,
}

/// Turns of a store's fills. Awaited fills go before those fetched ahead; jobs with fewer running
/// fills go before jobs with more.
pub(crate) struct Flights {
    places: Arc<Queue>,
    running: AtomicUsize,
    waiting: AtomicUsize,
    resting: AtomicUsize,
    /// Paused fills that have not asked for a turn yet.
    held_back: AtomicUsize,
    /// Jobs that wait for their first batch; all else of these jobs is held back.
    pub(crate) starts: FirstBatchWaits,
    /// Ranks of the running fills.
    ranks: Mutex<Vec<Rank>>,
    /// Requests of first bytes before a fill takes them. Each holds a request of its endpoint, so
    /// there are no more of them than running fills.
    heads: Arc<Semaphore>,
    /// Permits to sync.
    syncs: Semaphore,
}

/// Turn of a fill, until dropped; a pause returns it.
pub(crate) struct Running<'a> {
    flights: &'a Flights,
    source: &'a dyn Source,
    url: &'a str,
    rank: &'a Rank,
    held: Option<(Turn, Flight<'a>)>,
}

/// One running fill, until dropped.
struct Flight<'a> {
    // Dropped before the place: the next fill must find one less running.
    _running: Counted<'a>,
    place: QueuePermit,
    _at_work: AtWork<'a>,
}

/// Rank of a running fill, until dropped.
struct AtWork<'a> {
    flights: &'a Flights,
    rank: &'a Rank,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut ranks = self.flights.ranks();
        if let Some(at) = ranks.iter().position(|rank| rank.is(self.rank)) {
            ranks.swap_remove(at);
        }
    }
}

/// A count of one, until dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one_more(of: &'a AtomicUsize) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Running<'a> {
    /// Returns true if another awaited fill waits for this turn.
    pub(super) fn is_contested(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|(turn, flight)| {
            turn.is_contested(self.rank) || flight.place.is_contested(self.rank)
        }) && self.flights.resting.load(Ordering::Relaxed) < RESTING
    }

    /// Returns true if another awaited fill is running.
    pub(super) fn has_company(&self) -> bool {
        let ranks = self.flights.ranks();
        ranks.iter().any(|rank| !rank.is(self.rank) && rank.is_awaited())
    }

    /// Returns true if only awaited bytes may be requested.
    pub(super) fn is_held_back(&self) -> bool {
        self.flights.starts.has(self.rank.owner())
            && self.flights.resting.load(Ordering::Relaxed) < RESTING
    }

    /// Watches the jobs that wait for their first batch.
    pub(super) fn watch_starts(&self) -> watch::Receiver<StartState> {
        self.flights.starts.watch()
    }

    /// Returns the turn for good, since only syncs are left, and waits for a permit to sync.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn sync(&mut self) -> Result<SemaphorePermit<'a>> {
        self.held = None;
        self.flights.syncs.acquire().await.map_err(|_| shutting_down())
    }

    /// Lets others go first: until the job has its first batch, or until `wanted` completes because
    /// more of this shard is needed. Then waits for a new turn.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn let_others(&mut self, wanted: impl Future<Output = ()>) -> Result<()> {
        let _resting = Counted::one_more(&self.flights.resting);
        self.held = None;
        let held_back = Counted::one_more(&self.flights.held_back);
        tokio::select! {
            () = wanted => {}
            () = self.flights.starts.over(self.rank.owner()) => {}
        }
        drop(held_back);
        self.held = Some(self.flights.turn(self.source, self.url, self.rank).await?);
        Ok(())
    }
}

impl Flights {
    pub(crate) fn new() -> Self {
        let [running, waiting, resting, held_back] = [(); 4].map(|()| AtomicUsize::new(0));
        let heads = Arc::new(Semaphore::new(FILLS));
        let (places, ranks, starts) =
            (Queue::new(FILLS), Mutex::default(), FirstBatchWaits::default());
        let syncs = Semaphore::new(SYNCING);
        Self { places, running, waiting, resting, held_back, starts, ranks, heads, syncs }
    }

    /// Waits for a turn to fetch a shard.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(crate) async fn begin<'a>(
        &'a self,
        source: &'a dyn Source,
        url: &'a str,
        rank: &'a Rank,
    ) -> Result<Running<'a>> {
        let held = Some(self.turn(source, url, rank).await?);
        Ok(Running { flights: self, source, url, rank, held })
    }

    /// Waits for the turn of the source first: fills that wait for a hanging source block no
    /// others.
    async fn turn<'a>(
        &'a self,
        source: &dyn Source,
        url: &str,
        rank: &'a Rank,
    ) -> Result<(Turn, Flight<'a>)> {
        let turn = source.turn(url, rank).await?;
        let waiting = Counted::one_more(&self.waiting);
        let place = self.places.place(rank).await?;
        let running = Counted::one_more(&self.running);
        drop(waiting);
        self.ranks().push(rank.clone());
        Ok((turn, Flight { _running: running, place, _at_work: AtWork { flights: self, rank } }))
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Rank>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no more fills begin.
    pub(crate) fn close(&self) {
        self.places.close();
        self.starts.close();
    }

    /// Permit to request a shard's first bytes, if a fill that begins now has its turn at once.
    pub(crate) fn head(&self) -> Option<OwnedSemaphorePermit> {
        // Held-back fills do not want a turn.
        let is_idle = self.waiting.load(Ordering::Relaxed) == 0
            && self.running.load(Ordering::Relaxed) < FILLS;
        is_idle.then(|| self.heads.clone().try_acquire_owned().ok()).flatten()
    }

    pub(crate) fn report(&self) -> Fills {
        Fills {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed) + self.held_back.load(Ordering::Relaxed),
            limit: FILLS,
        }
    }
}

#[cfg(test)]
mod tests;
