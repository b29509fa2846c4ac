//! Making room: which shard goes when another must come in.
//!
//! Least recently used goes first, with two exceptions. A shard somebody holds (a lease) or that
//! is still arriving stays. A shard some job still needs in its window (a claim) stays as long as
//! anything else can go, and goes only for a shard that a trainer waits for.

use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::Store;
use crate::budget::Reservation;
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

/// A wish that a shard stay, until dropped.
pub struct Claim {
    store: Store,
    name: ShardName,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.store.table();
        if let Some(claims) = table.claims.get_mut(&self.name) {
            *claims -= 1;
            if *claims == 0 {
                table.claims.remove(&self.name);
            }
        }
        drop(table);
        self.store.0.budget.wake();
    }
}

impl Store {
    /// Asks that a shard stay while the claim is held.
    #[must_use]
    pub fn claim(&self, name: &ShardName) -> Claim {
        *self.table().claims.entry(name.clone()).or_default() += 1;
        Claim { store: self.clone(), name: name.clone() }
    }

    /// Reserves `bytes`, evicting until they fit.
    pub(super) async fn make_room(
        &self,
        url: &str,
        bytes: u64,
        urgency: Urgency,
    ) -> Result<Arc<Reservation>> {
        let capacity = self.0.budget.capacity();
        if bytes > capacity {
            return Err(Error::new(ErrorKind::Full, "the shard is larger than the whole cache")
                .at("url", url)
                .at("bytes", bytes)
                .at("capacity", capacity)
                .advise("raise the cache's capacity, or make smaller shards"));
        }
        self.scanned().await?;
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        loop {
            let freed = self.0.budget.freed();
            if let Some(reservation) = self.0.budget.reserve(bytes) {
                return Ok(Arc::new(reservation));
            }
            let leaving = {
                let mut table = self.table();
                table.victim(urgency).map(|name| {
                    tracing::debug!(shard = name.as_str(), "evicted a shard");
                    self.0.tally.evictions.inc();
                    self.leave(&mut table, &name)
                })
            };
            if let Some(gone) = leaving {
                gone.await;
                continue;
            }
            let full = || {
                Error::new(ErrorKind::Full, "the cache has no room: every shard in it is in use")
                    .at("url", url)
                    .at("bytes", bytes)
                    .at("capacity", capacity)
                    .advise("raise the cache's capacity, or lower window and prefetch")
            };
            if urgency == Urgency::Ahead {
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
