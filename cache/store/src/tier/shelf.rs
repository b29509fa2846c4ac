//! Shelves: the shards of one data set on the tier, and which of them goes first.
//!
//! One rule: rules that hold under every policy (pins, minima, ages, leases) are applied here and
//! in the table, around the policy; the policy only orders what they leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::dataset::{Dataset, Share};
use crate::evict::{List, Newcomer, Policy, Slot};

/// One data set's shards on one tier.
pub(super) struct Shelf {
    pub(super) share: Arc<Share>,
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
    pub(super) fn new(share: Arc<Share>) -> Self {
        Self {
            policy: share.rule.evict.policy(),
            passing: List::default(),
            aging: BTreeSet::new(),
            shards: 0,
            bytes: 0,
            smallest: u64::MAX,
            share,
        }
    }

    pub(super) fn rule(&self) -> &Dataset {
        &self.share.rule
    }

    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Whether a shard of `bytes` that comes in now only passes. `room`: it fits without anybody
    /// leaving. What is pinned never only passes, nor what is within the data set's minimum.
    pub(super) fn passes(&mut self, identity: u64, bytes: u64, room: bool) -> bool {
        let held = self.share.held.load(Ordering::Relaxed);
        let due = held.saturating_add(bytes) <= self.rule().min_bytes;
        let scanned = self.rule().scan_bypass && !due && !self.share.saw(identity);
        !self.rule().pin && (scanned || !self.policy.admits(room || due))
    }

    /// Bytes of the data set that are reserved, but for those of shards that rest on other tiers.
    pub(super) fn held_here(&self) -> u64 {
        let elsewhere = self.share.held.load(Ordering::Relaxed).saturating_sub(self.bytes);
        self.share.budget.used().saturating_sub(elsewhere)
    }

    /// Bytes that others may take of it here.
    pub(super) fn above_minimum(&self) -> u64 {
        let held = self.share.held.load(Ordering::Relaxed);
        held.saturating_sub(self.rule().min_bytes).min(self.bytes)
    }

    /// What may go: any bytes for one of its own, else those above the minimum; nothing if no shard
    /// is that small.
    pub(super) fn terms(&self, own: bool) -> Terms {
        let bytes = if own { self.bytes } else { self.above_minimum() };
        let may_lose = if bytes < self.smallest { 0 } else { bytes };
        Terms { may_lose, keep: self.rule().dont_evict_time }
    }

    pub(super) fn insert(&mut self, at: Standing, identity: u64) {
        let Standing { slot, bytes, passes, .. } = at;
        match passes {
            true => self.passing.push(slot),
            false => self.policy.insert(Newcomer { slot, identity, bytes }),
        }
        if self.rule().scan_bypass {
            self.share.see(identity);
        }
        self.share.held.fetch_add(bytes, Ordering::Relaxed);
        self.aging.extend(self.stale_at(at));
        self.shards += 1;
        self.bytes += bytes;
        self.smallest = self.smallest.min(bytes);
    }

    /// A shard was used again. One that only passed because it was new is no scan's any more.
    pub(super) fn hit(&mut self, at: &mut Standing, identity: u64) {
        if !at.passes {
            self.policy.hit(at.slot);
        } else if self.rule().scan_bypass && self.policy.admits(true) {
            self.passing.remove(at.slot);
            at.passes = false;
            self.policy.insert(Newcomer { slot: at.slot, identity, bytes: at.bytes });
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
        self.share.held.fetch_sub(at.bytes, Ordering::Relaxed);
    }

    fn stale_at(&self, at: Standing) -> Option<(SystemTime, Slot)> {
        Some((at.since.checked_add(self.rule().ttl?)?, at.slot))
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
