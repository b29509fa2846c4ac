//! Making room: which shard goes when another must come in.
//!
//! Shards that only pass, and stale ones, go first; then what the data sets' policies give up, the
//! data set of the lowest priority first. Under every policy: what somebody holds (a lease), what
//! still arrives, what is pinned, younger than `dont_evict_time` or within its data set's minimum
//! stays. A shard some job still needs in its window (a claim) stays as long as anything else can
//! go, and goes only for a shard that a trainer waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::open::Wanted;
use super::table::Need;
use super::{Medium, Tier, Watermarks};
use crate::budget::Space;
use crate::directory::ShardName;
use crate::fill::PART_BYTES;

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

impl Tier {
    /// Bytes that a shard of `len` takes here.
    pub(crate) fn takes(&self, len: u64) -> u64 {
        match self.0.medium {
            Medium::Disk(_) => len,
            // Whole parts, so that memory has no holes that nothing fits.
            Medium::Memory(_) => len.next_multiple_of(PART_BYTES as u64),
        }
    }

    /// Whether a shard would come in without anybody leaving, and whether it would stay.
    pub(crate) fn welcomes(&self, url: &str, name: &ShardName, len: u64) -> (bool, bool) {
        let bytes = self.takes(len);
        let mut table = self.table();
        let shelf = table.shelf_of(url);
        let has_room = self.0.budget.has(bytes) && table.shelf(shelf).share.budget.has(bytes);
        (has_room, !table.shelf_mut(shelf).passes(name.hash(), bytes, has_room))
    }

    /// Bytes that are to leave: above the low watermark, from when the high one is passed until the low
    /// is reached; above what the disk leaves us, always.
    pub(crate) fn excess(&self) -> u64 {
        let (used, limit) = (self.0.budget.used(), self.0.budget.limit());
        let Some(Watermarks { low, high }) = self.0.watermarks else {
            return used.saturating_sub(limit);
        };
        let above = |mark: f64| used.saturating_sub((limit as f64 * mark) as u64);
        if above(high) > 0 {
            self.0.relieving.store(true, Ordering::Relaxed);
        } else if above(low) == 0 {
            self.0.relieving.store(false, Ordering::Relaxed);
        }
        if self.0.relieving.load(Ordering::Relaxed) { above(low) } else { 0 }
    }

    /// The shard that would go next, if nobody waited for room.
    pub(crate) fn candidate(&self) -> Option<ShardName> {
        let need = Need { shelf: None, urgency: Urgency::Ahead, within: false, passes: false };
        self.table().victim(need).map(|(name, _)| name)
    }

    /// Lets a shard go; it is counted as evicted.
    pub(crate) async fn evict(&self, name: &ShardName) {
        let gone = {
            let mut table = self.table();
            let known = table.is_resting(name);
            known.then(|| self.leave(&mut table, name, true))
        };
        if let Some(gone) = gone {
            tracing::debug!(tier = self.name(), shard = name.as_str(), "evicted a shard");
            self.0.tally.evictions.inc();
            gone.await;
        }
    }

    /// Reserves the bytes of a shard, evicting until they fit. `patient`: waits for room, where
    /// somebody waits for the shard.
    pub(super) async fn make_room(
        &self,
        wanted: &Wanted,
        urgency: Urgency,
        patient: bool,
    ) -> Result<Room> {
        let (url, identity) = (&wanted.origin.url, wanted.name.hash());
        let bytes = self.takes(wanted.stat.len);
        let capacity = self.0.budget.capacity();
        let (shelf, dataset) = {
            let table = self.table();
            let shelf = table.shelf_of(url);
            (shelf, table.shelf(shelf).share.budget.clone())
        };
        if bytes > dataset.capacity() {
            let error =
                Error::new(ErrorKind::Full, "the shard is larger than its data set's quota");
            return Err(error
                .at("url", url)
                .at("bytes", bytes)
                .at("dataset", &self.table().shelf(shelf).rule().name)
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
        if bytes > self.0.budget.limit() {
            let what = "others fill the disk: it has no room for the shard";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .at("url", url)
                .at("bytes", bytes)
                .at("tier", self.name())
                .at("limit", self.0.budget.limit())
                .advise("make room on the disk, or lower keep_free"));
        }
        self.scanned().await?;
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        let mut passes = self.table().shelf_mut(shelf).passes(identity, bytes, true);
        loop {
            let freed = self.0.budget.freed();
            if let Some(space) = Space::reserve(&self.0.budget, &dataset, bytes) {
                return Ok(Room { space: Arc::new(space), shelf, passes });
            }
            // A device that could not remove the last one would give up all others for nothing.
            if !self.is_writable() {
                let what = "the tier takes no shards any more";
                return Err(Error::new(ErrorKind::Unavailable, what).at("tier", self.name()));
            }
            let (leaving, hopeless) = {
                let mut table = self.table();
                passes = table.shelf_mut(shelf).passes(identity, bytes, false);
                let need =
                    Need { shelf: Some(shelf), urgency, within: !dataset.has(bytes), passes };
                let leaving = table.victim(need).map(|(name, named)| {
                    tracing::debug!(shard = name.as_str(), "evicted a shard");
                    self.0.tally.evictions.inc();
                    self.leave(&mut table, &name, named)
                });
                // What came free since the look above is room, too.
                let has_room = self.0.budget.has(bytes) && dataset.has(bytes);
                let hopeless =
                    leaving.is_none() && !has_room && !table.may_come_free(need, &self.0.budget);
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
                    .at("tier", self.name())
                    .at("capacity", self.0.budget.limit())
                    .advise("raise the cache's capacity, lower window and prefetch, or relax pins")
            };
            if urgency == Urgency::Ahead || hopeless || !patient {
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
