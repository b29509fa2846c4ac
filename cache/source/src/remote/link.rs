//! State of one endpoint, shared by all its users in this process.
//!
//! All requests share the knowledge gained by each: the limit on concurrent requests
//! ([`concurrency_limit`]), the usual duration ([`pace`]), failures ([`breaker`]), what the server
//! cannot do ([`lacks`]), and the replies that are not read at present ([`resting`]).

mod breaker;
mod concurrency_limit;
mod lacks;
mod pace;
mod resting;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_histogram::{Histogram, Times};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use utoipa::ToSchema;

use crate::origin_checksum::{Checksums, Tally};
use crate::queue::{Queue, QueuePermit, Rank, relieved};
use crate::rate::Rate;
use breaker::{Breaker, May};
use concurrency_limit::ConcurrencyLimit;
pub(super) use lacks::Lack;
use lacks::Lacks;
use pace::Pace;
pub(super) use resting::Rest;
use resting::{REST, Resting};

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

/// Folders whose failures are remembered: only those that fail, and a store that is busy is so in a
/// few.
const FOLDERS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Target of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    /// Bucket and folder, or what stands for them.
    pub(super) folder: &'a str,
    pub(super) url: &'a str,
}

/// Party that a failure is counted against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The endpoint: it cannot be connected to.
    Endpoint,
    /// The folder: the store says that it cannot now, or says nothing.
    Folder,
    /// The object alone: others may be well.
    Object,
}

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
    /// True if its breaker is open: it cannot be connected to.
    pub down: bool,
    /// Times a breaker opened, its own or that of a folder.
    pub breaks: u64,
    /// Payload bytes received.
    pub bytes: u64,
    /// Payload bytes of objects, and parts of them, that it took.
    pub written_bytes: u64,
    /// Requests by which it took them.
    pub puts: u64,
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
    resting: Resting,
    rate: Rate,
    /// Nothing is late before this.
    late_least: Duration,
    state: Mutex<LinkState>,
    /// Told when the breaker opens, closes, or lets somebody try.
    looked: Notify,
    lacks: Lacks,
    bytes: AtomicU64,
    written_bytes: AtomicU64,
    puts: AtomicU64,
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
    /// Breakers of folders that failed.
    folders: LruCache<u64, Breaker>,
    /// The last failures of objects that are asked for again.
    troubles: LruCache<u64, Error>,
    /// Times a breaker opened.
    breaks: u64,
    /// Bytes in flight that second requests may fetch twice, at most.
    hedging: u64,
}

/// The right to ask an endpoint, and the duty to say what came of it.
pub(super) struct Asking<'a> {
    link: &'a Link,
    target: Target<'a>,
    /// True if this request probes the endpoint, and the folder, for all.
    probes: (bool, bool),
    told: bool,
}

impl Asking<'_> {
    /// The endpoint answered, whatever it said.
    pub(super) fn answered(mut self) {
        self.told = true;
        let (endpoint, url) = (&self.link.endpoint, self.target.url);
        let woken = {
            let mut state = self.link.state();
            if !state.troubles.is_empty() {
                state.troubles.pop(&hash(&forebay_error::shown(url)));
            }
            let folder = state.folders.pop(&hash(self.target.folder));
            let folder = folder.is_some_and(|mut folder| folder.answered());
            state.breaker.answered() || folder
        };
        if woken {
            let url = forebay_error::shown(url);
            tracing::info!(endpoint, url, "the endpoint answers again");
            self.link.looked.notify_waiters();
        }
    }

    /// It answered that it will not.
    pub(super) fn refused(self) {
        self.link.refusals.fetch_add(1, Ordering::Relaxed);
        self.answered();
    }

    /// It did not, or said that it cannot now.
    pub(super) fn failed(mut self, blame: Blame, error: &Error) {
        self.link.failures.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let (target, (probes_endpoint, probes_folder)) = (self.target, self.probes);
        let must_look = match blame {
            // Its own retries are enough.
            Blame::Object => return,
            Blame::Endpoint => {
                let mut state = self.link.state();
                let was_open = state.breaker.is_open();
                let must_look = state.breaker.failed(None, error, probes_endpoint, now);
                state.broke(was_open, must_look, (&self.link.endpoint, None), error);
                self.probes.0 = false;
                must_look
            }
            Blame::Folder => {
                let mut state = self.link.state();
                // It was connected to.
                let answers = state.breaker.answered();
                let object = Some(hash(target.url));
                let folder = state.folders.get_or_insert_mut(hash(target.folder), Breaker::new);
                let was_open = folder.is_open();
                let must_look = folder.failed(object, error, probes_folder, now);
                state.broke(was_open, must_look, (&self.link.endpoint, Some(target.folder)), error);
                self.probes = (false, false);
                must_look || answers
            }
        };
        self.told = self.probes == (false, false);
        if must_look {
            self.link.looked.notify_waiters();
        }
    }
}

impl LinkState {
    /// Permits a request, with the breakers that it probes; else when to look again, and the error
    /// if that is too late.
    fn may(
        &mut self,
        target: Target<'_>,
        now: Instant,
    ) -> Result<(bool, bool), (Option<Instant>, Error)> {
        let endpoint = self.breaker.may(now);
        if let May::Wait { until, failures } = endpoint {
            return Err((until, is_down("connections to the store fail", failures, &self.breaker)));
        }
        let Some(folder) = self.folders.get_mut(&hash(target.folder)) else {
            return Ok((endpoint == May::Probe, false));
        };
        let may = folder.may(now);
        let May::Wait { until, failures } = may else {
            return Ok((endpoint == May::Probe, may == May::Probe));
        };
        let down = is_down("the store cannot serve this folder now", failures, folder);
        if endpoint == May::Probe {
            self.breaker.gave_up();
        }
        Err((until, down.at("folder", forebay_error::shown(target.folder))))
    }

    /// Notes and reports that a breaker has opened, if it has.
    fn broke(
        &mut self,
        was_open: bool,
        must_look: bool,
        (endpoint, folder): (&str, Option<&str>),
        error: &Error,
    ) {
        if was_open || !must_look {
            return;
        }
        self.breaks += 1;
        match folder {
            None => tracing::warn!(endpoint, %error, "the endpoint's circuit breaker is open"),
            Some(folder) => {
                let folder = forebay_error::shown(folder);
                tracing::warn!(endpoint, folder, %error, "the folder's circuit breaker is open");
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.told || self.probes == (false, false) {
            return;
        }
        let mut state = self.link.state();
        if self.probes.0 {
            state.breaker.gave_up();
        }
        if let (true, Some(folder)) =
            (self.probes.1, state.folders.peek_mut(&hash(self.target.folder)))
        {
            folder.gave_up();
        }
        drop(state);
        self.link.looked.notify_waiters();
    }
}

/// Returns the error of a request that no breaker let through in time, with the last failure.
fn is_down(what: &str, failures: u32, breaker: &Breaker) -> Error {
    let error = Error::new(ErrorKind::Unavailable, format!("{what}: the circuit breaker is open"))
        .at("failures_in_a_row", failures)
        .advise("check that the endpoint is up and reachable from this machine");
    let Some(last) = breaker.last() else { return error };
    ["status", "code"].iter().fold(
        error.at("last_error", last.message()),
        |error, place| match last.place(place) {
            Some(value) => error.at(place, value),
            None => error,
        },
    )
}

/// Short name of a folder or an object: two of the same would only share a breaker.
fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
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
        let state = LinkState {
            concurrency,
            pace: Pace::default(),
            breaker: Breaker::new(),
            folders: LruCache::new(FOLDERS),
            troubles: LruCache::new(FOLDERS),
            breaks: 0,
            hedging: 0,
        };
        Arc::new(Self {
            endpoint: endpoint.to_owned(),
            queue,
            resting: Resting::default(),
            rate: Rate::of(bandwidth),
            late_least,
            state: Mutex::new(state),
            looked: Notify::new(),
            lacks: Lacks::default(),
            bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            puts: AtomicU64::new(0),
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

    /// Waits for a place among the requests under way, or for that of a reply that is not read.
    pub(super) async fn place(&self, rank: &Rank) -> Result<QueuePermit> {
        relieved(self.queue.place(rank), REST, || self.resting.end_one()).await
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

    /// Waits until the endpoint may be asked for `target`: at once, unless it or the folder is
    /// taken to be down.
    ///
    /// # Errors
    /// `Unavailable` if that is not before `deadline`.
    pub(super) async fn enter<'a>(
        &'a self,
        target: Target<'a>,
        deadline: Instant,
    ) -> Result<Asking<'a>> {
        loop {
            let mut looked = std::pin::pin!(self.looked.notified());
            // Before the look: what changes after it is heard of.
            looked.as_mut().enable();
            let now = Instant::now();
            let (until, down) = match self.state().may(target, now) {
                Ok(probes) => return Ok(Asking { link: self, target, probes, told: false }),
                Err(waits) => waits,
            };
            if until.unwrap_or(now) >= deadline || now >= deadline {
                let down = down.at("url", target.url).at("endpoint", &self.endpoint);
                return Err(down);
            }
            let until = until.unwrap_or(deadline).min(deadline);
            // Both ends are looked at above.
            let _ = tokio::time::timeout_at(until.into(), looked).await;
        }
    }

    /// Returns the bytes of one request: enough that the wait for the first byte is small beside
    /// it.
    pub(crate) fn request_bytes(&self) -> u64 {
        let wanted = self.state().pace.bytes_per_wait().unwrap_or(0);
        let parts = wanted.saturating_mul(WAITS_PER_REPLY).div_ceil(PART);
        // Powers of two: requests of like sizes have like times.
        parts.clamp(1, PARTS_MAX).next_power_of_two() * PART
    }

    /// Returns the time after which a reply is late if not all of its `bytes` came, or its first
    /// byte if that is zero; `None` while that is not known.
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

    /// Returns what the server was found unable to do, of late.
    pub(super) fn lacks(&self) -> &Lacks {
        &self.lacks
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes a request that wrote so many bytes. How long it took says nothing about replies, by
    /// which requests are sized and judged late.
    pub(super) fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.puts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the results of checksum comparisons.
    pub(super) fn checksums(&self) -> &Arc<Tally> {
        &self.checksums
    }

    /// Notes a failure after which a request is made again.
    pub(super) fn retried(&self, error: &Error) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        if let Some(url) = error.place("url") {
            self.state().troubles.put(hash(url), error.clone());
        }
    }

    /// Returns the last failure that an object's request met, or that keeps it from being made.
    pub(super) fn trouble(&self, target: Target<'_>) -> Option<Error> {
        let state = self.state();
        let own = state.troubles.peek(&hash(&forebay_error::shown(target.url)));
        let folder = state.folders.peek(&hash(target.folder));
        own.or_else(|| folder?.last()).or_else(|| state.breaker.last()).cloned()
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
            (state.breaker.is_open(), state.breaks)
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
            written_bytes: read(&self.written_bytes),
            puts: read(&self.puts),
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

    const GOOD: Target<'_> = Target { folder: "http://e/good", url: "http://e/good/0.tar" };

    /// A busy folder, as its objects fail one after the other.
    async fn make_busy(link: &Link) {
        let busy = Error::new(ErrorKind::Unavailable, "busy").at("status", 503);
        let soon = Instant::now() + Duration::from_secs(60);
        for number in 0_u32.. {
            let url = format!("http://e/bad/{}.tar", number % 3);
            let target = Target { folder: "http://e/bad", url: &url };
            link.enter(target, soon).await.unwrap().failed(Blame::Folder, &busy);
            if link.report().breaks > 0 {
                return;
            }
        }
    }

    #[tokio::test]
    async fn request_to_a_down_endpoint_fails_at_its_deadline() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        let soon = || Instant::now() + Duration::from_secs(60);
        let refused = Error::new(ErrorKind::Unavailable, "connection refused");
        let mut asked = 0;
        while !link.report().down {
            link.enter(GOOD, soon()).await.unwrap().failed(Blame::Endpoint, &refused);
            asked += 1;
        }
        assert!(asked > 4);
        let error = link.enter(GOOD, Instant::now()).await.err().expect("no time left");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.place("endpoint"), Some("http://e"));
        assert_eq!(error.place("last_error"), Some("connection refused"));
    }

    #[tokio::test]
    async fn busy_folder_delays_no_other() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        make_busy(&link).await;
        assert!(!link.report().down);
        link.enter(GOOD, Instant::now()).await.unwrap().answered();
        let bad = Target { folder: "http://e/bad", url: "http://e/bad/9.tar" };
        let error = link.enter(bad, Instant::now()).await.err().expect("it is busy");
        assert_eq!((error.place("last_error"), error.place("status")), (Some("busy"), Some("503")));
        assert_eq!(error.place("url"), Some("http://e/bad/9.tar"));
    }

    #[tokio::test]
    async fn faults_of_one_object_delay_nobody() {
        let link = Link::new("http://e", 8, None, Duration::ZERO);
        let odd = Error::new(ErrorKind::Invalid, "odd");
        for _ in 0..100 {
            link.enter(GOOD, Instant::now()).await.unwrap().failed(Blame::Object, &odd);
        }
        assert_eq!(link.report().breaks, 0);
    }
}
