//! Sessions of trainers, and everybody who needs the daemon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_api::costs::Whose;
use forebay_api::status::{self, Awaited, Job, Told};
use forebay_engine::session::Session;
use tokio::sync::{MutexGuard as AsyncMutexGuard, watch};

use crate::costs::Waited;
use crate::pace::Pace;

/// Sessions of a node, and the numbers they get.
#[derive(Default)]
pub struct Sessions {
    list: tokio::sync::Mutex<Vec<RegisteredSession>>,
    sessions_made: AtomicU64,
    clients_made: AtomicU64,
    /// Trainers and tools connected now, and warm-ups that go on without theirs.
    users: watch::Sender<usize>,
}

impl Sessions {
    /// Locks the list of sessions.
    pub async fn lock(&self) -> AsyncMutexGuard<'_, Vec<RegisteredSession>> {
        self.list.lock().await
    }

    /// Returns a number that no session had.
    pub fn next_session(&self) -> u64 {
        self.sessions_made.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a number that no client had.
    pub fn next_client(&self) -> u64 {
        self.clients_made.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts one more user of the daemon, until the guard is dropped.
    #[must_use]
    pub fn enter(&self) -> Present {
        self.users.send_modify(|users| *users += 1);
        Present(self.users.clone())
    }

    /// Watches the number of users.
    #[must_use]
    pub fn watch_users(&self) -> watch::Receiver<usize> {
        self.users.subscribe()
    }
}

/// A user of the daemon: an embedded one does not end while there is any.
#[derive(Debug)]
pub struct Present(watch::Sender<usize>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.send_modify(|users| *users -= 1);
    }
}

/// A session in the node's list.
#[derive(Clone)]
pub struct RegisteredSession {
    pub(crate) number: u64,
    pub(crate) tenant: Option<String>,
    /// Process id of its trainer.
    pub(crate) pid: Option<u32>,
    /// The data sets that it reads of, for the log.
    pub(crate) datasets: String,
    pub(crate) session: Arc<Mutex<Session>>,
    pub(crate) told: Arc<Mutex<Told>>,
    /// Progress, as its trainer reports it.
    pub(crate) pace: Arc<Mutex<Pace>>,
}

impl RegisteredSession {
    /// Returns the session's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ends the session: its trainer gets an error and no more batches.
    pub fn stop(&self) {
        self.lock().stop();
    }

    /// Returns the session's user and its trainer's waits.
    pub fn waited(&self) -> (Whose, Waited) {
        let job = status::cut(self.lock().name());
        let waited = Waited { process: self.pid, ns: self.pace().waited() };
        ((job, self.tenant.clone()), waited)
    }

    /// The job as the status reports it.
    #[must_use]
    pub fn describe(&self) -> Job {
        let session = self.lock();
        let memory = session.memory();
        let progress = self.pace().report(Instant::now());
        let waits = progress.as_ref().is_some_and(|progress| progress.waiting_seconds > 0.0);
        let awaited = waits.then(|| session.awaited()).flatten();
        Job {
            session: self.number,
            name: session.name().to_owned(),
            tenant: self.tenant.clone(),
            pid: self.pid,
            slab_bytes: memory.slab_bytes,
            slab_batches: memory.batches,
            leased_bytes: memory.leased_bytes,
            lent_slots: memory.lent_slots,
            wrong_shards: session.wrong_shards(),
            reading: session.reading(),
            progress,
            awaited: awaited.as_ref().map(Awaited::of),
            told: self.told().clone(),
        }
    }

    /// Returns sentences about the job's use of a shard: the way in which it reads it, and the
    /// cache that its open shards take, as far as they are known.
    #[must_use]
    pub fn uses_of(&self, url: &str) -> Vec<String> {
        let session = self.lock();
        let job = status::cut(session.name());
        let reading = session.reading_of(url).map(|reading| format!("job {job} reads {reading}"));
        let holding = session.holding_of(url).map(|holding| format!("job {job} {holding}"));
        reading.into_iter().chain(holding).collect()
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
