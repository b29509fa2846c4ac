//! Bytes of a tier for a shard that turns out larger than expected: one that is unpacked on its way
//! in, whose length is known only at its end.
//!
//! Bytes are reserved before they are written. A growing shard may evict whatever a newcomer may
//! evict. A fill that needs more room waits only for room that comes free by itself. It never waits
//! for another fill that waits as well, nor for one whose turn has not come: those may wait for it.
//! So if several fills cannot all have the room they need, one fails at once and the others go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use forebay_error::{Error, Result};
use futures::future::Shared;
use tokio::time::Instant;

use super::entry::FillPace;
use super::request::{RoomRequest, Shortage, Urgency};
use super::room::ROOM_TIMEOUT;
use super::table::Removal;
use super::{Tier, WeakTier};
use crate::budget::Space;
use crate::directory::ShardName;
use crate::fill::Allotment;
use crate::shares::Provenance;

/// Bytes reserved ahead of need, as long as nothing has to be evicted for them. So the table is
/// asked once in 64 MiB of a shard, and the file gets disk space in pieces of that size.
const AHEAD_BYTES: u64 = 64 << 20;

/// Bytes that an arriving shard holds on a tier.
#[derive(Clone)]
pub(super) struct TierAllotment {
    pub(super) tier: WeakTier,
    pub(super) name: ShardName,
    pub(super) of: Provenance,
    pub(super) space: Arc<Space>,
}

/// Outcome of one attempt to grow.
enum Attempt {
    Grown,
    /// The limits changed while they were looked at.
    Again,
    /// Another shard leaves.
    Leaving(Shared<Removal>),
    /// Room may come free by itself.
    MayComeFree,
    Full(Shortage),
}

#[async_trait]
impl Allotment for TierAllotment {
    fn bytes(&self) -> u64 {
        self.space.bytes()
    }

    fn largest(&self) -> u64 {
        let Some(tier) = self.tier.upgrade() else { return 0 };
        let shared = &tier.0.shared;
        let shares = shared.shares.current();
        let budgets = shares.budgets(shares.charge_of(&self.of));
        budgets
            .iter()
            .map(|share| share.capacity())
            .fold(shared.largest_tier.load(Ordering::Relaxed), u64::min)
    }

    fn capacity(&self) -> u64 {
        let Some(tier) = self.tier.upgrade() else { return 0 };
        let shares = tier.0.shared.shares.current();
        let budgets = shares.budgets(shares.charge_of(&self.of));
        let tier = tier.0.budget.limit();
        budgets.iter().map(|share| share.capacity()).fold(tier, u64::min)
    }

    fn is_silent(&self) -> bool {
        self.tier.upgrade().is_some_and(|tier| tier.0.health.is_silent())
    }

    async fn grow(&self, bytes: u64, is_awaited: &(dyn Fn() -> bool + Send + Sync)) -> Result<()> {
        let tier = self.tier.upgrade().ok_or_else(Error::shutting_down)?;
        let bytes = tier.bytes_for(bytes);
        if bytes <= self.bytes() {
            return Ok(());
        }
        let full = |short| tier.full(&self.of, short, bytes);
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        loop {
            // Taken before the attempt: it must not miss room that comes free during it.
            let freed = tier.0.budget.freed();
            match self.try_grow(&tier, bytes, is_awaited())? {
                Attempt::Grown => return Ok(()),
                Attempt::Again => {}
                Attempt::Leaving(gone) => gone.await,
                Attempt::Full(short) => return Err(full(short)),
                Attempt::MayComeFree => {
                    if tokio::time::timeout_at(deadline, freed).await.is_err() {
                        // A running fill ends, well or badly, and its shard may then be evicted.
                        if !tier.table().is_filling() {
                            let more = bytes.saturating_sub(self.bytes());
                            let shares = tier.0.shared.shares.current();
                            let charge = shares.charge_of(&self.of);
                            return Err(full(Shortage::of(&shares, charge, more)));
                        }
                        deadline = Instant::now() + ROOM_TIMEOUT;
                    }
                }
            }
        }
    }

    fn pause(&self) {
        self.set_pace(FillPace::Queued);
    }

    fn resume(&self) {
        self.set_pace(FillPace::Running);
    }

    fn settle(&self, bytes: u64) {
        let Some(tier) = self.tier.upgrade() else { return };
        let mut table = tier.table();
        self.space.shrink(tier.bytes_for(bytes));
        table.update_bytes(&self.name, &self.space, false);
    }

    fn abandon(&self) {
        if let Some(tier) = self.tier.upgrade() {
            drop(tier.remove_copy(&self.name, &self.space));
        }
    }
}

impl TierAllotment {
    fn set_pace(&self, pace: FillPace) {
        if let Some(tier) = self.tier.upgrade() {
            tier.table().set_pace(&self.name, &self.space, pace);
        }
    }

    /// Tries once to grow to `bytes`, evicting another shard if needed.
    fn try_grow(&self, tier: &Tier, bytes: u64, is_awaited: bool) -> Result<Attempt> {
        let more = bytes.saturating_sub(self.bytes());
        let mut table = tier.table();
        let shares = tier.0.shared.shares.current();
        let charge = shares.charge_of(&self.of);
        tier.check_enabled()?;
        tier.check_size(&shares, charge, bytes)?;
        // From now on no other fill that is short of room waits for this one.
        table.update_bytes(&self.name, &self.space, true);
        let short = Shortage::of(&shares, charge, more);
        let urgency = if is_awaited { Urgency::Needed } else { Urgency::Ahead };
        let unadmitted = table.is_unadmitted(&self.name);
        let request = RoomRequest::ahead(Some(charge));
        let request = RoomRequest { urgency, short, unadmitted, grows: true, ..request };
        // Asked before the attempts below, as for a newcomer.
        let may_come_free = table.may_come_free(request, &tier.0.budget);
        if self.space.grow(more + AHEAD_BYTES) || self.space.grow(more) {
            table.update_bytes(&self.name, &self.space, false);
            return Ok(Attempt::Grown);
        }
        if !tier.is_writable() {
            return Err(tier.closed());
        }
        if Shortage::of(&shares, charge, more) != short {
            return Ok(Attempt::Again);
        }
        Ok(match tier.evict_for(&mut table, request, None) {
            Some(gone) => Attempt::Leaving(gone),
            None if urgency == Urgency::Needed && may_come_free => Attempt::MayComeFree,
            None => Attempt::Full(short),
        })
    }
}

#[cfg(test)]
mod tests;
