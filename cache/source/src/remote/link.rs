//! State of one endpoint, shared by all its users in this process.
//!
//! All requests share the knowledge gained by each: the limit on concurrent requests
//! ([`concurrency_limit`]), the usual duration ([`pace`]), and failures ([`breaker`]).

mod breaker;
mod concurrency_limit;
mod pace;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_histogram::{Histogram, Times};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use utoipa::ToSchema;

use crate::origin_checksum::{Checksums, Tally};
use crate::queue::{Queue, QueuePermit, Rank};
use crate::rate::Rate;
use breaker::{Breaker, May};
use concurrency_limit::ConcurrencyLimit;
use pace::Pace;

/// Smallest request: a part.
pub(super) const PART: u64 = crate::readers::PIECE as u64;

/// and at most. Longer replies save no time that could be seen, and are lost in larger pieces.
const PARTS_MAX: u64 = 4;

/// A reply is to last so many times as long as the wait for its first byte: the wait is then a
/// ninth of the whole, and hidden by the requests beside it.
const WAITS_PER_REPLY: u64 = 8;

/// A reply that takes this many times the usual duration is requested a second time.
const LATE: u32 = 3;

/// One byte in so many may come twice (3 %),
const HEDGED_ONE_IN: u64 = 33;

/// beside what the first few late replies need.
const HEDGED_FREE: u64 = PARTS_MAX * PART;

/// Network counters of one endpoint. Counters only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkReport {
    /// Address.
    pub endpoint: String,
    /// Requests it takes at once, as found out.
    pub limit: usize,
    /// Requests under way, and those that wait for a place.
    pub under_way: usize,
    /// Those that wait for a place.
    pub waiting: usize,
    /// True if its breaker is open.
    pub down: bool,
    /// Times the breaker opened.
    pub breaks: u64,
    /// Payload bytes received.
    pub bytes: u64,
    /// Second requests for what was late.
    pub hedges: u64,
    /// Bytes that came twice by them.
    pub hedged_bytes: u64,
    /// Requests that were repeated, or resumed where a reply broke off.
    pub retries: u64,
    /// Requests that it did not answer, or answered by saying that it cannot now.
    pub failures: u64,
    /// Requests that it answered by a refusal: there is no such object, whoever asks has no right
    /// to it, or it makes no sense of them.
    pub refusals: u64,
    /// Results of checksum comparisons.
    pub checksums: Checksums,
    /// Durations of replies to their first byte; only metrics show them.
    #[serde(skip)]
    pub first_bytes: Times,
    /// Durations to their last byte; only metrics show them.
    #[serde(skip)]
    pub replies: Times,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: String,
    queue: Arc<Queue>,
    rate: Rate,
    /// Nothing is late before this.
    late_least: Duration,
    state: Mutex<LinkState>,
    /// Told when the breaker opens, closes, or lets somebody try.
    looked: Notify,
    sequential: AtomicBool,
    bytes: AtomicU64,
    hedges: AtomicU64,
    hedged_bytes: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
    refusals: AtomicU64,
    checksums: Arc<Tally>,
    first_bytes: Histogram,
    replies: Histogram,
}

#[derive(Debug)]
struct LinkState {
    concurrency: ConcurrencyLimit,
    pace: Pace,
    breaker: Breaker,
    /// Bytes in flight that second requests may fetch twice, at most.
    hedging: u64,
}

/// The right to ask an endpoint, and the duty to say what came of it.
pub(super) struct Asking<'a> {
    link: &'a Link,
    probe: bool,
    told: bool,
}

impl Asking<'_> {
    /// The endpoint answered, whatever it said.
    pub(super) fn answered(mut self) {
        self.told = true;
        if self.link.state().breaker.answered() {
            tracing::info!(endpoint = self.link.endpoint, "the endpoint answers again");
            self.link.looked.notify_waiters();
        }
    }

    /// It answered that it will not.
    pub(super) fn refused(self) {
        self.link.refusals.fetch_add(1, Ordering::Relaxed);
        self.answered();
    }

    /// It did not, or said that it cannot now.
    pub(super) fn failed(mut self) {
        self.told = true;
        self.link.failures.fetch_add(1, Ordering::Relaxed);
        let must_look = {
            let mut state = self.link.state();
            let was_open = state.breaker.is_open();
            let must_look = state.breaker.failed(self.probe, Instant::now());
            if must_look && !was_open {
                tracing::warn!(
                    endpoint = self.link.endpoint,
                    "the endpoint's circuit breaker is open"
                );
            }
            must_look
        };
        if must_look {
            self.link.looked.notify_waiters();
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.told && self.probe {
            self.link.state().breaker.gave_up();
            self.link.looked.notify_waiters();
        }
    }
}

/// A second request's share of what may come twice, until dropped.
pub(super) struct Hedge {
    link: Arc<Link>,
    reserved: u64,
}

impl Drop for Hedge {
    fn drop(&mut self) {
        self.link.state().hedging -= self.reserved;
    }
}

impl Hedge {
    /// Notes bytes that came twice.
    pub(super) fn twice(&self, bytes: u64) {
        self.link.hedged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Link {
    /// An endpoint that takes `connections` requests at once, at most, and may send `bandwidth`
    /// bytes a second.
    pub(crate) fn new(
        endpoint: &str,
        connections: usize,
        bandwidth: Option<u64>,
        late_least: Duration,
    ) -> Arc<Self> {
        let concurrency = ConcurrencyLimit::new(connections, Instant::now());
        let queue = Queue::new(concurrency.limit());
        let state =
            LinkState { concurrency, pace: Pace::default(), breaker: Breaker::new(), hedging: 0 };
        Arc::new(Self {
            endpoint: endpoint.to_owned(),
            queue,
            rate: Rate::of(bandwidth),
            late_least,
            state: Mutex::new(state),
            looked: Notify::new(),
            sequential: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            hedges: AtomicU64::new(0),
            hedged_bytes: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            checksums: Arc::default(),
            first_bytes: Histogram::default(),
            replies: Histogram::default(),
        })
    }

    /// Waits for a place among the requests under way.
    pub(super) async fn place(&self, rank: &Rank) -> Result<QueuePermit> {
        self.queue.place(rank).await
    }

    /// Waits until so many bytes may be asked for.
    pub(super) async fn pay(&self, bytes: u64) {
        self.rate.take(bytes).await;
    }

    /// Other limits from now on, for whoever waits as well.
    pub(super) fn limit(&self, connections: usize, bandwidth: Option<u64>) {
        self.rate.set(bandwidth);
        let limit = {
            let mut state = self.state();
            state.concurrency.set_most(connections);
            state.concurrency.limit()
        };
        self.queue.set_limit(limit);
    }

    /// Waits until the endpoint may be asked: at once, unless it is taken to be down.
    ///
    /// # Errors
    /// `Unavailable` if that is not before `deadline`.
    pub(super) async fn enter(&self, deadline: Instant) -> Result<Asking<'_>> {
        loop {
            let mut looked = std::pin::pin!(self.looked.notified());
            // Before the look: what changes after it is heard of.
            looked.as_mut().enable();
            let now = Instant::now();
            let may = self.state().breaker.may(now);
            let (until, failures) = match may {
                May::Ask => return Ok(Asking { link: self, probe: false, told: false }),
                May::Probe => return Ok(Asking { link: self, probe: true, told: false }),
                May::Wait { until, failures } => (until, failures),
            };
            if until.unwrap_or(now) >= deadline || now >= deadline {
                return Err(self.is_down(failures));
            }
            let until = until.unwrap_or(deadline).min(deadline);
            // Both ends are looked at above.
            let _ = tokio::time::timeout_at(until.into(), looked).await;
        }
    }

    fn is_down(&self, failures: u32) -> Error {
        Error::new(ErrorKind::Unavailable, "the store's circuit breaker is open")
            .at("endpoint", &self.endpoint)
            .at("failures_in_a_row", failures)
            .advise("check that the endpoint is up and reachable from this machine")
    }

    /// Returns the bytes of one request: enough that the wait for the first byte is small beside
    /// it.
    pub(crate) fn request_bytes(&self) -> u64 {
        let wanted = self.state().pace.bytes_per_wait().unwrap_or(0);
        let parts = wanted.saturating_mul(WAITS_PER_REPLY).div_ceil(PART);
        // Powers of two: requests of like sizes have like times.
        parts.clamp(1, PARTS_MAX).next_power_of_two() * PART
    }

    /// After how long a reply of `bytes` is late; `None` while that is not known.
    pub(super) fn late_after(&self, bytes: u64) -> Option<Duration> {
        self.state().pace.usual(bytes).map(|usual| (usual * LATE).max(self.late_least))
    }

    /// The right to ask a second time for `bytes` that are late.
    pub(super) fn hedge(self: &Arc<Self>, bytes: u64) -> Option<Hedge> {
        let mut state = self.state();
        let spent = self.hedged_bytes.load(Ordering::Relaxed) + state.hedging;
        let allowed = self.bytes.load(Ordering::Relaxed) / HEDGED_ONE_IN + HEDGED_FREE;
        if spent + bytes > allowed {
            return None;
        }
        state.hedging += bytes;
        self.hedges.fetch_add(1, Ordering::Relaxed);
        drop(state);
        Some(Hedge { link: self.clone(), reserved: bytes })
    }

    /// Returns true if it is known to serve no ranges.
    pub(super) fn is_sequential(&self) -> bool {
        self.sequential.load(Ordering::Relaxed)
    }

    pub(super) fn set_sequential(&self) {
        if !self.sequential.swap(true, Ordering::Relaxed) {
            let endpoint = &self.endpoint;
            tracing::warn!(
                endpoint,
                "the server does not support byte ranges: shards are fetched in one request"
            );
        }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the results of checksum comparisons.
    pub(super) fn checksums(&self) -> &Arc<Tally> {
        &self.checksums
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a request that ended: when its first byte came, how many came, and how long that took.
    pub(super) fn landed(&self, first_byte: Duration, bytes: u64, rest: Duration) {
        self.first_bytes.took(first_byte);
        self.replies.took(first_byte + rest);
        let (_, waiting, _) = self.queue.counts();
        let limit = {
            let mut state = self.state();
            state.pace.note(first_byte, bytes, rest);
            state.concurrency.landed(bytes, waiting > 0, Instant::now())
        };
        if let Some(limit) = limit {
            tracing::debug!(
                endpoint = self.endpoint,
                limit,
                "changed the limit on concurrent requests"
            );
            self.queue.set_limit(limit);
        }
    }

    pub(crate) fn report(&self) -> LinkReport {
        let (under_way, waiting, limit) = self.queue.counts();
        let (down, breaks) = {
            let state = self.state();
            (state.breaker.is_open(), state.breaker.opened)
        };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LinkReport {
            endpoint: self.endpoint.clone(),
            limit,
            under_way,
            waiting,
            down,
            breaks,
            bytes: read(&self.bytes),
            hedges: read(&self.hedges),
            hedged_bytes: read(&self.hedged_bytes),
            retries: read(&self.retries),
            failures: read(&self.failures),
            refusals: read(&self.refusals),
            checksums: self.checksums.counts(),
            first_bytes: self.first_bytes.read(),
            replies: self.replies.read(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedged_requests_stay_within_their_budget() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        let first = link.hedge(HEDGED_FREE).expect("the first is free");
        assert!(link.hedge(1).is_none());
        first.twice(10);
        drop(first);
        assert!(link.hedge(HEDGED_FREE).is_none(), "what came twice is spent");
        link.received(10 * HEDGED_ONE_IN as usize);
        drop(link.hedge(HEDGED_FREE).expect("it is earned"));
        let report = link.report();
        assert_eq!((report.hedges, report.hedged_bytes), (2, 10));
    }

    #[test]
    fn request_size_follows_latency_and_rate() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        assert_eq!(link.request_bytes(), PART);
        let ms = Duration::from_millis;
        // 1 GB/s after 1 ms: a million bytes a wait.
        (0..64).for_each(|_| link.landed(ms(1), 4_000_000, ms(4)));
        assert_eq!(link.request_bytes(), 2 * PART);
        // The same after 20 ms.
        (0..64).for_each(|_| link.landed(ms(20), 4_000_000, ms(4)));
        assert_eq!(link.request_bytes(), 4 * PART);
        (0..64).for_each(|_| link.landed(ms(1), 400_000, ms(40)));
        assert_eq!(link.request_bytes(), PART);
    }

    #[tokio::test]
    async fn request_to_a_down_endpoint_fails_at_its_deadline() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        let soon = || Instant::now() + Duration::from_secs(60);
        let mut asked = 0;
        while !link.report().down {
            link.enter(soon()).await.unwrap().failed();
            asked += 1;
        }
        assert!(asked > 4);
        let error = link.enter(Instant::now()).await.err().expect("no time left");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.place("endpoint"), Some("http://e"));
    }
}
