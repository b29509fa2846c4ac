//! Shards that the current rules do not want: they came under other rules.
//!
//! They leave without haste, one after the other, and never from under a reader.

use std::sync::atomic::Ordering;

use super::Tier;
use super::request::{RoomRequest, Shortage};
use crate::directory::ShardName;
use crate::shares::{ANY, Charge, NOBODY, Share, Shares};

/// Data sets and tenants above their limit: the charge whose shards can leave, and the limit that
/// is short.
pub(crate) fn above_quota(shares: &Shares) -> Vec<(Charge, Shortage)> {
    let is_above = |share: &Share| share.max_bytes().is_some_and(|max| share.held() > max);
    let datasets = shares.datasets().filter(|(_, kept)| is_above(&kept.share));
    let datasets = datasets.map(|(dataset, _)| (Charge { dataset, ..NOBODY }, Shortage::Dataset));
    let tenants = shares.tenants().filter(|(_, share)| is_above(share));
    let tenants = tenants.map(|(tenant, _)| (Charge { dataset: ANY, tenant }, Shortage::Tenant));
    datasets.chain(tenants).collect()
}

impl Tier {
    /// A shard that may leave because its data set or tenant is above its limit.
    pub(crate) fn victim_above_quota(&self, charge: Charge, short: Shortage) -> Option<ShardName> {
        let need = RoomRequest { short, ..RoomRequest::ahead(Some(charge)) };
        self.table().victim(need).map(|(name, _)| name)
    }

    /// An unwanted shard that nobody reads. True if its data set is to have no copies anywhere.
    pub(crate) fn unwanted(&self) -> Option<(ShardName, bool)> {
        self.table().unwanted()
    }

    /// Returns true if the tier has unwanted shards.
    pub(crate) fn has_unwanted(&self) -> bool {
        self.table().has_unwanted()
    }

    /// Notes that a reader closed a shard: it may be evicted now.
    pub(super) fn note_closed(&self) {
        self.0.budget.wake();
        if self.0.shared.leftover.load(Ordering::Relaxed) {
            self.0.shared.moves.notify_one();
        }
    }
}
