//! Shelves: the shards of one data set on the tier, and which of them goes first.
//!
//! One rule: rules that hold under every policy (pins, minima, ages, leases) are applied here and
//! in the table, around the policy; the policy only orders what they leave.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::tally::Holding;
use crate::budget::Budget;
use crate::dataset::Dataset;
use crate::evict::{List, Newcomer, Policy, Slot};

/// When a shard goes stale, its slot, and which shard that was.
type Stale = (SystemTime, Slot, u64);

/// One data set's shards.
pub(super) struct Shelf {
    pub(super) rule: Dataset,
    pub(super) budget: Arc<Budget>,
    policy: Box<dyn Policy>,
    /// Shards that were not admitted: they go before all others.
    passing: List,
    /// When shards go stale, in that order; those of shards gone since are passed over.
    aging: VecDeque<Stale>,
    shards: usize,
}

/// A shard that comes in, or was found.
pub(super) struct Arrival {
    pub(super) newcomer: Newcomer,
    pub(super) passes: bool,
    pub(super) since: SystemTime,
    pub(super) serial: u64,
}

impl Shelf {
    pub(super) fn new(rule: Dataset) -> Self {
        Self {
            budget: Budget::new(rule.max_bytes.unwrap_or(u64::MAX)),
            policy: rule.evict.policy(),
            passing: List::default(),
            aging: VecDeque::new(),
            shards: 0,
            rule,
        }
    }

    /// Whether a shard may be evicted as far as its age goes.
    pub(super) fn is_old(&self, since: SystemTime, now: SystemTime) -> bool {
        self.rule.dont_evict_time.is_none_or(|keep| age(since, now) >= keep)
    }

    /// Whether a shard that comes in now only passes. `room`: it fits without anybody leaving.
    pub(super) fn passes(&self, room: bool) -> bool {
        !self.policy.admits(room)
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

    pub(super) fn insert(&mut self, arrival: &Arrival) {
        self.shards += 1;
        match arrival.passes {
            true => self.passing.push(arrival.newcomer.slot),
            false => self.policy.insert(arrival.newcomer),
        }
        if let Some(stale) = self.rule.ttl.and_then(|ttl| arrival.since.checked_add(ttl)) {
            // Nearly always the last; what a start finds comes in order of age, too.
            let at = self.aging.partition_point(|(other, ..)| *other <= stale);
            self.aging.insert(at, (stale, arrival.newcomer.slot, arrival.serial));
        }
    }

    pub(super) fn hit(&mut self, slot: Slot, passes: bool) {
        if !passes {
            self.policy.hit(slot);
        }
    }

    pub(super) fn remove(&mut self, slot: Slot, passes: bool, evicted: bool) {
        self.shards -= 1;
        match passes {
            true => self.passing.remove(slot),
            false => self.policy.remove(slot, evicted),
        }
    }

    /// A shard that is here for no reason any more: it only passes, or is stale.
    pub(super) fn spare(
        &mut self,
        now: SystemTime,
        is: &dyn Fn(Slot, u64) -> bool,
        may_go: &mut dyn FnMut(Slot) -> bool,
    ) -> Option<Slot> {
        while self.aging.front().is_some_and(|(_, slot, serial)| !is(*slot, *serial)) {
            self.aging.pop_front();
        }
        let stale = self.aging.iter().take_while(|(stale, ..)| *stale <= now);
        let mut slots =
            stale.filter(|(_, slot, serial)| is(*slot, *serial)).map(|(_, slot, _)| *slot);
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
