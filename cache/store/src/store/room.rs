//! Making room: which shard goes when another must come in.
//!
//! Shards that only pass, and stale ones, go first; then what the data sets' policies give up, the
//! data set of the lowest priority first. Under every policy: what somebody holds (a lease), what
//! still arrives, what is pinned, younger than `dont_evict_time` or within its data set's minimum
//! stays. A shard some job still needs in its window (a claim) stays as long as anything else can
//! go, and goes only for a shard that a trainer waits for.

use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::Store;
use super::table::Need;
use crate::budget::Space;
use crate::directory::ShardName;

/// How long a needed shard waits for leases to end, while nothing arrives. A lease lasts one read;
/// a minute without room means that the device hangs or that the tier is far too small for what is
/// open.
const ROOM_TIMEOUT: Duration = Duration::from_secs(60);

/// Who wants a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A trainer waits for it: it may push out what others claimed, and wait for room.
    Needed,
    /// It will be wanted: it comes in only if there is room or something unclaimed to evict.
    Ahead,
}

/// Bytes for a shard, and how it comes in.
pub(super) struct Room {
    pub(super) space: Arc<Space>,
    pub(super) shelf: usize,
    pub(super) passes: bool,
}

/// A wish that a shard stay, until dropped.
pub struct Claim {
    store: Store,
    name: ShardName,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.store.table().unclaim(&self.name);
        self.store.0.budget.wake();
    }
}

impl Store {
    /// Asks that a shard stay while the claim is held.
    #[must_use]
    pub fn claim(&self, name: &ShardName) -> Claim {
        self.table().claim(name);
        Claim { store: self.clone(), name: name.clone() }
    }

    /// Tells the policies that a job begins to use a shard.
    pub fn used(&self, name: &ShardName) {
        self.table().used(name);
    }

    /// Reserves `bytes`, evicting until they fit.
    pub(super) async fn make_room(&self, url: &str, bytes: u64, urgency: Urgency) -> Result<Room> {
        let capacity = self.0.budget.capacity();
        let (shelf, dataset) = {
            let table = self.table();
            let shelf = table.shelf_of(url);
            (shelf, table.shelf(shelf).budget.clone())
        };
        if bytes > dataset.capacity() {
            let error =
                Error::new(ErrorKind::Full, "the shard is larger than its data set's quota");
            return Err(error
                .at("url", url)
                .at("bytes", bytes)
                .at("dataset", &self.table().shelf(shelf).rule.name)
                .at("quota", dataset.capacity())
                .advise("raise the data set's quota.max, or make smaller shards"));
        }
        if bytes > capacity {
            return Err(Error::new(ErrorKind::Full, "the shard is larger than the whole cache")
                .at("url", url)
                .at("bytes", bytes)
                .at("capacity", capacity)
                .advise("raise the cache's capacity, or make smaller shards"));
        }
        self.scanned().await?;
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        let mut passes = self.table().shelf(shelf).passes(bytes, true);
        loop {
            let freed = self.0.budget.freed();
            if let Some(space) = Space::reserve(&self.0.budget, &dataset, bytes) {
                return Ok(Room { space: Arc::new(space), shelf, passes });
            }
            let (leaving, hopeless) = {
                let mut table = self.table();
                passes = table.shelf(shelf).passes(bytes, false);
                let need = Need { shelf, urgency, within: !dataset.has(bytes), passes };
                let leaving = table.victim(need).map(|(name, named)| {
                    tracing::debug!(shard = name.as_str(), "evicted a shard");
                    self.0.tally.evictions.inc();
                    self.leave(&mut table, &name, named)
                });
                let hopeless = leaving.is_none() && !table.may_come_free(need, &self.0.budget);
                (leaving, hopeless)
            };
            if let Some(gone) = leaving {
                gone.await;
                continue;
            }
            let full = || {
                let what =
                    "the cache has no room: every shard in it is in use, or kept by its rules";
                Error::new(ErrorKind::Full, what)
                    .at("url", url)
                    .at("bytes", bytes)
                    .at("capacity", capacity)
                    .advise("raise the cache's capacity, lower window and prefetch, or relax pins")
            };
            if urgency == Urgency::Ahead || hopeless {
                return Err(full());
            }
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                // A fill under way ends, well or badly, and what it brought may then be evicted.
                if !self.table().is_arriving() {
                    return Err(full());
                }
                deadline = Instant::now() + ROOM_TIMEOUT;
            }
        }
    }
}
