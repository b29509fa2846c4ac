//! Turns of fills, and pauses in which they let others go first.
//!
//! Samples that somebody waits for come first, sample by sample and not shard by shard. A fill none
//! of whose samples is waited for lets awaited fills go first, and goes on after them. A fill whose
//! store sends next to nothing gives its place to the fills of other stores (`endpoints.rs`).
//! Running and waiting fills are counted apart from the queue, so that waiting work beside an idle
//! worker shows in reports.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::Result;
use forebay_source::{Binding, Queue, QueuePermit, Rank, Source, Stat, Turn};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::ToSchema;

use super::commits::{Commits, Committing, ToCommit};
use super::endpoints::{EndpointTurn, EndpointUse, Endpoints};
use super::starts::{FirstBatchWaits, StartState};
use crate::compression::Compression;
use crate::sizes::{LANES, SMALL_BYTES, SMALL_FILLS, fills_in};

/// Fills that have begun and are paused. Each keeps a sleeping indexer thread; with the running
/// fills that is about half of tokio's blocking threads. Beyond this number, shards come one after
/// another. It is more than two jobs of 96 lanes need.
const RESTING: usize = 250;

/// Time after which a fill that stays slow leaves its lane to the fill of another slow store: a
/// part of 4 MiB comes in it at the speed from which on a store no longer counts as slow.
const LANE_TIME: Duration = Duration::from_secs(30);

/// Fills of a store: fetches from origins, and moves between tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fills {
    /// Running fills.
    pub running: usize,
    /// Fills that wait for their turn.
    pub waiting: usize,
    /// Fills that gave their turn back until the first batch of their job is there, or until more
    /// of their shard is wanted.
    pub paused: usize,
    /// Maximum number of running fills: 4 to 8 by the memory for frames, and the running ones of
    /// shards up to 256 KiB.
    pub limit: usize,
}

/// Size class of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillSize {
    /// At most [`crate::sizes::SMALL_BYTES`], plain bytes.
    Small,
    /// Any other.
    Large,
}

impl FillSize {
    /// Size class of an object, by what is known before its first byte.
    pub(crate) fn of(stat: &Stat, url: &str) -> Self {
        let is_small = stat.len <= SMALL_BYTES
            && stat.binding != Binding::Stream
            && !Compression::is_promised(url);
        if is_small { Self::Small } else { Self::Large }
    }
}

/// Turns of a store's fills. Awaited fills go before those fetched ahead; jobs with fewer running
/// fills go before jobs with more.
pub(crate) struct Flights {
    /// Number of places.
    fills: usize,
    places: Arc<Queue>,
    /// Places of small shards.
    small_places: Arc<Queue>,
    running: AtomicUsize,
    waiting: AtomicUsize,
    resting: AtomicUsize,
    /// Paused fills that have not asked for a turn yet.
    paused: AtomicUsize,
    /// Jobs that wait for their first batch; all else of these jobs is held back.
    pub(crate) starts: FirstBatchWaits,
    /// Ranks of the running fills.
    ranks: Mutex<Vec<Rank>>,
    /// Requests of first bytes before a fill takes them. Each holds a request of its endpoint, so
    /// there are no more of them than running fills.
    heads: Arc<Semaphore>,
    /// Endpoints of the fills.
    endpoints: Endpoints,
    /// Lanes of fills whose stores are slow.
    lanes: Arc<Queue>,
    /// Commits of fills that had their turn.
    commits: Commits,
}

/// Turn of a fill, until dropped; a pause returns it.
pub(crate) struct Running<'a> {
    flights: &'a Flights,
    source: &'a dyn Source,
    url: &'a str,
    rank: &'a Rank,
    size: FillSize,
    held: Option<Held<'a>>,
}

/// Rights of a running fill, given back from the first to the last.
struct Held<'a> {
    right: Right<'a>,
    /// None if the origin is no store.
    endpoint: Option<EndpointTurn<'a>>,
    source: Turn,
}

/// Rights that a fill of a slow store must give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Yield {
    /// None.
    Nothing,
    /// The place only: the fill has a lane from now on.
    Place,
    /// All: it waits for a turn like a fill that begins.
    Turn,
}

/// Right of a fill to hold frames and requests.
enum Right<'a> {
    /// As one of the running fills, or of [`SMALL_FILLS`].
    Place(Flight<'a>),
    /// As a fill of a slow store, beside them: one part at a time.
    Lane { _permit: QueuePermit, since: Instant },
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
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(super) fn one_more(of: &'a AtomicUsize) -> Self {
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
        let Some(Held { right, endpoint, source }) = &self.held else { return false };
        let is_contested = source.is_contested(self.rank)
            || endpoint.as_ref().is_some_and(|turn| turn.is_contested(self.rank))
            || matches!(right, Right::Place(flight) if flight.place.is_contested(self.rank));
        is_contested && self.flights.resting.load(Ordering::Relaxed) < RESTING
    }

    /// Returns true if the fill has a lane and no place.
    pub(super) fn has_lane(&self) -> bool {
        matches!(&self.held, Some(Held { right: Right::Lane { .. }, .. }))
    }

    /// Notes that the store sends next to nothing. Returns what the fill gives up for others.
    pub(super) fn note_slow(&mut self) -> Yield {
        let is_unneeded = !self.rank.is_awaited() && self.is_contested();
        let Some(Held { right, endpoint: Some(endpoint), .. }) = &mut self.held else {
            return Yield::Nothing;
        };
        let others_wait = endpoint.keeps_others_waiting();
        let was_slow = endpoint.is_slow();
        if others_wait {
            endpoint.mark_slow(true);
        }
        if is_unneeded {
            return Yield::Turn;
        }
        if let Right::Lane { since, .. } = right {
            let has_had_its_time = since.elapsed() >= LANE_TIME;
            return match has_had_its_time && self.flights.lanes.counts().1 > 0 {
                true => Yield::Turn,
                false => Yield::Nothing,
            };
        }
        if !others_wait {
            return Yield::Nothing;
        }
        match self.flights.lanes.try_place(self.rank) {
            // Further fills of the endpoint wait for this one.
            Some(permit) if !was_slow => {
                *right = Right::Lane { _permit: permit, since: Instant::now() };
                Yield::Place
            }
            _ => Yield::Turn,
        }
    }

    /// Takes the turn of a large shard: this one turns out to be compressed, and unpacking takes as
    /// much memory as a large one does.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn enlarge(&mut self) -> Result<()> {
        match self.size {
            FillSize::Large => Ok(()),
            FillSize::Small => {
                self.size = FillSize::Large;
                self.renew().await
            }
        }
    }

    /// Keeps the knowledge about the endpoint while the fill has no turn.
    fn keep_endpoint(&self) -> Option<EndpointUse<'a>> {
        let flights = self.flights;
        self.source.is_remote().then(|| flights.endpoints.enter(self.source.endpoint()))
    }

    /// Waits for a new turn, which others take before.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn renew(&mut self) -> Result<()> {
        let _resting = Counted::one_more(&self.flights.resting);
        let _known = self.keep_endpoint();
        self.held = None;
        self.held = Some(self.flights.turn(self.source, self.url, self.rank, self.size).await?);
        Ok(())
    }

    /// Notes that the store sends enough again.
    pub(super) fn mark_fast(&self) {
        if let Some(Held { right: Right::Lane { .. }, endpoint: Some(endpoint), .. }) = &self.held {
            endpoint.mark_slow(false);
        }
    }

    /// Notes that the store of a fill in a lane is fast again. Waits for a place, which the fill
    /// takes instead of the lane.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn note_fast(&mut self) -> Result<()> {
        let Some(Held { right: right @ Right::Lane { .. }, endpoint: Some(endpoint), .. }) =
            &mut self.held
        else {
            return Ok(());
        };
        endpoint.mark_slow(false);
        *right = Right::Place(self.flights.place(self.rank, self.size, Some(&*endpoint)).await?);
        Ok(())
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

    /// Returns the turn for good, since only the commit is left, and waits for a turn to commit.
    /// With too many uncommitted shards the fill keeps its turn: fetches do not outrun commits.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn commit(&mut self, shard: ToCommit) -> Result<Committing<'a>> {
        let uncommitted = self.flights.commits.enter(shard).await?;
        self.held = None;
        uncommitted.turn(self.has_company()).await
    }

    /// Lets others go first: until the job has its first batch, or until `wanted` completes because
    /// more of this shard is needed. Then waits for a new turn.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(super) async fn let_others(&mut self, wanted: impl Future<Output = ()>) -> Result<()> {
        let _resting = Counted::one_more(&self.flights.resting);
        let _known = self.keep_endpoint();
        self.held = None;
        let paused = Counted::one_more(&self.flights.paused);
        tokio::select! {
            () = wanted => {}
            () = self.flights.starts.over(self.rank.owner()) => {}
        }
        drop(paused);
        self.held = Some(self.flights.turn(self.source, self.url, self.rank, self.size).await?);
        Ok(())
    }
}

impl Flights {
    /// `frames`: memory of all fills, in bytes.
    pub(crate) fn new(frames: usize) -> Self {
        let [running, waiting, resting, paused] = [(); 4].map(|()| AtomicUsize::new(0));
        let fills = fills_in(frames);
        let heads = Arc::new(Semaphore::new(fills));
        let (places, ranks, starts) =
            (Queue::new(fills), Mutex::default(), FirstBatchWaits::default());
        let (endpoints, lanes) = (Endpoints::new(), Queue::new(LANES));
        let small_places = Queue::new(SMALL_FILLS);
        Self {
            fills,
            places,
            small_places,
            running,
            waiting,
            resting,
            paused,
            starts,
            ranks,
            heads,
            endpoints,
            lanes,
            commits: Commits::new(frames),
        }
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
        size: FillSize,
    ) -> Result<Running<'a>> {
        let held = Some(self.turn(source, url, rank, size).await?);
        Ok(Running { flights: self, source, url, rank, size, held })
    }

    /// Waits for the turns of the source and of its endpoint first: fills that wait for a hanging
    /// source or a slow store block no others.
    async fn turn<'a>(
        &'a self,
        source: &'a dyn Source,
        url: &str,
        rank: &'a Rank,
        size: FillSize,
    ) -> Result<Held<'a>> {
        let turn = source.turn(url, rank).await?;
        let endpoint = match source.is_remote() {
            true => {
                let waiting = Counted::one_more(&self.waiting);
                let endpoint = self.endpoints.enter(source.endpoint()).turn(rank).await?;
                drop(waiting);
                Some(endpoint)
            }
            false => None,
        };
        let right = match endpoint.as_ref().is_some_and(EndpointTurn::is_slow) {
            true => {
                let waiting = Counted::one_more(&self.waiting);
                let permit = self.lanes.place(rank).await?;
                drop(waiting);
                Right::Lane { _permit: permit, since: Instant::now() }
            }
            false => Right::Place(self.place(rank, size, endpoint.as_ref()).await?),
        };
        Ok(Held { right, endpoint, source: turn })
    }

    /// Waits for one of the places.
    async fn place<'a>(
        &'a self,
        rank: &'a Rank,
        size: FillSize,
        endpoint: Option<&EndpointTurn<'_>>,
    ) -> Result<Flight<'a>> {
        let waiting = Counted::one_more(&self.waiting);
        let at_endpoint = endpoint.map(EndpointTurn::wait_for_place);
        let places = match size {
            FillSize::Small => &self.small_places,
            FillSize::Large => &self.places,
        };
        let place = places.place(rank).await?;
        let running = Counted::one_more(&self.running);
        drop((waiting, at_endpoint));
        self.ranks().push(rank.clone());
        Ok(Flight { _running: running, place, _at_work: AtWork { flights: self, rank } })
    }

    /// Waits until the store at this endpoint is slow.
    pub(crate) async fn slow(&self, endpoint: &str) {
        self.endpoints.slow(endpoint).await;
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<Rank>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no more fills begin.
    pub(crate) fn close(&self) {
        self.places.close();
        self.small_places.close();
        self.lanes.close();
        self.endpoints.close();
        self.starts.close();
    }

    /// Permit to request a shard's first bytes, if a fill that begins now has its turn at once.
    pub(crate) fn head(&self) -> Option<OwnedSemaphorePermit> {
        // Held-back fills do not want a turn.
        let is_idle =
            self.waiting.load(Ordering::Relaxed) == 0 && self.places.counts().0 < self.fills;
        is_idle.then(|| self.heads.clone().try_acquire_owned().ok()).flatten()
    }

    pub(crate) fn report(&self) -> Fills {
        Fills {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            paused: self.paused.load(Ordering::Relaxed),
            limit: self.fills + self.small_places.counts().0,
        }
    }
}

#[cfg(test)]
mod tests;
