//! Making room: which shard goes when another must come in.
//!
//! Shards that only pass, and stale ones, go first; then what the data sets' policies give up, the
//! data set of the lowest priority first, and of those that are alike what no job told to need before what is needed last. What jobs
//! told to need goes for nothing that is needed later still. Under every policy: what somebody holds (a lease), what
//! still arrives, what is pinned, younger than `dont_evict_time` or within the minimum of its data
//! set or its tenant stays. A shard some job still needs in its window (a claim) stays as long as
//! anything else can go, and goes only for a shard that a trainer waits for. Where a limit of data set
//! or tenant is what is short, only their own shards make room.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::{Moment, NEVER, NOW};
use futures::future::Shared;
use tokio::time::Instant;

use super::open::Wanted;
use super::table::{Gone, Need, Short, Table};
use super::{Medium, Tier, Watermarks};
use crate::budget::Space;
use crate::directory::{ObjectKey, ShardName};
use crate::fill::PART_BYTES;
use crate::shares::{Charge, Provenance, Shares};

/// How long a needed shard waits for leases to end, while nothing arrives. A lease lasts one read;
/// a minute without room means that the device hangs or that the tier is far too small for what is
/// open.
pub(super) const ROOM_TIMEOUT: Duration = Duration::from_secs(60);

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
    pub(super) of: Provenance,
    pub(super) passes: bool,
}

impl Shares {
    /// What is short for `bytes` more of a data set and a tenant.
    pub(super) fn short(&self, charge: Charge, bytes: u64) -> Short {
        match self.of(charge).map(|share| share.budget.has(bytes)) {
            [true, true] => Short::Tier,
            [false, true] => Short::Dataset,
            [true, false] => Short::Tenant,
            [false, false] => Short::Both,
        }
    }
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
    /// `name`: by which it was perhaps seen before.
    pub(crate) fn welcomes(
        &self,
        charge: Charge,
        name: Option<&ShardName>,
        len: u64,
    ) -> (bool, bool) {
        let has_room = self.has_room(charge, len);
        let bytes = self.takes(len);
        let passes = name.is_some_and(|name| {
            self.table().shelf_mut(charge).passes(name.hash(), bytes, has_room)
        });
        (has_room, !passes)
    }

    /// Whether a shard would come in without anybody leaving.
    pub(crate) fn has_room(&self, charge: Charge, len: u64) -> bool {
        let bytes = self.takes(len);
        self.0.budget.has(bytes) && self.0.commons.shares.now().have(charge, bytes)
    }

    /// Whether something may go for a shard that jobs told to need.
    pub(crate) fn has_later(&self, charge: Charge, object: ObjectKey, len: u64) -> bool {
        let than = Some(self.0.commons.forecast.needed(object).unwrap_or(NOW));
        let short = self.0.commons.shares.now().short(charge, self.takes(len));
        self.table().victim(Need { short, than, ..Need::ahead(Some(charge)) }).is_some()
    }

    /// Bytes that are to leave: above the low watermark, from when the high one is passed until the low
    /// is reached; above what the disk leaves us, always.
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

    /// The shard that would go for a newcomer of `len` that nobody waits for.
    pub(crate) fn candidate_for(&self, charge: Charge, len: u64) -> Option<ShardName> {
        let short = self.0.commons.shares.now().short(charge, self.takes(len));
        let need = Need { short, ..Need::ahead(Some(charge)) };
        self.table().victim(need).map(|(name, _)| name)
    }

    /// The shard that would go next, if nobody waited for room.
    pub(crate) fn candidate(&self) -> Option<ShardName> {
        self.table().victim(Need::ahead(None)).map(|(name, _)| name)
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
        let (url, identity, of) = (&wanted.origin.url, wanted.name.hash(), wanted.provenance());
        let bytes = self.takes(wanted.len);
        let shares = self.0.commons.shares.now();
        let check_size = |shares: &Shares, charge| {
            self.check_size(shares, charge, bytes).map_err(|error| error.at("url", url))
        };
        check_size(&shares, shares.charge_of(&of))?;
        self.check_disk(bytes).map_err(|error| error.at("url", url))?;
        self.scanned().await?;
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        let object = ObjectKey::of(&wanted.origin);
        let mut has_room = true;
        loop {
            let freed = self.0.budget.freed();
            let (short, leaving, may_come_free) = {
                // Taken under the lock, so that while this one looks bytes only come free.
                let mut table = self.table();
                // While this one waited, others may have come to count.
                let shares = self.0.commons.shares.now();
                let charge = shares.charge_of(&of);
                check_size(&shares, charge)?;
                let passes = table.passes_by(charge, object, identity, bytes, has_room);
                let short = shares.short(charge, bytes);
                if let Some(space) = Space::reserve(&self.0.budget, shares.budgets(charge), bytes) {
                    return Ok(Room { space: Arc::new(space), of, passes });
                }
                // It may have got less while this one waited: no cache that is too small.
                self.check_disk(bytes).map_err(|error| error.at("url", url))?;
                // A device that could not remove the last one would give up all others for nothing.
                if !self.is_writable() {
                    let what = "the tier takes no shards any more";
                    return Err(Error::new(ErrorKind::Unavailable, what).at("tier", self.name()));
                }
                has_room = false;
                let passes = table.passes_by(charge, object, identity, bytes, has_room);
                let than = Some(self.needed(wanted, object, urgency));
                let need = Need { urgency, short, passes, than, ..Need::ahead(Some(charge)) };
                // Asked before the looks below: what comes free after it, they find. A lease ends
                // without a word to the table.
                let may_come_free = table.may_come_free(need, &self.0.budget);
                // Nobody has to go then, or somebody else.
                let is_free = self.0.budget.has(bytes) && shares.have(charge, bytes);
                if is_free || shares.short(charge, bytes) != short {
                    continue;
                }
                (short, self.push_out(&mut table, need, Some(object)), may_come_free)
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
                // A fill under way ends, well or badly, and what it brought may then be evicted.
                if !self.table().is_arriving() {
                    return Err(full());
                }
                deadline = Instant::now() + ROOM_TIMEOUT;
            }
        }
    }

    /// When a shard that comes in is needed. What nobody told to need is needed now, or nobody would look ahead for it; but for
    /// what no job wants yet.
    fn needed(&self, wanted: &Wanted, object: ObjectKey, urgency: Urgency) -> Moment {
        match (urgency, self.0.commons.forecast.needed(object)) {
            (Urgency::Ahead, Some(needed)) => needed,
            (Urgency::Ahead, None) if wanted.rank.is_behind() => NEVER,
            _ => NOW,
        }
    }

    /// Refuses what never fits, whatever leaves.
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

    /// Refuses what does not fit into what others leave of the disk, whatever leaves.
    fn check_disk(&self, bytes: u64) -> Result<()> {
        let limit = self.0.budget.limit();
        if bytes <= limit {
            return Ok(());
        }
        let what = "others fill the disk: it has no room for the shard";
        Err(Error::new(ErrorKind::Unavailable, what)
            .at("bytes", bytes)
            .at("tier", self.name())
            .at("limit", limit)
            .advise("make room on the disk, or lower keep_free"))
    }

    /// There is no room for `bytes`, and none can be made.
    pub(super) fn full(&self, of: &Provenance, short: Short, bytes: u64) -> Error {
        let shares = self.0.commons.shares.now();
        let [dataset, tenant] = shares.of(shares.charge_of(of));
        let error = match short {
            Short::Tier => {
                let what =
                    "the cache has no room: every shard in it is in use, or kept by its rules";
                let advice = "raise the cache's capacity, lower window and prefetch, or relax pins";
                let error = Error::new(ErrorKind::Full, what);
                error.at("capacity", self.0.budget.limit()).advise(advice)
            }
            Short::Dataset => dataset.full(),
            Short::Tenant | Short::Both => tenant.full(),
        };
        error.at("bytes", bytes).at("tier", self.name())
    }

    /// Lets the shard go that goes first for a need, which is that of `newcomer`; `None` if none may.
    pub(super) fn push_out(
        &self,
        table: &mut Table,
        need: Need,
        newcomer: Option<ObjectKey>,
    ) -> Option<Shared<Gone>> {
        let (name, named) = table.victim(need)?;
        if let (Some(newcomer), Some(entry)) = (newcomer, table.get(&name)) {
            self.0.commons.forecast.note_eviction(newcomer, entry.object());
        }
        tracing::debug!(tier = self.name(), shard = name.as_str(), "evicted a shard");
        self.0.tally.evictions.inc();
        Some(self.leave(table, &name, named))
    }

    /// Lets shards go until data set and tenant have room for `bytes` more, on whatever tier; whether
    /// any went.
    pub(crate) async fn give_up(&self, wanted: &Wanted, bytes: u64) -> bool {
        let mut any = false;
        loop {
            let leaving = {
                let mut table = self.table();
                let shares = self.0.commons.shares.now();
                let charge = wanted.charge(&shares);
                let short = shares.short(charge, bytes);
                if short == Short::Tier || !self.is_normal() {
                    return any;
                }
                let need = Need { urgency: Urgency::Needed, short, ..Need::ahead(Some(charge)) };
                self.push_out(&mut table, need, None)
            };
            let Some(gone) = leaving else { return any };
            gone.await;
            any = true;
        }
    }
}
