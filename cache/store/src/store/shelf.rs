//! Shelves: the shards of one data set on the tier, and which of them goes first.
//!
//! One rule: rules that hold under every policy (pins, minima, ages, leases) are applied here and
//! in the table, around the policy; the policy only orders what they leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::tally::Holding;
use crate::budget::Budget;
use crate::dataset::Dataset;
use crate::evict::{List, Newcomer, Policy, Slot};

/// One data set's shards.
pub(super) struct Shelf {
    pub(super) rule: Dataset,
    /// What the data set may hold; readers of evicted copies keep their share of it.
    pub(super) budget: Arc<Budget>,
    policy: Box<dyn Policy>,
    /// Shards that were not admitted: they go before all others.
    passing: List,
    /// Shards by when they go stale.
    aging: BTreeSet<(SystemTime, Slot)>,
    shards: usize,
    /// Bytes of the shards that are here, those of shards on their way out not counted.
    bytes: u64,
    /// No shard that ever was here is smaller.
    smallest: u64,
}

/// A shard's place on its shelf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) slot: Slot,
    pub(super) bytes: u64,
    pub(super) since: SystemTime,
    pub(super) passes: bool,
}

/// What a shelf's minimum and ages let go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) may_lose: u64,
    keep: Option<Duration>,
}

impl Terms {
    /// Whether they let this shard go.
    pub(super) fn allow(self, at: Standing, now: SystemTime) -> bool {
        at.bytes <= self.may_lose && self.keep.is_none_or(|keep| age(at.since, now) >= keep)
    }
}

impl Shelf {
    pub(super) fn new(rule: Dataset) -> Self {
        Self {
            budget: Budget::new(rule.max_bytes.unwrap_or(u64::MAX)),
            policy: rule.evict.policy(),
            passing: List::default(),
            aging: BTreeSet::new(),
            shards: 0,
            bytes: 0,
            smallest: u64::MAX,
            rule,
        }
    }

    /// Whether a shard of `bytes` that comes in now only passes. `room`: it fits without anybody
    /// leaving. What is pinned never only passes, nor what is within the data set's minimum.
    pub(super) fn passes(&self, bytes: u64, room: bool) -> bool {
        let due = self.bytes.saturating_add(bytes) <= self.rule.min_bytes;
        !self.rule.pin && !self.policy.admits(room || due)
    }

    /// Bytes that others may take of it.
    pub(super) fn above_minimum(&self) -> u64 {
        self.bytes.saturating_sub(self.rule.min_bytes)
    }

    /// What may go: any bytes for one of its own, else those above the minimum; nothing if no shard
    /// is that small.
    pub(super) fn terms(&self, own: bool) -> Terms {
        let bytes = if own { self.bytes } else { self.above_minimum() };
        let may_lose = if bytes < self.smallest { 0 } else { bytes };
        Terms { may_lose, keep: self.rule.dont_evict_time }
    }

    pub(super) fn holding(&self) -> Holding {
        Holding {
            name: self.rule.name.clone(),
            evict: self.rule.evict,
            used_bytes: self.budget.used(),
            max_bytes: self.rule.max_bytes,
            shards: self.shards,
        }
    }

    pub(super) fn insert(&mut self, at: Standing, identity: u64) {
        let Standing { slot, bytes, passes, .. } = at;
        match passes {
            true => self.passing.push(slot),
            false => self.policy.insert(Newcomer { slot, identity, bytes }),
        }
        self.aging.extend(self.stale_at(at));
        self.shards += 1;
        self.bytes += bytes;
        self.smallest = self.smallest.min(bytes);
    }

    pub(super) fn hit(&mut self, slot: Slot, passes: bool) {
        if !passes {
            self.policy.hit(slot);
        }
    }

    /// `evicted`: the policy named it.
    pub(super) fn remove(&mut self, at: Standing, evicted: bool) {
        match at.passes {
            true => self.passing.remove(at.slot),
            false => self.policy.remove(at.slot, evicted),
        }
        if let Some(stale) = self.stale_at(at) {
            self.aging.remove(&stale);
        }
        self.shards -= 1;
        self.bytes -= at.bytes;
    }

    fn stale_at(&self, at: Standing) -> Option<(SystemTime, Slot)> {
        Some((at.since.checked_add(self.rule.ttl?)?, at.slot))
    }

    /// A shard that is here for no reason any more: it only passes, or is stale.
    pub(super) fn spare(
        &self,
        now: SystemTime,
        may_go: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        let stale = self.aging.iter().take_while(|(stale, _)| *stale <= now);
        let mut slots = stale.map(|(_, slot)| *slot);
        self.passing.oldest_that(may_go).or_else(|| slots.find(|slot| may_go(*slot)))
    }

    /// The shard the policy gives up first.
    pub(super) fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.policy.victim(may_go)
    }
}

/// How long ago a shard came in; a clock that was set back makes it new.
pub(super) fn age(since: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(since).unwrap_or_default()
}
