//! What is here though the rules leave no place for it: they were others when it came.
//!
//! One rule: it goes as anything else does, without haste and never from under a reader; whoever moves
//! shards takes one after the other.

use std::sync::atomic::Ordering;

use super::Tier;
use super::table::{Need, Short};
use crate::directory::ShardName;
use crate::shares::{ANY, Charge, NOBODY, Share, Shares};

/// Data sets and tenants that hold more than they may, as whose shards can go for it: each a charge, and
/// what of it is meant.
pub(crate) fn above_quota(shares: &Shares) -> Vec<(Charge, Short)> {
    let is_above = |share: &Share| share.max_bytes().is_some_and(|max| share.held() > max);
    let datasets = shares.datasets().filter(|(_, kept)| is_above(&kept.share));
    let datasets = datasets.map(|(dataset, _)| (Charge { dataset, ..NOBODY }, Short::Dataset));
    let tenants = shares.tenants().filter(|(_, share)| is_above(share));
    let tenants = tenants.map(|(tenant, _)| (Charge { dataset: ANY, tenant }, Short::Tenant));
    datasets.chain(tenants).collect()
}

impl Tier {
    /// A shard that may go because its data set or tenant holds more than it may.
    pub(crate) fn candidate_of(&self, charge: Charge, short: Short) -> Option<ShardName> {
        let need = Need { short, ..Need::ahead(Some(charge)) };
        self.table().victim(need).map(|(name, _)| name)
    }

    /// One of them that nobody reads, and whether its data set is to have no copies anywhere.
    pub(crate) fn unwanted(&self) -> Option<(ShardName, bool)> {
        self.table().unwanted()
    }

    /// Whether anything is here that the rules do not want here.
    pub(crate) fn has_unwanted(&self) -> bool {
        self.table().has_unwanted()
    }

    /// Somebody let go of a shard: what had to stay for it may go.
    pub(super) fn let_go(&self) {
        self.0.budget.wake();
        if self.0.commons.leftover.load(Ordering::Relaxed) {
            self.0.commons.moves.notify_one();
        }
    }
}
