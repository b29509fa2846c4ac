//! Shelves: the shards of one data set and one tenant on the tier, and which of them goes first.
//!
//! One rule: rules that hold under every policy (pins, minima, ages, leases) are applied here and
//! in the table, around the policy; the policy only orders what they leave.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::dataset::Dataset;
use crate::shares::{Charge, Kept, Share, Shares};
use forebay_policy::{Evict, List, Newcomer, Place, Policy, Slot};

/// The shards of one data set and one tenant on one tier.
pub(super) struct Shelf {
    pub(super) charge: Charge,
    /// Where its shards lie, to foresight; none if that goes by use alone.
    pub(super) place: Option<Place>,
    dataset: Arc<Kept>,
    tenant: Arc<Share>,
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
    /// Foresight says when it goes.
    pub(super) foreseen: bool,
}

/// What minima and ages let go of a shelf.
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
    pub(super) fn new(shares: &Shares, charge: Charge, place: Option<Place>) -> Self {
        let dataset = shares.dataset(charge).clone();
        Self {
            policy: dataset.rule.evict.policy(),
            passing: List::default(),
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

    /// Whether its order means the same by these rules.
    pub(super) fn keeps_its_order(&self, shares: &Shares) -> bool {
        let (before, rule) = (self.rule(), shares.rule(self.charge));
        let order = |rule: &Dataset| (rule.evict, rule.scan_bypass, rule.pin);
        order(before) == order(rule)
    }

    /// The same by these rules; each shard is to be told once more by when it goes stale.
    pub(super) fn ruled(self, shares: &Shares) -> Self {
        let (dataset, tenant) = (shares.dataset(self.charge), shares.tenant(self.charge));
        Self { dataset: dataset.clone(), tenant: tenant.clone(), aging: BTreeSet::new(), ..self }
    }

    /// Notes by when a shard that is here goes stale.
    pub(super) fn ages(&mut self, at: Standing) {
        self.aging.extend(self.stale_at(at));
    }

    /// A shard that came in was used so often before.
    pub(super) fn was_used(&mut self, at: Standing, uses: u32) {
        if !at.passes && !at.foreseen {
            (0..uses).for_each(|_| self.policy.hit(at.slot));
        }
    }

    pub(super) fn rule(&self) -> &Dataset {
        &self.dataset.rule
    }

    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Whether a shard of `bytes` that comes in now only passes. `room`: it fits without anybody
    /// leaving. What is pinned never only passes, nor what is within a minimum.
    pub(super) fn passes(&mut self, identity: u64, bytes: u64, room: bool) -> bool {
        let due = self.shares().iter().any(|share| share.is_due(bytes));
        let scanned = self.rule().scan_bypass && !due && !self.dataset.saw(identity);
        !self.rule().pin && (scanned || !self.policy.admits(room || due))
    }

    fn shares(&self) -> [&Share; 2] {
        [&self.dataset.share, &self.tenant]
    }

    /// Bytes of the shards that are here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that others may take of it here.
    pub(super) fn above_minimum(&self) -> u64 {
        self.loses_to(None)
    }

    /// Bytes that may go for a newcomer: of its own data set any, of another what is above that one's
    /// minimum; and so of tenants.
    fn loses_to(&self, newcomer: Option<Charge>) -> u64 {
        let own = [
            newcomer.is_some_and(|newcomer| newcomer.dataset == self.charge.dataset),
            newcomer.is_some_and(|newcomer| newcomer.tenant == self.charge.tenant),
        ];
        let others = self.shares().into_iter().zip(own).filter(|(_, own)| !own);
        others.map(|(share, _)| share.above_minimum()).fold(self.bytes, u64::min)
    }

    /// What may go for a newcomer; nothing if no shard is that small.
    pub(super) fn terms(&self, newcomer: Option<Charge>) -> Terms {
        let bytes = self.loses_to(newcomer);
        let may_lose = if bytes < self.smallest { 0 } else { bytes };
        Terms { may_lose, keep: self.rule().dont_evict_time }
    }

    pub(super) fn insert(&mut self, at: Standing, identity: u64) {
        let bytes = at.bytes;
        self.line_up(at, identity);
        if self.rule().scan_bypass {
            self.dataset.see(identity);
        }
        self.shares().iter().for_each(|share| share.came(bytes));
        self.ages(at);
        self.shards += 1;
        self.bytes += bytes;
        self.smallest = self.smallest.min(bytes);
    }

    /// Puts a shard where it waits for its end.
    fn line_up(&mut self, Standing { slot, bytes, passes, foreseen, .. }: Standing, identity: u64) {
        match (foreseen, passes) {
            (true, _) => {}
            (false, true) => self.passing.push(slot),
            (false, false) => self.policy.insert(Newcomer { slot, identity, bytes }),
        }
    }

    /// Takes it from there.
    fn step_out(&mut self, at: Standing, evicted: bool) {
        match (at.foreseen, at.passes) {
            (true, _) => {}
            (false, true) => self.passing.remove(at.slot),
            (false, false) => self.policy.remove(at.slot, evicted),
        }
    }

    /// From now on foresight says when a shard goes, or does so no longer.
    pub(super) fn foresee(&mut self, at: &mut Standing, identity: u64, foreseen: bool) {
        if at.foreseen != foreseen {
            self.step_out(*at, false);
            (at.foreseen, at.passes) = (foreseen, false);
            self.line_up(*at, identity);
        }
    }

    /// Whether foresight says when a shard goes that jobs told to need.
    pub(super) fn looks_forward(&self) -> bool {
        self.rule().evict == Evict::Clairvoyant && self.place.is_some()
    }

    /// A shard takes `bytes` now.
    pub(super) fn resize(&mut self, at: &mut Standing, bytes: u64) {
        let before = std::mem::replace(&mut at.bytes, bytes);
        for share in self.shares() {
            share.came(bytes);
            share.left(before);
        }
        self.bytes = self.bytes - before + bytes;
        self.smallest = self.smallest.min(bytes);
        if !at.passes && !at.foreseen {
            self.policy.resize(at.slot, bytes);
        }
    }

    /// A shard was used again. One that only passed because it was new is no scan's any more.
    pub(super) fn hit(&mut self, at: &mut Standing, identity: u64) {
        if at.foreseen {
            // What was is of no account.
        } else if !at.passes {
            self.policy.hit(at.slot);
        } else if self.rule().scan_bypass && self.policy.admits(true) {
            self.passing.remove(at.slot);
            at.passes = false;
            self.policy.insert(Newcomer { slot: at.slot, identity, bytes: at.bytes });
        }
    }

    /// `evicted`: the policy named it.
    pub(super) fn remove(&mut self, at: Standing, evicted: bool) {
        self.step_out(at, evicted);
        if let Some(stale) = self.stale_at(at) {
            self.aging.remove(&stale);
        }
        self.shards -= 1;
        self.bytes -= at.bytes;
        self.shares().iter().for_each(|share| share.left(at.bytes));
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
