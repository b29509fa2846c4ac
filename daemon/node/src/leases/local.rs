//! Queues in this daemon's memory, for jobs whose ranks are all on this node.
//!
//! A member's connection is its life. When it ends, what it held comes back at once; only
//! after the daemon itself was lost is everybody awaited for a while.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use forebay_engine::lease::{Change, Leases, Name, Queue};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use tokio::sync::watch;

use super::log::Log;

/// Time a daemon restarted after a crash waits for the former members: they start it, or retry
/// until it answers.
const GRACE: Duration = Duration::from_secs(30);

/// Time a queue without members is kept: until the slowest rank of its job has begun, too.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// Queues that a user may have here: an epoch is one, and is remembered for some time.
const QUEUES_MAX: usize = 1000;

pub(super) struct Local {
    directory: Option<PathBuf>,
    queues: Mutex<HashMap<Name, Kept>>,
}

/// A queue, and those who wait for it to change.
struct Kept {
    queue: Option<Queue>,
    log: Option<Log>,
    changes: watch::Sender<u64>,
    touched: Instant,
}

impl Local {
    /// Queues that are noted in `directory`.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        if directory.is_none() {
            tracing::info!("no tier is on a disk: leases end with this daemon");
        }
        Self { directory, queues: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Kept>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &Name) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.join(format!("{name}.log")))
    }

    /// Returns an earlier daemon's record of a queue.
    fn find(&self, name: &Name) -> Result<Kept> {
        let mut queue = match self.path(name) {
            Some(path) => Log::read(&path)?,
            None => None,
        };
        if let Some(queue) = &mut queue {
            queue.await_all(now_ms().saturating_add(millis(GRACE)));
        }
        let (changes, touched) = (watch::Sender::new(0), Instant::now());
        Ok(Kept { queue, log: None, changes, touched })
    }

    /// Notes what became of a queue. A log that cannot be written is worse than none: what was done
    /// since would be done again.
    fn note(&self, name: &Name, kept: &mut Kept, queue: &mut Queue) {
        let entries = queue.entries();
        let Some(path) = self.path(name) else { return };
        let is_other = kept.queue.as_ref().is_none_or(|before| before.log() != queue.log());
        let noted = match &mut kept.log {
            Some(log) if !is_other => log.add(&entries, queue),
            log => self.sweep().and_then(|()| Log::begin(&path, queue)).map(|new| *log = Some(new)),
        };
        if let Err(error) = noted {
            tracing::warn!(%error, path = %path.display(), "leases are not stored: they end with this daemon");
            kept.log = None;
            // It may not even be there.
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Makes the directory, and forgets what nobody will ask for.
    fn sweep(&self) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        std::fs::create_dir_all(directory).doing("make a directory for lease logs")?;
        for entry in std::fs::read_dir(directory).doing("list lease logs")?.flatten() {
            if is_old(&entry.path()) {
                // A member that comes meanwhile finds none, as it would a moment later.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Leases for Local {
    async fn change(&self, name: &Name, change: &mut Change<'_>) -> Result<()> {
        let mut queues = self.lock();
        if !queues.contains_key(name) {
            queues.retain(|_, kept| {
                let is_left = kept.queue.as_ref().is_none_or(Queue::is_left);
                !is_left || kept.touched.elapsed() < REMEMBERED
            });
            make_room(&mut queues, name.owner)?;
            let kept = self.find(name)?;
            queues.insert(name.clone(), kept);
        }
        let kept = queues.get_mut(name).expect("inserted just above, if it was not there");
        let mut queue = kept.queue.clone();
        let changed = change(&mut queue, now_ms());
        match (&mut queue, changed) {
            (Some(queue), Ok(())) => self.note(name, kept, queue),
            (_, Err(error)) => {
                if kept.queue.is_none() {
                    queues.remove(name);
                }
                return Err(error);
            }
            (None, Ok(())) => {}
        }
        let stands = |queue: &Option<Queue>| queue.as_ref().map(Queue::position);
        // A waiting member looks by itself and must not wake others.
        let is_news = stands(&kept.queue) != stands(&queue);
        (kept.queue, kept.touched) = (queue, Instant::now());
        if is_news {
            kept.changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    async fn changed(&self, name: &Name, position: u64) -> Result<()> {
        let (mut changes, expiry) = {
            let queues = self.lock();
            let kept = queues.get(name);
            let queue = kept.and_then(|kept| Some((kept, kept.queue.as_ref()?)));
            let Some((kept, queue)) = queue else {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "the lease log of this epoch is missing",
                ));
            };
            if queue.position() != position {
                return Ok(());
            }
            (kept.changes.subscribe(), queue.expiry())
        };
        let limit =
            expiry.map_or(GRACE, |at| Duration::from_millis(at.saturating_sub(now_ms()) + 1));
        // Time itself is a reason to look; and a queue that is forgotten says so when it is asked.
        let _ = tokio::time::timeout(limit, changes.changed()).await;
        Ok(())
    }

    fn believes(&self) -> Option<Duration> {
        None
    }

    fn is_near(&self) -> bool {
        true
    }
}

/// Forgets the oldest queue of a user who has too many, of those in which nobody takes part.
fn make_room(queues: &mut HashMap<Name, Kept>, owner: u64) -> Result<()> {
    let mine = queues.iter().filter(|(name, _)| name.owner == owner);
    if mine.clone().count() < QUEUES_MAX {
        return Ok(());
    }
    let left = mine.filter(|(_, kept)| kept.queue.as_ref().is_none_or(Queue::is_left));
    let oldest = left.min_by_key(|(_, kept)| kept.touched).map(|(name, _)| name.clone());
    let Some(oldest) = oldest else {
        return Err(Error::new(ErrorKind::Full, "this user's jobs run too many epochs at once")
            .at("epochs", QUEUES_MAX));
    };
    queues.remove(&oldest);
    Ok(())
}

fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_old(path: &Path) -> bool {
    let written = path.metadata().and_then(|found| found.modified());
    let age = written.map(|written| SystemTime::now().duration_since(written).unwrap_or_default());
    age.is_ok_and(|age| age > REMEMBERED)
}
