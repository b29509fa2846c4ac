//! Turns to commit the shards whose bytes are on their tier.
//!
//! A commit takes three syncs, and as much of a core as the fetch of a small shard. So while
//! samples on their way are awaited, commits come one after another, each [`YIELD`] late at most.
//! Once half of the places for uncommitted shards are taken, of their memory, or their share of a
//! tier, further ones do not wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_error::{Error, Result};
use forebay_uring::GRANULE;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Commits at once. A journalling file system syncs many small files in
/// the time of one; each takes one of tokio's blocking threads.
pub(super) const COMMITS: usize = 32;

/// Shards that wait for their commit, at most: as many as small shards bring in two seconds.
const UNCOMMITTED: usize = 4096;

/// Those of them that hold a file open, at most,
const WITH_FILES: usize = 1024;

/// and the part of the process's files that these may be.
const OF_OPEN_FILES: u64 = 4;

/// Time for which a commit lets fetches go first. A crash meanwhile costs the shard's fetch.
pub(super) const YIELD: Duration = Duration::from_secs(2);

/// The part of all frames that they may hold: the rest is as much as all fills of large shards need
/// beside a hanging disk.
const OF_FRAMES: usize = 4;

/// Places that are taken until a commit.
struct Places {
    free: Semaphore,
    all: usize,
}

impl Places {
    fn new(all: usize) -> Self {
        Self { free: Semaphore::new(all), all }
    }

    /// Returns true if less than half of them are taken.
    fn is_roomy(&self) -> bool {
        self.free.available_permits() >= self.all / 2
    }

    async fn take(&self, places: usize) -> Result<SemaphorePermit<'_>> {
        let places = u32::try_from(places.min(self.all)).unwrap_or(u32::MAX);
        self.free.acquire_many(places).await.map_err(|_| Error::shutting_down())
    }
}

/// A shard that is to be committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToCommit {
    /// Bytes of its tier that it takes, and that nobody can evict before.
    pub(super) bytes: u64,
    /// Bytes of the tier that uncommitted shards may take while they wait.
    pub(super) room: u64,
    /// Bytes of frames that it holds.
    pub(super) memory: usize,
    /// True if it holds its file open.
    pub(super) has_file: bool,
}

/// Turns to commit.
pub(super) struct Commits {
    uncommitted: Places,
    with_files: Places,
    /// Granules of frames.
    memory: Places,
    /// Bytes of all uncommitted shards.
    bytes: AtomicU64,
    turns: Semaphore,
    /// The turn of commits that let fetches go first.
    behind: Semaphore,
}

/// Place of a shard among those that are not committed.
pub(super) struct Uncommitted<'a> {
    commits: &'a Commits,
    shard: ToCommit,
    _place: SemaphorePermit<'a>,
    _file: SemaphorePermit<'a>,
    _memory: SemaphorePermit<'a>,
}

/// Turn to commit a shard, until dropped.
pub(crate) struct Committing<'a> {
    _uncommitted: Uncommitted<'a>,
    _turn: SemaphorePermit<'a>,
    _behind: Option<SemaphorePermit<'a>>,
}

impl Commits {
    /// As many uncommitted shards as the process's open files and `frames` bytes of memory allow.
    pub(super) fn new(frames: usize) -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = (files / OF_OPEN_FILES).clamp(COMMITS as u64, WITH_FILES as u64);
        Self::of(UNCOMMITTED, usize::try_from(most).unwrap_or(WITH_FILES), frames / OF_FRAMES)
    }

    pub(super) fn of(uncommitted: usize, with_files: usize, memory: usize) -> Self {
        let [uncommitted, with_files, memory] =
            [uncommitted, with_files, memory / GRANULE].map(Places::new);
        let [turns, behind] = [COMMITS, 1].map(Semaphore::new);
        Self { uncommitted, with_files, memory, bytes: AtomicU64::new(0), turns, behind }
    }

    /// Waits for a place among the uncommitted shards.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn enter(&self, shard: ToCommit) -> Result<Uncommitted<'_>> {
        let place = self.uncommitted.take(1).await?;
        let file = self.with_files.take(usize::from(shard.has_file)).await?;
        let memory = self.memory.take(shard.memory.div_ceil(GRANULE)).await?;
        self.bytes.fetch_add(shard.bytes, Ordering::Relaxed);
        Ok(Uncommitted { commits: self, shard, _place: place, _file: file, _memory: memory })
    }
}

impl Drop for Uncommitted<'_> {
    fn drop(&mut self) {
        self.commits.bytes.fetch_sub(self.shard.bytes, Ordering::Relaxed);
    }
}

impl<'a> Uncommitted<'a> {
    /// Waits for a turn. `are_awaited`: somebody waits for other fetches.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn turn(self, are_awaited: bool) -> Result<Committing<'a>> {
        let commits = self.commits;
        let is_early = commits.uncommitted.is_roomy()
            && commits.with_files.is_roomy()
            && commits.memory.is_roomy()
            && commits.bytes.load(Ordering::Relaxed) <= self.shard.room;
        let behind = match are_awaited && is_early {
            // Too late, or the store has ended: the next line tells.
            true => tokio::time::timeout(YIELD, commits.behind.acquire()).await.ok(),
            false => None,
        };
        let turn = commits.turns.acquire().await.map_err(|_| Error::shutting_down())?;
        let behind = behind.and_then(Result::ok);
        Ok(Committing { _uncommitted: self, _turn: turn, _behind: behind })
    }
}
