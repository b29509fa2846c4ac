//! The right to run a fill, and the duty to let others go first.
//!
//! Its rule: what somebody waits for goes before all else, sample by sample and not shard by shard: a fill
//! of which no more is waited for lets others go first for whom somebody waits, and goes on after them.
//! Whoever has the right and whoever waits for it is counted, apart from the places themselves, so that
//! work that waits beside an idle worker is seen from outside.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::Result;
use forebay_source::{Place, Queue, Rank, Source, Turn};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::ToSchema;

use super::FILLS;
use super::starts::{Starts, State};

/// Fills that have begun and let others go first. Each keeps a thread that indexes, which sleeps; with those
/// of the fills at work they are half of the threads that tokio has for such. Beyond that many,
/// shards come one after another again. It is more than two jobs of 96 lanes need.
const RESTING: usize = 250;

/// Fills of a store now: fetches from origins, and moves between tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fills {
    /// Those at work.
    pub running: usize,
    /// Those whose turn has not come, or that let others go first.
    pub waiting: usize,
    /// How many may be at work at once.
    pub limit: usize,
}

/// The turns of a store's fills: what is waited for goes before what is fetched ahead, and jobs that have
/// fewer under way before those that have more.
pub(crate) struct Flights {
    places: Arc<Queue>,
    running: AtomicUsize,
    waiting: AtomicUsize,
    resting: AtomicUsize,
    /// Those of them whose turn is not asked for yet.
    held_back: AtomicUsize,
    /// Jobs for whose first batch the others of their fills are held back.
    pub(crate) starts: Starts,
    /// Of those at work.
    ranks: Mutex<Vec<Rank>>,
    /// First bytes that may be asked for before a fill is there to take them. They hold requests of their
    /// endpoint; so there are no more of them than fills that may come for them at once.
    heads: Arc<Semaphore>,
}

/// A fill's right to run, until dropped; it may be given back in between.
pub(crate) struct Running<'a> {
    flights: &'a Flights,
    source: &'a dyn Source,
    url: &'a str,
    rank: &'a Rank,
    held: Option<(Turn, Flight<'a>)>,
}

/// A fill's turn, until dropped.
struct Flight<'a> {
    // Before the permit: whoever is next must find one running less.
    _running: Counted<'a>,
    place: Place,
    _at_work: AtWork<'a>,
}

/// A rank of those at work, until dropped.
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

/// One more of something, until dropped.
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

impl Running<'_> {
    /// Whether another fill that somebody waits for is in line for it.
    pub(super) fn is_contested(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|(turn, flight)| {
            turn.is_contested(self.rank) || flight.place.is_contested(self.rank)
        }) && self.flights.resting.load(Ordering::Relaxed) < RESTING
    }

    /// Whether somebody waits for another that is at work.
    pub(super) fn has_company(&self) -> bool {
        let ranks = self.flights.ranks();
        ranks.iter().any(|rank| !rank.is(self.rank) && rank.is_awaited())
    }

    /// Whether nothing may be asked for that nobody waits for.
    pub(super) fn is_held_back(&self) -> bool {
        self.flights.starts.has(self.rank.owner())
            && self.flights.resting.load(Ordering::Relaxed) < RESTING
    }

    /// Hears of it when that may have changed.
    pub(super) fn watch_starts(&self) -> watch::Receiver<State> {
        self.flights.starts.watch()
    }

    /// Lets others go first: until its job has its first batch, unless somebody wants more of it (`wanted`)
    /// before; then until its turn has come again.
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
        let (places, ranks, starts) = (Queue::new(FILLS), Mutex::default(), Starts::default());
        Self { places, running, waiting, resting, held_back, starts, ranks, heads }
    }

    /// Waits for the right to fetch a shard.
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

    /// Its source's turn comes first, so that what waits for a source that hangs keeps nobody else from a
    /// flight.
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

    /// No more fills begin.
    pub(crate) fn close(&self) {
        self.places.close();
        self.starts.close();
    }

    /// The right to ask for a shard's first bytes, if a fill that begins now has its turn at once.
    pub(crate) fn head(&self) -> Option<OwnedSemaphorePermit> {
        // Those that are held back want no turn.
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
