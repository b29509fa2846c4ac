//! Partitions: the shards of one data set and one tenant on a tier, and their order of eviction.
//!
//! Rules that hold under every policy (pins, minimums, ages, open handles) are applied here
//! and in the table, around the policy. The policy only orders the remaining shards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::dataset::Dataset;
use crate::shares::{Charge, DatasetShare, Share, Shares};
use forebay_policy::{Evict, List, Newcomer, PartitionNumber, Policy, Slot};

/// The shards of one data set and one tenant on one tier.
pub(super) struct Partition {
    pub(super) charge: Charge,
    /// Id in the forecast; none if its shards are evicted by use alone.
    pub(super) place: Option<PartitionNumber>,
    dataset: Arc<DatasetShare>,
    tenant: Arc<Share>,
    policy: Box<dyn Policy>,
    /// Shards that were not admitted: they are evicted first.
    unadmitted: List,
    /// Shards by the time they become stale.
    aging: BTreeSet<(SystemTime, Slot)>,
    shards: usize,
    /// Bytes of present shards, without those being removed.
    bytes: u64,
    /// Lower bound of the size of all shards that ever were here.
    smallest: u64,
}

/// Entry of a shard in its partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartitionEntry {
    pub(super) slot: Slot,
    pub(super) bytes: u64,
    pub(super) since: SystemTime,
    pub(super) unadmitted: bool,
    /// True if the forecast decides when it is evicted.
    pub(super) foreseen: bool,
}

/// Limits that minimums and ages set on evictions from a partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvictionTerms {
    pub(super) may_lose: u64,
    keep: Option<Duration>,
}

impl EvictionTerms {
    /// Returns true if they allow the eviction of this shard.
    pub(super) fn allow(self, at: PartitionEntry, now: SystemTime) -> bool {
        at.bytes <= self.may_lose && self.keep.is_none_or(|keep| age(at.since, now) >= keep)
    }
}

impl Partition {
    pub(super) fn new(shares: &Shares, charge: Charge, place: Option<PartitionNumber>) -> Self {
        let dataset = shares.dataset(charge).clone();
        Self {
            policy: dataset.rule.evict.policy(),
            unadmitted: List::default(),
            aging: BTreeSet::new(),
            shards: 0,
            bytes: 0,
            smallest: u64::MAX,
            charge,
            place,
            dataset,
            tenant: shares.tenant(charge).clone(),
        }
    }

    /// Returns true if its order of eviction is valid under these rules.
    pub(super) fn keeps_order(&self, shares: &Shares) -> bool {
        let (before, rule) = (self.rule(), shares.rule(self.charge));
        let order = |rule: &Dataset| (rule.evict, rule.scan_bypass, rule.pin);
        order(before) == order(rule)
    }

    /// The partition under these rules; each shard's age must be added again.
    pub(super) fn with_rules(self, shares: &Shares) -> Self {
        let (dataset, tenant) = (shares.dataset(self.charge), shares.tenant(self.charge));
        Self { dataset: dataset.clone(), tenant: tenant.clone(), aging: BTreeSet::new(), ..self }
    }

    /// Adds the time at which a present shard becomes stale.
    pub(super) fn add_age(&mut self, at: PartitionEntry) {
        self.aging.extend(self.stale_at(at));
    }

    /// Passes earlier uses of a new shard to the policy.
    pub(super) fn replay_uses(&mut self, at: PartitionEntry, uses: u32) {
        if !at.unadmitted && !at.foreseen {
            (0..uses).for_each(|_| self.policy.hit(at.slot));
        }
    }

    pub(super) fn rule(&self) -> &Dataset {
        &self.dataset.rule
    }

    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Returns true if a new shard of `bytes` is not admitted. `room`: it fits without an eviction.
    /// Pinned shards, and shards within a minimum, are always admitted.
    pub(super) fn denies_admission(&mut self, identity: u64, bytes: u64, room: bool) -> bool {
        let due = self.shares().iter().any(|share| share.is_due(bytes));
        let scanned = self.rule().scan_bypass && !due && !self.dataset.saw(identity);
        !self.rule().pin && (scanned || !self.policy.admits(room || due))
    }

    fn shares(&self) -> [&Share; 2] {
        [&self.dataset.share, &self.tenant]
    }

    /// Bytes of present shards.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that others may evict here.
    pub(super) fn above_minimum(&self) -> u64 {
        self.evictable_bytes(None)
    }

    /// Bytes that may be evicted for a newcomer: all for one of the same data set and tenant; else
    /// those above the minimum of the other data set or tenant.
    fn evictable_bytes(&self, newcomer: Option<Charge>) -> u64 {
        let own = [
            newcomer.is_some_and(|newcomer| newcomer.dataset == self.charge.dataset),
            newcomer.is_some_and(|newcomer| newcomer.tenant == self.charge.tenant),
        ];
        let others = self.shares().into_iter().zip(own).filter(|(_, own)| !own);
        others.map(|(share, _)| share.above_minimum()).fold(self.bytes, u64::min)
    }

    /// Eviction limits for a newcomer; they allow nothing if no shard is that small.
    pub(super) fn terms(&self, newcomer: Option<Charge>) -> EvictionTerms {
        let bytes = self.evictable_bytes(newcomer);
        let may_lose = if bytes < self.smallest { 0 } else { bytes };
        EvictionTerms { may_lose, keep: self.rule().dont_evict_time }
    }

    pub(super) fn insert(&mut self, at: PartitionEntry, identity: u64) {
        let bytes = at.bytes;
        self.add_to_order(at, identity);
        if self.rule().scan_bypass {
            self.dataset.see(identity);
        }
        self.shares().iter().for_each(|share| share.came(bytes));
        self.add_age(at);
        self.shards += 1;
        self.bytes += bytes;
        self.smallest = self.smallest.min(bytes);
    }

    /// Adds a shard to its order of eviction.
    fn add_to_order(
        &mut self,
        PartitionEntry { slot, bytes, unadmitted, foreseen, .. }: PartitionEntry,
        identity: u64,
    ) {
        match (foreseen, unadmitted) {
            (true, _) => {}
            (false, true) => self.unadmitted.push(slot),
            (false, false) => self.policy.insert(Newcomer { slot, identity, bytes }),
        }
    }

    /// Removes a shard from its order of eviction.
    fn remove_from_order(&mut self, at: PartitionEntry, evicted: bool) {
        match (at.foreseen, at.unadmitted) {
            (true, _) => {}
            (false, true) => self.unadmitted.remove(at.slot),
            (false, false) => self.policy.remove(at.slot, evicted),
        }
    }

    /// Lets the forecast decide when a shard is evicted.
    pub(super) fn set_foreseen(&mut self, at: &mut PartitionEntry, identity: u64) {
        self.move_in_order(at, identity, (true, false));
    }

    /// Lets the policy decide when a shard is evicted; `spare`: it goes before all others.
    pub(super) fn set_unforeseen(&mut self, at: &mut PartitionEntry, identity: u64, spare: bool) {
        if at.foreseen {
            self.move_in_order(at, identity, (false, spare));
        }
    }

    fn move_in_order(
        &mut self,
        at: &mut PartitionEntry,
        identity: u64,
        (foreseen, unadmitted): (bool, bool),
    ) {
        if at.foreseen != foreseen {
            self.remove_from_order(*at, false);
            (at.foreseen, at.unadmitted) = (foreseen, unadmitted);
            self.add_to_order(*at, identity);
        }
    }

    /// Returns true if the forecast decides when announced shards are evicted.
    pub(super) fn uses_forecast(&self) -> bool {
        self.rule().evict == Evict::Clairvoyant && self.place.is_some()
    }

    /// Changes the bytes of a shard.
    pub(super) fn resize(&mut self, at: &mut PartitionEntry, bytes: u64) {
        let before = std::mem::replace(&mut at.bytes, bytes);
        for share in self.shares() {
            share.came(bytes);
            share.left(before);
        }
        self.bytes = self.bytes - before + bytes;
        self.smallest = self.smallest.min(bytes);
        if !at.unadmitted && !at.foreseen {
            self.policy.resize(at.slot, bytes);
        }
    }

    /// Notes another use of a shard. A shard that was not admitted only because it was new is
    /// admitted now.
    pub(super) fn hit(&mut self, at: &mut PartitionEntry, identity: u64) {
        if at.foreseen {
            // Earlier uses do not matter.
        } else if !at.unadmitted {
            self.policy.hit(at.slot);
        } else if self.rule().scan_bypass && self.policy.admits(true) {
            self.unadmitted.remove(at.slot);
            at.unadmitted = false;
            self.policy.insert(Newcomer { slot: at.slot, identity, bytes: at.bytes });
        }
    }

    /// `evicted`: true if the policy chose it.
    pub(super) fn remove(&mut self, at: PartitionEntry, evicted: bool) {
        self.remove_from_order(at, evicted);
        if let Some(stale) = self.stale_at(at) {
            self.aging.remove(&stale);
        }
        self.shards -= 1;
        self.bytes -= at.bytes;
        self.shares().iter().for_each(|share| share.left(at.bytes));
    }

    fn stale_at(&self, at: PartitionEntry) -> Option<(SystemTime, Slot)> {
        Some((at.since.checked_add(self.rule().ttl?)?, at.slot))
    }

    /// A shard without a reason to stay: not admitted, or stale.
    pub(super) fn spare_shard(
        &self,
        now: SystemTime,
        may_go: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let stale = self.aging.iter().take_while(|(stale, _)| *stale <= now);
        let mut slots = stale.map(|(_, slot)| *slot);
        self.unadmitted.oldest_that(may_go).or_else(|| slots.find(|slot| may_go(*slot)))
    }

    /// The shard that the policy evicts first.
    pub(super) fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.policy.victim(may_go)
    }
}

/// Age of a shard; zero if the clock was set back.
pub(super) fn age(since: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(since).unwrap_or_default()
}

#[cfg(test)]
mod tests;
