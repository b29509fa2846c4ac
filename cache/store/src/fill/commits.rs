//! Turns to commit the shards whose bytes are on their tier.
//!
//! A commit takes three syncs, and as much of a core as the fetch of a small shard. So while
//! samples on their way are awaited, commits come one after another, each [`YIELD`] late at most.
//! Once half of the places for uncommitted shards are taken, further ones do not wait.

use std::time::Duration;

use forebay_error::Result;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::shutdown::shutting_down;

/// Commits at once. They hold no frames, and a journalling file system syncs many small files in
/// the time of one; each takes one of tokio's blocking threads.
pub(super) const COMMITS: usize = 32;

/// Shards that wait for their commit, at most: as many as a second of small shards brings.
const UNCOMMITTED: usize = 1024;

/// The part of the process's files that they may hold open, one each.
const OF_OPEN_FILES: u64 = 4;

/// Time for which a commit lets fetches go first. A crash meanwhile costs the shard's fetch.
pub(super) const YIELD: Duration = Duration::from_secs(2);

/// Turns to commit.
pub(super) struct Commits {
    uncommitted: Semaphore,
    places: usize,
    turns: Semaphore,
    /// The turn of commits that let fetches go first.
    behind: Semaphore,
}

/// Place of a shard among those that are not committed.
pub(super) struct Uncommitted<'a> {
    commits: &'a Commits,
    _place: SemaphorePermit<'a>,
}

/// Turn to commit a shard, until dropped.
pub(crate) struct Committing<'a> {
    _uncommitted: Uncommitted<'a>,
    _turn: SemaphorePermit<'a>,
    _behind: Option<SemaphorePermit<'a>>,
}

impl Commits {
    /// As many uncommitted shards as the process's open files allow.
    pub(super) fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let least = COMMITS as u64;
        let most = (files / OF_OPEN_FILES).clamp(least, UNCOMMITTED as u64);
        Self::of(usize::try_from(most).unwrap_or(UNCOMMITTED))
    }

    pub(super) fn of(uncommitted: usize) -> Self {
        let places = uncommitted;
        let [uncommitted, turns, behind] = [places, COMMITS, 1].map(Semaphore::new);
        Self { uncommitted, places, turns, behind }
    }

    /// Waits for a place among the uncommitted shards.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn enter(&self) -> Result<Uncommitted<'_>> {
        let place = self.uncommitted.acquire().await.map_err(|_| shutting_down())?;
        Ok(Uncommitted { commits: self, _place: place })
    }
}

impl<'a> Uncommitted<'a> {
    /// Waits for a turn. `yields`: lets fetches go first.
    ///
    /// # Errors
    /// `Closed` if the store has ended.
    pub(super) async fn turn(self, yields: bool) -> Result<Committing<'a>> {
        let commits = self.commits;
        let is_early = commits.uncommitted.available_permits() >= commits.places / 2;
        let behind = match yields && is_early {
            // Too late, or the store has ended: the next line tells.
            true => tokio::time::timeout(YIELD, commits.behind.acquire()).await.ok(),
            false => None,
        };
        let turn = commits.turns.acquire().await.map_err(|_| shutting_down())?;
        let behind = behind.and_then(Result::ok);
        Ok(Committing { _uncommitted: self, _turn: turn, _behind: behind })
    }
}
