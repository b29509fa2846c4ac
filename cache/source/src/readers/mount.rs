//! The readers of one mount: how many, who is asked next, and what becomes of one that hangs.
//!
//! A process counts against the mount's bound from its start until it is gone. So a mount
//! that hangs holds [`READERS`] processes that cannot be ended, and not one more, and is then
//! answered for at once: it does not answer.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::MountReport;
use super::client::Attached;
use super::counts::Counts;
use super::message::{Answer, Said};
use super::process::{Pids, Reader};
use super::seats::{Seat, Seats};
use crate::queue::Queue;

/// Processes that read from one mount. Four parts of 4 MiB under way keep an NVMe drive busy, and
/// as many streams a network file system's client.
pub(super) const READERS: usize = 4;

/// Requests that wait for a reader of one mount: far above what a node's jobs have under way, and
/// below a megabyte of memory.
const QUEUE: usize = 4096;

/// Shards of one mount that are fetched at once: their parts, six of each, keep [`READERS`] busy.
pub(super) const SHARDS: usize = 2;

/// Attempts of a request whose readers end: the cause of the first failure is not expected to end
/// the second.
const TRIES: usize = 2;

/// A reader that nobody needed for so long ends. Starting one again costs some milliseconds.
const IDLE: Duration = Duration::from_secs(60);

pub(super) struct Mount {
    point: PathBuf,
    command: Arc<[OsString]>,
    limit: Duration,
    /// A seat for each process there may be: with a request, or in `idle`, or waited for.
    seats: Arc<Seats>,
    /// Readers that nobody asks just now; the last used is the next.
    idle: Mutex<Vec<Reader>>,
    pids: Arc<Pids>,
    turns: Arc<Queue>,
    /// Client that opens the files, if the readers do not.
    client: Option<Attached>,
    answers: AtomicU64,
    counts: Counts,
    hangs: AtomicBool,
    told_of_page_cache: AtomicBool,
    told_of_layout: AtomicBool,
}

impl Mount {
    pub(super) fn new(
        point: PathBuf,
        command: Arc<[OsString]>,
        limit: Duration,
        client: Option<Attached>,
    ) -> Arc<Self> {
        let turns = client.as_ref().map(Attached::turns);
        let mount = Arc::new(Self {
            point,
            command,
            limit,
            seats: Seats::new(READERS),
            idle: Mutex::default(),
            pids: Arc::default(),
            turns: turns.unwrap_or_else(|| Queue::new(SHARDS)),
            client,
            answers: AtomicU64::new(0),
            counts: Counts::default(),
            hangs: AtomicBool::new(false),
            told_of_page_cache: AtomicBool::new(false),
            told_of_layout: AtomicBool::new(false),
        });
        tokio::spawn(end_idle(Arc::downgrade(&mount)));
        mount
    }

    /// The right to fetch a shard of this mount.
    pub(super) fn turns(&self) -> &Arc<Queue> {
        &self.turns
    }

    /// Returns true if nobody uses it, so that it can be dropped with its readers.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.seats.is_idle()
    }

    pub(super) fn report(&self) -> MountReport {
        let pids = self.pids.lock();
        let stuck = pids.iter().filter(|(_, is_stuck)| **is_stuck);
        MountReport {
            mount: self.point.clone(),
            by_client: self.client.is_some(),
            hangs: self.hangs.load(Ordering::Relaxed),
            readers: pids.keys().copied().collect(),
            stuck: stuck.map(|(pid, _)| *pid).collect(),
            counts: self.counts.read(),
        }
    }

    /// Counts something, of a client's for all clients, too.
    fn count(&self, what: impl Fn(&Counts)) {
        what(&self.counts);
        if let Some(client) = &self.client {
            what(client.counts());
        }
    }

    /// Has a reader answer the request in `frame`, which asks these servers of the file system.
    pub(super) async fn ask(self: Arc<Self>, frame: &[u8], servers: Vec<u32>) -> Result<Loan> {
        let asked = self.clone().put(frame, servers).await;
        match &asked {
            Ok(loan) => self.count(|counts| counts.brought(loan.answer.len)),
            Err(error) => self.count(|counts| counts.failed(error)),
        }
        asked
    }

    async fn put(self: Arc<Self>, frame: &[u8], servers: Vec<u32>) -> Result<Loan> {
        let seat = self.seat(servers).await?;
        let mut tries = 0;
        loop {
            tries += 1;
            // After one that ended, a new one: what ended it may have ended all that were idle.
            let kept = if tries == 1 { self.idle().pop() } else { None };
            // A client that is gone is no reader's fault.
            let fresh = match (&kept, &self.client) {
                (None, Some(client)) => Some(client.socket(self.limit).await?),
                _ => None,
            };
            let asked = async {
                let mut reader = match kept {
                    Some(reader) => reader,
                    None => Reader::start(&self.command, &self.pids, fresh).await?,
                };
                let began = Instant::now();
                let said = timeout(self.limit, reader.exchange(frame)).await;
                if let Ok(Ok(_)) = &said {
                    self.count(|counts| counts.answered_in.since(began));
                }
                Ok::<_, Error>((reader, said))
            };
            let ended = match asked.await {
                Ok((reader, Ok(Ok(said)))) => {
                    self.answered(&said);
                    let kept = Kept { mount: self, reader: Some(reader), _seat: seat };
                    // A file system's error does not harm the reader.
                    return said.map(|answer| Loan { kept, answer });
                }
                Ok((reader, Err(_))) => {
                    self.hung();
                    reader.mark_stuck();
                    tokio::spawn(async move {
                        reader.bury().await;
                        drop(seat);
                    });
                    return Err(self.unanswered());
                }
                Ok((reader, Ok(Err(error)))) => {
                    tokio::spawn(reader.bury());
                    error
                }
                // Another attempt would fare no better.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::PermissionDenied) =>
                {
                    return Err(error);
                }
                Err(error) => error,
            };
            if tries == TRIES {
                return Err(Error::new(ErrorKind::Unavailable, "readers crash on this request")
                    .at("reader", ended));
            }
            tracing::warn!(mount = %self.point.display(), error = %ended, "a reader ended");
        }
    }

    /// Waits for the right to have a reader: for as long as the mount answers others.
    async fn seat(&self, servers: Vec<u32>) -> Result<Seat> {
        if self.seats.len() >= QUEUE {
            let error = Error::new(ErrorKind::Unavailable, "too many requests wait for a mount");
            return Err(error.at("mount", self.point.display()).advise("try again later"));
        }
        let mut seat = self.seats.join(servers);
        loop {
            if self.is_stuck() {
                return Err(self.unanswered());
            }
            let answers = self.answers.load(Ordering::Relaxed);
            match timeout(self.limit, &mut seat).await {
                Ok(seat) => {
                    return seat.map_err(|_| Error::shutting_down());
                }
                Err(_) if self.answers.load(Ordering::Relaxed) != answers => {}
                Err(_) => return Err(self.unanswered()),
            }
        }
    }

    /// Returns true if every process was killed and is still present.
    fn is_stuck(&self) -> bool {
        let pids = self.pids.lock();
        pids.values().filter(|is_stuck| **is_stuck).count() >= READERS
    }

    fn answered(&self, said: &Said) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if self.hangs.swap(false, Ordering::Relaxed) {
            tracing::info!(mount = %self.point.display(), "a mount answers again");
        }
        let Ok(answer) = said else { return };
        let mount = self.point.display();
        if !answer.direct && !self.told_of_page_cache.swap(true, Ordering::Relaxed) {
            tracing::warn!(%mount, "a mount does not support direct reads: shards go through the page cache");
        }
        if let Some(error) = &answer.layout_fault
            && !self.told_of_layout.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%mount, %error, "a mount's files are read as if they were not striped");
        }
    }

    fn hung(&self) {
        if !self.hangs.swap(true, Ordering::Relaxed) {
            let (mount, limit) = (self.point.display(), self.limit.as_secs_f64());
            tracing::warn!(%mount, limit, "a mount hangs: requests waiting for it fail");
        }
    }

    fn unanswered(&self) -> Error {
        Error::new(ErrorKind::Unavailable, "the file system does not answer")
            .at("mount", self.point.display())
            .at("seconds", self.limit.as_secs_f64())
            .advise("check the mount and its server; the daemon retries when a job asks")
    }

    /// Returns the time at which its longest idle reader was asked last.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle().first().map(|reader| reader.since)
    }

    /// Ends its longest idle reader, if one is idle.
    pub(super) fn end_oldest(&self) {
        let mut idle = self.idle();
        if !idle.is_empty() {
            tokio::spawn(idle.remove(0).bury());
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Closing a client's file may take for ever, too: until they are gone they count.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for reader in self.idle().drain(..) {
            runtime.spawn(reader.bury());
        }
    }
}

/// Ends readers that nobody needs, while the mount is known.
async fn end_idle(mount: Weak<Mount>) {
    let mut due = interval(IDLE);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let Some(mount) = mount.upgrade() else { return };
        let old: Vec<_> = mount.idle().extract_if(.., |one| one.since.elapsed() >= IDLE).collect();
        for reader in old {
            // It waits for nothing but us.
            reader.bury().await;
        }
    }
}

/// A reader with its seat; dropped, it is idle.
struct Kept {
    mount: Arc<Mount>,
    reader: Option<Reader>,
    /// Given back after the reader: whoever has it next finds that one.
    _seat: Seat,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            reader.since = Instant::now();
            self.mount.idle().push(reader);
        }
    }
}

/// An answer, with the reader in whose memory its bytes are.
pub(crate) struct Loan {
    kept: Kept,
    answer: Answer,
}

impl Loan {
    pub(crate) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Copies the first bytes of the answer, as many as there is room for.
    pub(crate) fn copy(&self, into: &mut [u8]) -> Result<()> {
        let reader = self.kept.reader.as_ref().expect("taken only by drop");
        reader.copy(self.answer.start, into)
    }
}
