//! Room for a shard that turns out larger than it was thought to be: one that is unpacked on its way
//! in, whose length nobody knows before its end.
//!
//! One rule: bytes are reserved before they are written, as ever, and what may be evicted for a
//! newcomer may be for the rest of it. A fill that needs more waits only for what comes free by itself:
//! never for another that waits like it, nor for one whose turn has not come, since those may wait for
//! it. So of several that cannot all have what they need, one gives up at once, and the others go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::room::{ROOM_TIMEOUT, Urgency};
use super::table::{Need, Pace};
use super::{WeakTier, shutting_down};
use crate::budget::Space;
use crate::directory::ShardName;
use crate::shares::Provenance;

/// Reserved ahead of what is needed, where nobody has to go for it: every 64 MiB of a shard the
/// tier's table is asked once, and its file gets a piece of the disk.
const AHEAD_BYTES: u64 = 64 << 20;

/// What a shard on its way holds of a tier.
#[derive(Clone)]
pub(crate) struct Allotment {
    pub(super) tier: WeakTier,
    pub(super) name: ShardName,
    pub(super) of: Provenance,
    pub(super) space: Arc<Space>,
}

impl Allotment {
    /// Bytes that it may take.
    pub(crate) fn bytes(&self) -> u64 {
        self.space.bytes()
    }

    /// Bytes of the largest shard that fits any tier, and those whom this one is charged to.
    pub(crate) fn largest(&self) -> u64 {
        let Some(tier) = self.tier.upgrade() else { return 0 };
        let commons = &tier.0.commons;
        let shares = commons.shares.now();
        let budgets = shares.budgets(shares.charge_of(&self.of));
        budgets
            .iter()
            .map(|share| share.capacity())
            .fold(commons.largest_tier.load(Ordering::Relaxed), u64::min)
    }

    /// Makes it `bytes` at least, evicting others as for a newcomer. `is_awaited`: somebody waits
    /// for the shard.
    ///
    /// # Errors
    /// `Full` if there is no room and none can be made now.
    pub(crate) async fn grow(&self, bytes: u64, is_awaited: impl Fn() -> bool) -> Result<()> {
        let tier = self.tier.upgrade().ok_or_else(shutting_down)?;
        let bytes = tier.takes(bytes);
        if bytes <= self.bytes() {
            return Ok(());
        }
        let mut deadline = Instant::now() + ROOM_TIMEOUT;
        loop {
            let freed = tier.0.budget.freed();
            let more = bytes.saturating_sub(self.bytes());
            let (leaving, refused) = {
                let mut table = tier.table();
                let shares = tier.0.commons.shares.now();
                let charge = shares.charge_of(&self.of);
                tier.check_size(&shares, charge, bytes)?;
                // So that no other that is short waits for this one.
                table.resized(&self.name, &self.space, true);
                let short = shares.short(charge, more);
                let urgency = if is_awaited() { Urgency::Needed } else { Urgency::Ahead };
                let passes = table.passes(&self.name);
                let need =
                    Need { urgency, short, passes, grows: true, ..Need::ahead(Some(charge)) };
                // Asked before the looks below, as for a newcomer.
                let may_come_free = table.may_come_free(need, &tier.0.budget);
                if self.space.grow(more + AHEAD_BYTES) || self.space.grow(more) {
                    table.resized(&self.name, &self.space, false);
                    return Ok(());
                }
                if !tier.is_writable() {
                    let what = "the tier takes no shards any more";
                    return Err(Error::new(ErrorKind::Unavailable, what).at("tier", tier.name()));
                }
                if shares.short(charge, more) != short {
                    continue;
                }
                let leaving = tier.push_out(&mut table, need, None);
                let waits = leaving.is_some() || urgency == Urgency::Needed && may_come_free;
                (leaving, (!waits).then_some(short))
            };
            let full = |short| tier.full(&self.of, short, bytes);
            match (leaving, refused) {
                (Some(gone), _) => gone.await,
                (None, Some(short)) => return Err(full(short)),
                (None, None) => {
                    if tokio::time::timeout_at(deadline, freed).await.is_err() {
                        // A fill at work ends, well or badly, and what it brought may then go.
                        if !tier.table().is_filling() {
                            let shares = tier.0.commons.shares.now();
                            let short = shares.short(shares.charge_of(&self.of), more);
                            return Err(full(short));
                        }
                        deadline = Instant::now() + ROOM_TIMEOUT;
                    }
                }
            }
        }
    }

    /// It lets others go first: who is short of room is not to wait for it.
    pub(crate) fn rests(&self) {
        if let Some(tier) = self.tier.upgrade() {
            tier.table().paced(&self.name, &self.space, Pace::Waits);
        }
    }

    /// Its turn has come again.
    pub(crate) fn runs(&self) {
        if let Some(tier) = self.tier.upgrade() {
            tier.table().paced(&self.name, &self.space, Pace::Runs);
        }
    }

    /// It came to so many bytes: what it holds beyond them is others' again.
    pub(crate) fn settle(&self, bytes: u64) {
        let Some(tier) = self.tier.upgrade() else { return };
        let mut table = tier.table();
        self.space.shrink(tier.takes(bytes));
        table.resized(&self.name, &self.space, false);
    }

    /// Its tier does not keep it: whoever wants the shard from now on begins anew.
    pub(crate) fn leave(&self) {
        if let Some(tier) = self.tier.upgrade() {
            drop(tier.leave_copy(&self.name, &self.space));
        }
    }
}
