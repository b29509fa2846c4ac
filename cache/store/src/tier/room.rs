//! Room for new shards, and the order of evictions.
//!
//! Order of eviction:
//! 1. shards that were not admitted, and stale shards;
//! 2. guests, which other nodes of the cluster keep, the one needed last first;
//! 3. the shards that their data sets' policies choose, lowest priority first. Within a priority,
//!    shards that no job announced go first, then the announced shard whose next use is furthest
//!    away.
//!
//! An announced shard is never evicted for one that is needed later. A guest comes only into free
//! room, and that of guests needed later.
//!
//! Under every policy these stay: shards with an open handle, arriving, pinned, or younger than
//! `dont_evict_time`, and shards within the minimum of their data set or tenant. A shard in the
//! window of a job (a claim) is evicted only as a last resort, for a shard that a trainer waits
//! for. If the limit of a data set or tenant is short, only their own shards make room.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::{Moment, NEVER, NOW};
use futures::future::Shared;
use tokio::time::Instant;

use super::request::{ReservedRoom, RoomRequest, Shortage, Urgency};
use super::table::{Removal, ShardTable};
use super::wanted::Wanted;
use super::{Medium, Mode, Tier, Watermarks};
use crate::budget::Space;
use crate::directory::{ObjectKey, ShardName, object_key};
use crate::shares::{Charge, Provenance, Shares};
use crate::sizes::PART_BYTES;

/// Time that a needed shard waits for handles to close, while nothing arrives. A handle lasts one
/// read, or as long as a trainer reads a batch in place. After a minute without room the device
/// hangs, or the tier is far too small for the open shards.
pub(super) const ROOM_TIMEOUT: Duration = Duration::from_secs(60);

impl Tier {
    /// Bytes that a shard of `len` takes here.
    pub(crate) fn bytes_for(&self, len: u64) -> u64 {
        match self.0.medium {
            Medium::Disk(_) => len,
            // Whole parts, so that memory has no unusable holes.
            Medium::Memory(_) => len.next_multiple_of(PART_BYTES as u64),
        }
    }

    /// Returns true if a shard fits without an eviction, and true if it would be admitted. `name`:
    /// name of the shard, if it may have been seen before.
    pub(crate) fn room_and_admission(
        &self,
        charge: Charge,
        name: Option<&ShardName>,
        len: u64,
    ) -> (bool, bool) {
        let has_room = self.has_room(charge, len);
        let bytes = self.bytes_for(len);
        let unadmitted = name.is_some_and(|name| {
            self.table().partition_mut(charge).denies_admission(name.hash(), bytes, has_room)
        });
        (has_room, !unadmitted)
    }

    /// Returns true if a shard fits without an eviction.
    pub(crate) fn has_room(&self, charge: Charge, len: u64) -> bool {
        let bytes = self.bytes_for(len);
        self.0.budget.has(bytes) && self.0.shared.shares.current().have(charge, bytes)
    }

    /// Returns true if a shard may be evicted for an announced one.
    pub(crate) fn has_later_victim(&self, charge: Charge, object: ObjectKey, len: u64) -> bool {
        let than = Some(self.0.shared.forecast.next_use(object).unwrap_or(NOW));
        let short = Shortage::of(&self.0.shared.shares.current(), charge, self.bytes_for(len));
        self.table()
            .victim(RoomRequest { short, than, ..RoomRequest::ahead(Some(charge)) })
            .is_some()
    }

    /// Returns true if a guest may be evicted for a shard that this node keeps.
    pub(crate) fn has_guest_to_go(&self, charge: Charge, len: u64) -> bool {
        let short = Shortage::of(&self.0.shared.shares.current(), charge, self.bytes_for(len));
        let need = RoomRequest { short, guest: Some(NOW), ..RoomRequest::ahead(Some(charge)) };
        self.table().victim(need).is_some()
    }

    /// Bytes to evict. With watermarks: those above the low one, from the time the high one is
    /// passed until the low one is reached. Without: those above the usable bytes of the disk.
    pub(crate) fn excess(&self) -> u64 {
        let (used, limit) = (self.0.budget.used(), self.0.budget.limit());
        let Some(Watermarks { low, high }) = self.size().watermarks else {
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

    /// The shard that would be evicted for a newcomer of `len` nobody waits for.
    pub(crate) fn victim_for_newcomer(&self, charge: Charge, len: u64) -> Option<ShardName> {
        let short = Shortage::of(&self.0.shared.shares.current(), charge, self.bytes_for(len));
        let need = RoomRequest { short, ..RoomRequest::ahead(Some(charge)) };
        self.table().victim(need).map(|(name, _)| name)
    }

    /// The shard that would be evicted next, ahead of need.
    pub(crate) fn next_victim(&self) -> Option<ShardName> {
        self.table().victim(RoomRequest::ahead(None)).map(|(name, _)| name)
    }

    /// Evicts a shard, and counts the eviction.
    pub(crate) async fn evict(&self, name: &ShardName) {
        let gone = {
            let mut table = self.table();
            let known = table.is_idle(name);
            known.then(|| self.remove(&mut table, name, true))
        };
        if let Some(gone) = gone {
            tracing::debug!(tier = self.name(), shard = name.as_str(), "evicted a shard");
            self.0.tally.evictions.inc();
            gone.await;
        }
    }

    /// Reserves the bytes of a shard, and evicts others until they fit. `patient`: waits for room
    /// if somebody waits for the shard.
    pub(super) async fn make_room(
        &self,
        wanted: &Wanted,
        urgency: Urgency,
        patient: bool,
    ) -> Result<ReservedRoom> {
        let (url, identity, of) = (&wanted.origin.url, wanted.name.hash(), wanted.provenance());
        let bytes = self.bytes_for(wanted.len);
        let shares = self.0.shared.shares.current();
        let check_size = |shares: &Shares, charge| {
            self.check_size(shares, charge, bytes).map_err(|error| error.at("url", url))
        };
        check_size(&shares, shares.charge_of(&of))?;
        self.check_disk(bytes).map_err(|error| error.at("url", url))?;
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        let object = object_key(&wanted.origin);
        let mut has_room = true;
        loop {
            self.scanned().await?;
            let freed = self.0.budget.freed();
            let (short, leaving, may_come_free) = {
                // Under the lock, bytes only come free.
                let mut table = self.table();
                // Disabled or enabled anew during a wait: what is on the disk does not count now.
                self.check_enabled()?;
                if !self.is_listed() {
                    continue;
                }
                // The rules may have changed during a wait.
                let shares = self.0.shared.shares.current();
                let charge = shares.charge_of(&of);
                check_size(&shares, charge)?;
                let unadmitted = table.denies_admission(charge, object, identity, bytes, has_room);
                let short = Shortage::of(&shares, charge, bytes);
                if let Some(space) = Space::reserve(&self.0.budget, shares.budgets(charge), bytes) {
                    return Ok(ReservedRoom { space: Arc::new(space), of, unadmitted });
                }
                // The limit may have fallen during a wait: then the disk is short, not the cache.
                self.check_disk(bytes).map_err(|error| error.at("url", url))?;
                // A device that cannot remove shards would evict all others for nothing.
                if !self.is_writable() {
                    return Err(self.closed());
                }
                has_room = false;
                let unadmitted = table.denies_admission(charge, object, identity, bytes, has_room);
                let than = Some(self.needed(wanted, object, urgency));
                let need = RoomRequest {
                    urgency,
                    short,
                    unadmitted,
                    guest: wanted.guest,
                    than,
                    ..RoomRequest::ahead(Some(charge))
                };
                // Asked before the checks below, which find bytes that come free later. The table
                // does not hear of closed handles.
                let may_come_free = table.may_come_free(need, &self.0.budget);
                // No eviction is needed, or another limit is short.
                let is_free = self.0.budget.has(bytes) && shares.have(charge, bytes);
                if is_free || Shortage::of(&shares, charge, bytes) != short {
                    continue;
                }
                (short, self.evict_for(&mut table, need, Some(object)), may_come_free)
            };
            if let Some(gone) = leaving {
                gone.await;
                continue;
            }
            let full = || self.full(&of, short, bytes).at("url", url);
            if urgency == Urgency::Ahead || !may_come_free || !patient {
                return Err(full());
            }
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                // A running fill ends, well or badly, and its shard may then be evicted.
                if !self.table().is_arriving() {
                    return Err(full());
                }
                deadline = Instant::now() + ROOM_TIMEOUT;
            }
        }
    }

    /// Next use of a new shard. A shard that no job announced is needed now, or it would not be
    /// fetched; except a prefetch, which no job needs yet.
    fn needed(&self, wanted: &Wanted, object: ObjectKey, urgency: Urgency) -> Moment {
        if let Some(due) = wanted.guest {
            return due;
        }
        match (urgency, self.0.shared.forecast.next_use(object)) {
            (Urgency::Ahead, Some(needed)) => needed,
            (Urgency::Ahead, None) if wanted.rank.is_behind() => NEVER,
            _ => NOW,
        }
    }

    /// Rejects a shard that never fits.
    pub(super) fn check_size(&self, shares: &Shares, charge: Charge, bytes: u64) -> Result<()> {
        for share in shares.of(charge) {
            share.check(bytes).map_err(|error| error.at("bytes", bytes))?;
        }
        let capacity = self.0.budget.capacity();
        if bytes <= capacity {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Full, "the shard is larger than the whole cache")
            .at("bytes", bytes)
            .at("capacity", capacity)
            .advise("raise the cache's capacity, or make smaller shards"))
    }

    /// Rejects a shard for a disabled tier, whose free bytes say nothing about its disk.
    pub(super) fn check_enabled(&self) -> Result<()> {
        if self.mode() == Mode::Disabled { Err(self.closed()) } else { Ok(()) }
    }

    pub(super) fn closed(&self) -> Error {
        let what = "the tier accepts no more shards";
        Error::new(ErrorKind::Unavailable, what).at("tier", self.name())
    }

    /// Rejects a shard that does not fit the usable part of the disk.
    fn check_disk(&self, bytes: u64) -> Result<()> {
        let limit = self.0.budget.limit();
        if bytes <= limit {
            return Ok(());
        }
        let what = "other files fill the disk: it has no room for the shard";
        Err(Error::new(ErrorKind::Unavailable, what)
            .at("bytes", bytes)
            .at("tier", self.name())
            .at("limit", limit)
            .advise("free space on the disk, or lower keep_free"))
    }

    /// Error if there is no room for `bytes` and none can be made.
    pub(super) fn full(&self, of: &Provenance, short: Shortage, bytes: u64) -> Error {
        let shares = self.0.shared.shares.current();
        let [dataset, tenant] = shares.of(shares.charge_of(of));
        let error = match short {
            Shortage::Tier => {
                let what =
                    "the cache is full: every shard in it is in use or protected by its rules";
                let advice = "raise the cache's capacity, lower window and prefetch, or relax pins";
                let error = Error::new(ErrorKind::Full, what);
                error.at("capacity", self.0.budget.limit()).advise(advice)
            }
            Shortage::Dataset => dataset.full(),
            Shortage::Tenant | Shortage::Both => tenant.full(),
        };
        error.at("bytes", bytes).at("tier", self.name())
    }

    /// Evicts the first shard in order for a request, which is that of `newcomer`; `None` if none
    /// may be evicted.
    pub(super) fn evict_for(
        &self,
        table: &mut ShardTable,
        need: RoomRequest,
        newcomer: Option<ObjectKey>,
    ) -> Option<Shared<Removal>> {
        let (name, named) = table.victim(need)?;
        if let (Some(newcomer), Some(entry)) = (newcomer, table.get(&name)) {
            self.0.shared.forecast.note_eviction(newcomer, entry.object());
        }
        tracing::debug!(tier = self.name(), shard = name.as_str(), "evicted a shard");
        self.0.tally.evictions.inc();
        Some(self.remove(table, &name, named))
    }

    /// Evicts shards until data set and tenant have room for `bytes` more, on any tier. Returns
    /// true if any was evicted.
    pub(crate) async fn evict_for_share(&self, wanted: &Wanted, bytes: u64) -> bool {
        let mut any = false;
        loop {
            let leaving = {
                let mut table = self.table();
                let shares = self.0.shared.shares.current();
                let charge = wanted.charge(&shares);
                let short = Shortage::of(&shares, charge, bytes);
                if short == Shortage::Tier || !self.is_normal() {
                    return any;
                }
                let need = RoomRequest {
                    urgency: Urgency::Needed,
                    short,
                    ..RoomRequest::ahead(Some(charge))
                };
                self.evict_for(&mut table, need, None)
            };
            let Some(gone) = leaving else { return any };
            gone.await;
            any = true;
        }
    }
}

#[cfg(test)]
mod tests;
