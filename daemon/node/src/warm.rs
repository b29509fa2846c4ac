//! Warm-ups: shards fetched into the cache before any job wants them.
//!
//! A warm-up takes what jobs leave. All together run [`AT_ONCE`] fetches, each behind
//! whatever a job wants; a store or a cache that takes no more ends it instead of being asked for
//! each of its shards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_api::warm::{Failure, Warming};
use forebay_error::{Error, ErrorKind, Result, shown};
use forebay_source::Options;
use forebay_store::{FILLS, Prefetched, SMALL_BYTES, SMALL_FILLS, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::sessions::Sessions;

/// Shards fetched at once for all warm-ups together: at least as many places are free for a job
/// that comes.
pub const AT_ONCE: usize = FILLS / 2;

/// Permits of all warm-ups together: one for each small shard that is fetched at once.
const PERMITS: usize = SMALL_FILLS;

/// Permits that a large shard takes.
const LARGE_PERMITS: u32 = (PERMITS / AT_ONCE) as u32;

/// Warm-ups at once. More than a few people do not look after one node.
const RUNNING: usize = 8;

/// Ended ones that a status still shows.
const REMEMBERED: usize = 8;

/// Shards of one warm-up, as many as a pattern may match …
const SHARDS: usize = 1_000_000;

/// … and bytes of their URLs, which bounds what eight of them take of the daemon's memory.
const LIST_BYTES: usize = 128 << 20;

/// So many shards in a row that could not be had because their store does not answer, or because
/// there is no room: what follows would fare no better. More than are under way at once of another
/// store or data set.
const GIVE_UP_AFTER: u64 = 16;

/// Failures that are told one by one.
const TOLD: usize = 1000;

/// Interval between reports. Of small shards more than a thousand end in a second: a report of each
/// would wake every watcher as often.
const COUNTED: Duration = Duration::from_millis(500);

/// Refuses a list that is none, or too long.
fn check(urls: &[String]) -> Result<()> {
    if urls.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "a warm-up of no shards"));
    }
    let bytes = urls.iter().map(String::len).sum::<usize>();
    if urls.len() > SHARDS || bytes > LIST_BYTES {
        return Err(Error::new(ErrorKind::Invalid, "a warm-up of too many shards")
            .at("shards", SHARDS)
            .at("bytes_of_urls", LIST_BYTES)
            .advise("warm the data set in parts"));
    }
    Ok(())
}

/// A warm-up in the node's list.
#[derive(Debug, Clone)]
pub struct RegisteredWarmUp {
    progress: watch::Receiver<Warming>,
    task: AbortHandle,
}

impl RegisteredWarmUp {
    /// Watches the warm-up to its end; updates come twice a second.
    pub fn progress(&self) -> watch::Receiver<Warming> {
        self.progress.clone()
    }

    /// Begins no more shards; those under way arrive.
    pub fn stop(&self) {
        self.task.abort();
    }

    fn is_running(&self) -> bool {
        !self.progress.borrow().done
    }
}

/// The warm-ups of a node, the oldest first.
#[derive(Debug)]
pub struct WarmUps {
    list: Mutex<Vec<RegisteredWarmUp>>,
    turns: Arc<Semaphore>,
    made: AtomicU64,
}

impl WarmUps {
    pub(crate) fn new() -> Self {
        let turns = Arc::new(Semaphore::new(PERMITS));
        Self { list: Mutex::default(), turns, made: AtomicU64::new(0) }
    }

    /// Begins a warm-up.
    ///
    /// # Errors
    /// `Invalid` if nothing is named, or too much, `Full` if too many run.
    pub fn begin(
        &self,
        sessions: &Sessions,
        store: &Store,
        urls: Vec<String>,
        options: Options,
        bandwidth: Option<u64>,
    ) -> Result<RegisteredWarmUp> {
        check(&urls)?;
        let mut list = self.list();
        if list.iter().filter(|warm| warm.is_running()).count() >= RUNNING {
            return Err(Error::new(ErrorKind::Full, "the limit on concurrent warm-ups is reached")
                .at("limit", RUNNING)
                .advise("wait until one ends, or stop one; `forebay status` lists them"));
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let shards = urls.len() as u64;
        let told = Warming { number, shards, bandwidth, ..Warming::default() };
        let (sender, progress) = watch::channel(told.clone());
        let work = Work {
            store: store.for_job(sessions.next_session()),
            turns: self.turns.clone(),
            options: Arc::new(options),
            fetches: Arc::default(),
            in_a_row: 0,
            end: End { told, failures: Vec::new(), sender },
        };
        tracing::info!(number, shards, "started a warm-up");
        let present = sessions.enter();
        let task = tokio::spawn(async move {
            // An embedded daemon stays for it.
            let _present = present;
            work.run(urls).await;
        });
        let registered = RegisteredWarmUp { progress, task: task.abort_handle() };
        let ended = list.iter().filter(|warm| !warm.is_running()).count();
        if ended >= REMEMBERED
            && let Some(oldest) = list.iter().position(|warm| !warm.is_running())
        {
            list.remove(oldest);
        }
        list.push(registered.clone());
        Ok(registered)
    }

    /// Those that run, and the last that ended.
    pub fn describe(&self) -> Vec<Warming> {
        let told = |warm: &RegisteredWarmUp| Warming {
            failures: Vec::new(),
            ..warm.progress.borrow().clone()
        };
        self.list().iter().map(told).collect()
    }

    /// One of those, and what failed of it.
    ///
    /// # Errors
    /// `NotFound` if none of this number is remembered.
    pub fn find(&self, number: u64) -> Result<Warming> {
        let list = self.list();
        let found = list.iter().map(|warm| warm.progress.borrow()).find(|of| of.number == number);
        found.map(|warm| warm.clone()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no warm-up with this number")
                .at("number", number)
                .advise("see `forebay status`")
        })
    }

    /// Stops one.
    ///
    /// # Errors
    /// `NotFound` if none of this number runs.
    pub fn stop(&self, number: u64) -> Result<()> {
        let list = self.list();
        let running =
            list.iter().find(|warm| warm.is_running() && warm.progress.borrow().number == number);
        let Some(warm) = running else {
            return Err(Error::new(ErrorKind::NotFound, "no warm-up with this number is running")
                .at("number", number)
                .advise("see `forebay status`"));
        };
        warm.stop();
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, Vec<RegisteredWarmUp>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One warm-up at work.
struct Work {
    store: Store,
    turns: Arc<Semaphore>,
    options: Arc<Options>,
    fetches: Arc<Fetches>,
    /// Shards that could not be had one after the other.
    in_a_row: u64,
    end: End,
}

/// Fetches of one warm-up.
#[derive(Debug, Default)]
struct Fetches {
    /// Bytes of the warm-up on this node.
    held: AtomicU64,
    under_way: Mutex<Vec<Arc<Prefetched>>>,
    /// True if the last shard whose size is known was small.
    are_small: AtomicBool,
}

/// Says that a warm-up is over, however that came.
struct End {
    told: Warming,
    failures: Vec<Failure>,
    sender: watch::Sender<Warming>,
}

impl Drop for End {
    fn drop(&mut self) {
        let told = &mut self.told;
        told.untried = told.shards - told.fetched - told.cached - told.failed;
        told.failures = std::mem::take(&mut self.failures);
        told.done = true;
        tracing::info!(
            number = told.number,
            fetched = told.fetched,
            cached = told.cached,
            failed = told.failed,
            untried = told.untried,
            "ended a warm-up"
        );
        self.sender.send_replace(told.clone());
    }
}

/// Result of a shard: its bytes if it was fetched, none if it was present.
type Outcome = (String, Result<Option<u64>>);

impl Work {
    async fn run(mut self, urls: Vec<String>) {
        let (mut urls, mut tasks) = (urls.into_iter().peekable(), JoinSet::new());
        let mut counted = tokio::time::interval(COUNTED);
        counted.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Sizes are known once their stores answer; neighbours are about as large.
            let (permits, patience) = match self.fetches.are_small.load(Ordering::Relaxed) {
                true => (1, GIVE_UP_AFTER + PERMITS as u64),
                false => (LARGE_PERMITS, GIVE_UP_AFTER),
            };
            let goes_on = self.in_a_row < patience && urls.peek().is_some();
            tokio::select! {
                // Results are taken before new work starts: otherwise many failures could pile up
                // unread.
                biased;
                Some(joined) = tasks.join_next() => {
                    // One that panicked is among the untried.
                    if let Ok(outcome) = joined {
                        self.note(outcome);
                    }
                }
                turn = self.turns.clone().acquire_many_owned(permits), if goes_on => {
                    // The semaphore is never closed.
                    let (Ok(turn), Some(url)) = (turn, urls.next()) else { break };
                    let (store, options) = (self.store.clone(), self.options.clone());
                    let fetches = self.fetches.clone();
                    tasks.spawn(async move {
                        let outcome = bring(&store, &url, &options, &fetches, turn).await;
                        (url, outcome)
                    });
                }
                _ = counted.tick(), if !tasks.is_empty() => self.tell(),
                else => break,
            }
        }
    }

    fn note(&mut self, (url, outcome): Outcome) {
        let told = &mut self.end.told;
        match outcome {
            Ok(Some(bytes)) => {
                told.fetched += 1;
                told.bytes += bytes;
                self.in_a_row = 0;
            }
            Ok(None) => {
                told.cached += 1;
                self.in_a_row = 0;
            }
            Err(error) => {
                told.failed += 1;
                let kind = error.kind();
                let hopeless = [ErrorKind::Unavailable, ErrorKind::Full, ErrorKind::Closed];
                let hopeless = hopeless.contains(&kind);
                self.in_a_row = if hopeless { self.in_a_row + 1 } else { 0 };
                if self.end.failures.len() < TOLD {
                    let (kind, error) = (kind.name().to_owned(), error.to_string());
                    self.end.failures.push(Failure { url: shown(&url), kind, error });
                }
            }
        }
    }

    fn tell(&self) {
        let under_way = self.fetches.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived: u64 = under_way.iter().map(|shard| shard.arrived()).sum();
        drop(under_way);
        let told = &self.end.told;
        self.end.sender.send_replace(Warming { bytes: told.bytes + arrived, ..told.clone() });
    }
}

/// Brings one shard, to its end. `turn`: returned once its bytes are here, so that the next one is
/// fetched while the disk makes this one durable.
async fn bring(
    store: &Store,
    url: &str,
    options: &Options,
    Fetches { held, under_way, are_small }: &Fetches,
    turn: OwnedSemaphorePermit,
) -> Result<Option<u64>> {
    let shard = Arc::new(store.prefetch(url, options, held).await?);
    are_small.store(shard.estimated_bytes() <= SMALL_BYTES, Ordering::Relaxed);
    if shard.was_here() {
        return Ok(None);
    }
    let list = || under_way.lock().unwrap_or_else(PoisonError::into_inner);
    list().push(shard.clone());
    shard.fetched().await;
    drop(turn);
    let settled = shard.settled().await;
    list().retain(|other| !Arc::ptr_eq(other, &shard));
    // The unpacked size may exceed the estimate; a failed fetch takes no room.
    match settled {
        Ok(()) => {
            held.fetch_add(shard.bytes().saturating_sub(shard.estimated_bytes()), Ordering::Relaxed)
        }
        Err(_) => held.fetch_sub(shard.estimated_bytes(), Ordering::Relaxed),
    };
    settled.map(|()| Some(shard.arrived()))
}
