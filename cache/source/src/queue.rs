//! Order of requests for a limited number of slots.
//!
//! Awaited requests come first, then prefetches, then requests no job wants yet. Among equals the
//! owner with the fewest slots goes first, so that one job's many shards leave others their share;
//! then first come, first served. The urgency of a waiting request may change: it is read when a
//! slot is free.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forebay_error::{Error, Result};
use tokio::sync::{SetOnce, oneshot};

use crate::Rate;
use crate::bill::Bill;

/// Waits for a place of a limited number, and has one freed each time that takes `patience`.
pub(crate) async fn relieved<T>(
    place: impl Future<Output = T>,
    patience: Duration,
    free_one: impl Fn(),
) -> T {
    let mut place = std::pin::pin!(place);
    loop {
        match tokio::time::timeout(patience, &mut place).await {
            Ok(place) => return place,
            Err(_) => free_one(),
        }
    }
}

/// A caller waits for it now.
const NOW: u64 = 0;

/// Prefetched ahead of need.
const AHEAD: u64 = 1;

/// Fetched before any job wants it.
const BEHIND: u64 = 2;

/// For whom something is done, how urgently, and how fast at most. Clones are one and the same.
#[derive(Debug, Clone)]
pub struct Rank {
    need: Arc<Need>,
    owner: u64,
}

#[derive(Debug)]
struct Need {
    /// Smaller goes first.
    level: AtomicU64,
    /// Those who wait for it now.
    waits: AtomicUsize,
    /// Rate limit of its bytes, if its requester has one.
    rate: Option<Arc<Rate>>,
    /// Set once somebody wants it who limits nothing.
    freed: SetOnce<()>,
    /// Bill of its bytes.
    bill: OnceLock<Arc<Bill>>,
    /// Bytes that came, also for ranks made by [`Rank::at_once`].
    received: Arc<AtomicU64>,
}

/// Somebody waits for it: until dropped, it goes as what is waited for now.
#[derive(Debug)]
pub struct Awaited(Arc<Need>);

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rank {
    /// Creates the rank of an awaited fetch; `owner` is the job, or 0.
    #[must_use]
    pub fn now(owner: u64) -> Self {
        Self::of(NOW, owner, None)
    }

    /// Creates the rank of a prefetch.
    #[must_use]
    pub fn ahead(owner: u64) -> Self {
        Self::of(AHEAD, owner, None)
    }

    /// Creates the rank of a fetch that no job wants yet.
    #[must_use]
    pub fn behind(owner: u64) -> Self {
        Self::of(BEHIND, owner, None)
    }

    /// One that is as urgent, and may come at this rate at most.
    #[must_use]
    pub fn paced(self, rate: Option<Arc<Rate>>) -> Self {
        Self::of(self.base(), self.owner, rate)
    }

    fn of(level: u64, owner: u64, rate: Option<Arc<Rate>>) -> Self {
        let (level, waits) = (AtomicU64::new(level), AtomicUsize::new(0));
        let (freed, bill) = (SetOnce::new(), OnceLock::new());
        let need = Need { level, waits, rate, freed, bill, received: Arc::default() };
        Self { need: Arc::new(need), owner }
    }

    /// One of what is waited for from beginning to end, by no job in particular, on the same bill.
    #[must_use]
    pub fn at_once(&self) -> Self {
        let (level, waits) = (AtomicU64::new(NOW), AtomicUsize::new(0));
        let (freed, bill) = (SetOnce::new(), self.need.bill.clone());
        let received = self.need.received.clone();
        let need = Need { level, waits, rate: None, freed, bill, received };
        Self { need: Arc::new(need), owner: 0 }
    }

    /// Notes bytes that came for it, and bills them.
    pub(crate) fn note_received(&self, bytes: u64) {
        self.need.received.fetch_add(bytes, Ordering::Relaxed);
        if let Some(bill) = self.bill() {
            bill.received(bytes);
        }
    }

    /// Bytes that came over a network so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.need.received.load(Ordering::Relaxed)
    }

    /// The job, or 0.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Bills its bytes, unless it is billed already. Call before anything is fetched.
    pub fn bill_to(&self, bill: impl FnOnce() -> Arc<Bill>) {
        self.need.bill.get_or_init(bill);
    }

    /// Returns the bill; none for a fetch without a requester.
    #[must_use]
    pub fn bill(&self) -> Option<&Arc<Bill>> {
        self.need.bill.get()
    }

    /// The number and the name of the job that asked for it, for the log; none if no job did.
    #[must_use]
    pub fn asker(&self) -> (Option<u64>, Option<&str>) {
        let job = self.bill().and_then(|bill| bill.job());
        (job.map(|_| self.owner), job)
    }

    /// Returns true if both are the same rank.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.need, &other.need)
    }

    /// Somebody waits for it now, and perhaps not for all of it.
    #[must_use]
    pub fn awaited(&self) -> Awaited {
        self.need.waits.fetch_add(1, Ordering::Relaxed);
        Awaited(self.need.clone())
    }

    /// Returns true if a caller waits for it now.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.level() == NOW
    }

    /// Somebody wants it, too, whose rank is `other`: from now on it is at least as urgent, and no
    /// slower; who only waits for `other` now says so of this one, too ([`Rank::awaited`]).
    pub fn lift(&self, other: &Self) {
        if self.is(other) {
            return;
        }
        self.need.level.fetch_min(other.base(), Ordering::Relaxed);
        if other.need.rate.is_none() {
            // Said before is as good.
            let _ = self.need.freed.set(());
        }
    }

    /// Waits until so many bytes of it may come.
    pub async fn pay(&self, bytes: u64) {
        let Some(rate) = &self.need.rate else { return };
        if self.need.freed.initialized() {
            return;
        }
        tokio::select! {
            () = rate.take(bytes) => {}
            _ = self.need.freed.wait() => {}
        }
    }

    /// Returns true if no job wants it yet.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.level() >= BEHIND
    }

    /// Returns its urgency now: smaller goes first.
    pub(crate) fn level(&self) -> u64 {
        match self.need.waits.load(Ordering::Relaxed) {
            0 => self.base(),
            _ => NOW,
        }
    }

    /// Returns its urgency while no caller waits for it.
    fn base(&self) -> u64 {
        self.need.level.load(Ordering::Relaxed)
    }
}

/// A number of places, and who waits for one.
#[derive(Debug)]
pub struct Queue(Mutex<QueueState>);

#[derive(Debug)]
struct QueueState {
    limit: usize,
    taken: usize,
    /// Places taken by owner; none has an entry of zero.
    by_owner: HashMap<u64, usize>,
    waiting: Vec<Waiter>,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    rank: Rank,
    place: oneshot::Sender<QueuePermit>,
}

/// A place, until dropped.
#[derive(Debug)]
pub struct QueuePermit {
    queue: Arc<Queue>,
    owner: u64,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.taken -= 1;
        if let Some(held) = state.by_owner.get_mut(&self.owner) {
            *held -= 1;
            if *held == 0 {
                state.by_owner.remove(&self.owner);
            }
        }
        Queue::give(&self.queue, state);
    }
}

impl QueuePermit {
    /// Returns true if a more urgent request than the unawaited rest of `rank`'s is in the queue.
    #[must_use]
    pub fn is_contested(&self, rank: &Rank) -> bool {
        let state = self.queue.state();
        let mut waiting = state.waiting.iter().filter(|waiter| !waiter.place.is_closed());
        waiting.any(|waiter| waiter.rank.level() < rank.base())
    }
}

impl Queue {
    /// A queue for `limit` places.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        let (by_owner, waiting) = (HashMap::new(), Vec::new());
        Arc::new(Self(Mutex::new(QueueState { limit, taken: 0, by_owner, waiting, closed: false })))
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// `Closed` once the queue is.
    pub async fn place(self: &Arc<Self>, rank: &Rank) -> Result<QueuePermit> {
        let (place, given) = oneshot::channel();
        {
            let mut state = self.state();
            if state.closed {
                return Err(Error::shutting_down());
            }
            // Waiters that left are dropped here: the list is as long as the queue.
            state.waiting.retain(|waiter| !waiter.place.is_closed());
            state.waiting.push(Waiter { rank: rank.clone(), place });
            Self::give(self, state);
        }
        given.await.map_err(|_| Error::shutting_down())
    }

    /// Takes a place if one is free now and no request waits for it.
    #[must_use]
    pub fn try_place(self: &Arc<Self>, rank: &Rank) -> Option<QueuePermit> {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.place.is_closed());
        if state.closed || state.taken >= state.limit || !state.waiting.is_empty() {
            return None;
        }
        Some(Self::take(self, &mut state, rank))
    }

    /// Changes how many places there are; those taken beyond a smaller number stay until they end.
    pub fn set_limit(self: &Arc<Self>, limit: usize) {
        let mut state = self.state();
        state.limit = limit;
        Self::give(self, state);
    }

    /// Gives no more places; whoever waits is told.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
    }

    /// Places taken, those who wait, and the limit.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.state();
        let waiting = state.waiting.iter().filter(|waiter| !waiter.place.is_closed()).count();
        (state.taken, waiting, state.limit)
    }

    /// Gives the free places to whoever is next.
    fn give(queue: &Arc<Self>, mut state: MutexGuard<'_, QueueState>) {
        let mut refused = Vec::new();
        while state.taken < state.limit {
            let QueueState { waiting, by_owner, .. } = &*state;
            let order = |waiter: &Waiter| {
                (waiter.rank.level(), by_owner.get(&waiter.rank.owner).copied().unwrap_or(0))
            };
            // The first among equals: they are in the order in which they came.
            let next = (0..waiting.len()).min_by_key(|at| order(&waiting[*at]));
            let Some(next) = next else { break };
            let Waiter { rank, place } = state.waiting.remove(next);
            let given = Self::take(queue, &mut state, &rank);
            if let Err(given) = place.send(given) {
                // It left; its place is given back below, when the lock is free.
                refused.push(given);
                break;
            }
        }
        drop(state);
    }

    /// Takes a free place.
    fn take(queue: &Arc<Self>, state: &mut QueueState, rank: &Rank) -> QueuePermit {
        state.taken += 1;
        *state.by_owner.entry(rank.owner).or_default() += 1;
        QueuePermit { queue: queue.clone(), owner: rank.owner }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;

    type Waiting = BoxFuture<'static, Result<QueuePermit>>;

    fn wait(queue: &Arc<Queue>, rank: &Rank) -> Waiting {
        let (queue, rank) = (queue.clone(), rank.clone());
        let mut waiting = async move { queue.place(&rank).await }.boxed();
        // Polled once, it is in the queue.
        assert!((&mut waiting).now_or_never().is_none());
        waiting
    }

    fn given(waiting: &mut Waiting) -> Option<QueuePermit> {
        waiting.now_or_never().map(Result::unwrap)
    }

    fn take(queue: &Arc<Queue>, rank: &Rank) -> QueuePermit {
        queue.place(rank).now_or_never().expect("a place is free").unwrap()
    }

    #[test]
    fn awaited_fetches_go_before_prefetches() {
        let queue = Queue::new(1);
        let held = take(&queue, &Rank::now(0));
        let mut ahead = wait(&queue, &Rank::ahead(0));
        let mut needed = wait(&queue, &Rank::now(0));
        drop(held);
        assert!(given(&mut ahead).is_none());
        drop(given(&mut needed).expect("it goes first"));
        assert!(given(&mut ahead).is_some());
    }

    #[test]
    fn prefetch_raised_to_awaited_overtakes_others() {
        let queue = Queue::new(1);
        let held = take(&queue, &Rank::now(0));
        let mut first = wait(&queue, &Rank::ahead(0));
        let rank = Rank::ahead(0);
        let mut second = wait(&queue, &rank);
        rank.lift(&Rank::now(0));
        drop(held);
        assert!(given(&mut first).is_none());
        assert!(given(&mut second).is_some());
    }

    #[test]
    fn prefetch_is_urgent_while_a_reader_waits() {
        let queue = Queue::new(1);
        let (held, rank) = (Rank::ahead(0), Rank::ahead(0));
        let place = take(&queue, &held);
        let mut first = wait(&queue, &Rank::ahead(0));
        let mut second = wait(&queue, &rank);
        assert!(!place.is_contested(&held), "they are no more urgent");
        let (awaited, again) = (rank.awaited(), rank.awaited());
        drop(awaited);
        assert!(place.is_contested(&held) && rank.is_awaited(), "one of two waits still");
        assert!(!place.is_contested(&Rank::now(0)));
        let waits = held.awaited();
        assert!(
            place.is_contested(&held),
            "of what nobody waits for, though the rest is waited for"
        );
        drop(waits);
        drop(place);
        assert!(given(&mut first).is_none());
        let place = given(&mut second).expect("it is waited for");
        drop(again);
        assert!(!place.is_contested(&rank) && !rank.is_awaited());
        // The lowest rank is contested by any prefetch.
        assert!(place.is_contested(&Rank::behind(0)));
    }

    #[test]
    fn fetches_wanted_by_no_job_go_last() {
        let queue = Queue::new(1);
        let held = take(&queue, &Rank::now(0));
        let rank = Rank::behind(1);
        let mut behind = wait(&queue, &rank);
        let mut ahead = wait(&queue, &Rank::ahead(0));
        drop(held);
        assert!(given(&mut behind).is_none());
        let held = given(&mut ahead).expect("a job looks ahead to it");
        // Somebody wants the same: it goes as what that one wants.
        let mut ahead = wait(&queue, &Rank::ahead(0));
        rank.lift(&Rank::now(0));
        drop(held);
        assert!(given(&mut ahead).is_none());
        assert!(given(&mut behind).is_some());
    }

    #[test]
    fn rate_limit_ends_when_an_unlimited_job_joins() {
        let rate = Arc::new(Rate::new(1 << 20));
        let rank = Rank::behind(0).paced(Some(rate.clone()));
        assert!(rank.pay(1 << 20).now_or_never().is_some(), "a second's worth is there");
        let mut paying = Box::pin(rank.pay(1 << 30));
        assert!((&mut paying).now_or_never().is_none());
        // A requester with its own limit takes nothing from others.
        rank.lift(&Rank::now(0).paced(Some(rate)));
        assert!((&mut paying).now_or_never().is_none());
        rank.lift(&rank.clone());
        assert!((&mut paying).now_or_never().is_none());
        rank.lift(&Rank::ahead(0));
        assert!(paying.now_or_never().is_some());
        assert!(rank.pay(u64::MAX).now_or_never().is_some());
        assert!(Rank::behind(0).pay(u64::MAX).now_or_never().is_some());
    }

    #[test]
    fn owner_with_the_fewest_places_goes_first() {
        let queue = Queue::new(3);
        let mut many: Vec<_> = (0..3).map(|_| take(&queue, &Rank::ahead(1))).collect();
        let mut more = wait(&queue, &Rank::ahead(1));
        let mut other = wait(&queue, &Rank::ahead(2));
        many.pop();
        assert!(given(&mut more).is_none());
        let kept = given(&mut other).expect("it has none");
        many.pop();
        assert!(given(&mut more).is_some());
        drop(kept);
    }

    #[test]
    fn only_a_free_place_is_taken_at_once() {
        let queue = Queue::new(1);
        let held = queue.try_place(&Rank::now(0)).expect("it is free");
        assert!(queue.try_place(&Rank::now(0)).is_none());
        let mut next = wait(&queue, &Rank::behind(0));
        drop(held);
        assert!(queue.try_place(&Rank::now(0)).is_none(), "it is given already");
        drop(given(&mut next).expect("it waited"));
        drop(queue.try_place(&Rank::now(0)).expect("it is free again"));
        assert_eq!(queue.counts(), (0, 0, 1));
        queue.close();
        assert!(queue.try_place(&Rank::now(0)).is_none());
    }

    #[test]
    fn dropped_waiter_frees_its_place() {
        let queue = Queue::new(1);
        let held = take(&queue, &Rank::now(0));
        let left = wait(&queue, &Rank::now(0));
        let mut stays = wait(&queue, &Rank::now(0));
        let granted = wait(&queue, &Rank::now(0));
        drop(left);
        drop(held);
        drop(given(&mut stays).expect("the one that left is passed over"));
        // Given, and dropped before it was looked at.
        drop(granted);
        assert_eq!(queue.counts(), (0, 0, 1));
        drop(take(&queue, &Rank::now(0)));
    }

    #[test]
    fn limit_changes_apply_and_close_ends_waiters() {
        let queue = Queue::new(1);
        let held = take(&queue, &Rank::now(0));
        let mut next = wait(&queue, &Rank::now(0));
        queue.set_limit(2);
        let second = given(&mut next).expect("there is one more");
        queue.set_limit(1);
        let mut third = wait(&queue, &Rank::now(0));
        drop(held);
        assert!(given(&mut third).is_none(), "one too many was out");
        queue.close();
        assert!(third.now_or_never().expect("it is told").is_err());
        drop(second);
        assert!(queue.place(&Rank::now(0)).now_or_never().expect("at once").is_err());
    }
}
