//! Search for the next shard to evict.

use std::time::SystemTime;

use forebay_policy::{PartitionNumber, Shard as Number, Slot};

use super::ShardTable;
use crate::budget::{Budget, Space};
use crate::clock;
use crate::directory::ShardName;
use crate::tier::entry::{Entry, FillPace, ShardState, is_idle};
use crate::tier::partition::{EvictionTerms, Partition};
use crate::tier::request::{RoomRequest, Shortage, Urgency};

impl ShardTable {
    /// Returns true if waiting may make room: bytes are being released, or a shard in use could be
    /// evicted otherwise. Shards kept by rules do not count.
    pub(in crate::tier) fn may_come_free(&self, need: RoomRequest, tier: &Budget) -> bool {
        if need.short == Shortage::Both {
            // Neither of the two limits alone makes room.
            let either =
                [Shortage::Dataset, Shortage::Tenant].map(|short| RoomRequest { short, ..need });
            return either.iter().all(|need| self.may_come_free(*need, tier));
        }
        let now = clock::now();
        let mut resting = 0;
        let busy = self.entries.iter().flatten().any(|entry| {
            let of = &self.partitions[entry.partition];
            if !need.concerns(of.charge) {
                return false;
            }
            resting += entry.at.bytes;
            let terms = of.terms(need.charge);
            let is_kept =
                self.pinned.contains(&entry.name) || of.rule().pin && !entry.at.unadmitted;
            let by_rule = !is_kept && terms.allow(entry.at, now);
            // A fill that is short of room itself, or waits for its turn, may be waiting for this
            // one.
            let ends = !need.grows
                || entry.state != ShardState::Arriving
                || entry.pace == FillPace::Running;
            by_rule && ends && !is_idle(entry, &self.open, &self.opening)
        });
        let short = need.charge.map(|charge| self.shares.of(charge));
        let held = match (short, need.short) {
            // Bytes of the share on other tiers do not come free here.
            (Some([share, _]), Shortage::Dataset) | (Some([_, share]), Shortage::Tenant) => {
                let partitions =
                    self.partitions.iter().filter(|partition| need.concerns(partition.charge));
                share.reserved_here(partitions.map(Partition::bytes).sum())
            }
            _ => {
                let newer = self.newer.as_ref().map_or(0, Space::bytes);
                let stuck: u64 = self.stuck.iter().map(|entry| entry.at.bytes).sum();
                tier.used().saturating_sub(newer + stuck)
            }
        };
        busy || held > resting
    }

    /// Returns true if a shard arrives that does not wait for room itself.
    pub(in crate::tier) fn is_filling(&self) -> bool {
        let comes =
            |entry: &Entry| entry.state == ShardState::Arriving && entry.pace == FillPace::Running;
        self.entries.iter().flatten().any(comes)
    }

    /// Returns true if a shard arrives, which can be evicted later.
    pub(in crate::tier) fn is_arriving(&self) -> bool {
        self.entries.iter().flatten().any(|entry| entry.state == ShardState::Arriving)
    }

    /// The next shard to evict, if any may be evicted, and true if its policy chose it.
    pub(in crate::tier) fn victim(&mut self, need: RoomRequest) -> Option<(ShardName, bool)> {
        let now = clock::now();
        let scopes: &[Shortage] = match &need.short {
            Shortage::Both => &[Shortage::Both, Shortage::Tenant],
            one => std::slice::from_ref(one),
        };
        let lasts: &[bool] = match need.urgency {
            Urgency::Needed => &[false, true],
            Urgency::Ahead => &[false],
        };
        let mut tries = lasts.iter().flat_map(|last| scopes.iter().map(|short| (*short, *last)));
        let (slot, named) = match need.guest {
            Some(_) => (self.guest_to_go(need, now)?, true),
            None => tries
                .find_map(|(short, last)| self.search(RoomRequest { short, ..need }, now, last))?,
        };
        self.entries[slot as usize].as_ref().map(|entry| (entry.name.clone(), named))
    }

    /// The guest to evict first. Guests go before all that is kept, whatever they are needed for: a
    /// job that has one in its window reads it at its owner then. For another guest only those
    /// needed later go.
    fn guest_to_go(&self, need: RoomRequest, now: SystemTime) -> Option<Slot> {
        let own = self.partitions.iter().filter(|partition| need.concerns(partition.charge));
        let places = foreseen_places(own);
        let slot_of = |number: Number| self.numbers.get(&number).copied();
        let mut may_go = |number: Number| {
            let entry = slot_of(number).and_then(|slot| self.entries[slot as usize].as_ref());
            entry.is_some_and(|entry| {
                let terms = self.partitions[entry.partition].terms(need.charge);
                terms.allow(entry.at, now)
                    && is_idle(entry, &self.open, &self.opening)
                    && !self.pinned.contains(&entry.name)
            })
        };
        slot_of(self.forecast.last_guest(&places, need.guest, &mut may_go)?)
    }

    /// Searches the partitions, least important first. `last`: as a last resort, claimed shards and
    /// shards of higher priority than the newcomer may be evicted.
    fn search(&mut self, need: RoomRequest, now: SystemTime, last: bool) -> Option<(Slot, bool)> {
        let guest = self.guest_to_go(need, now);
        let priority = need.charge.map_or(i32::MAX, |charge| self.shares.priority(charge));
        let mut order: Vec<usize> = (0..self.partitions.len()).collect();
        order.retain(|at| need.concerns(self.partitions[*at].charge));
        let Self { entries, partitions, open, opening, claims, pinned, numbers, forecast, .. } =
            self;
        // Shared borrows, so that each partition's check can use them.
        let (entries, open, opening, claims, pinned) =
            (&*entries, &*open, &*opening, &*claims, &*pinned);
        order.sort_by_cached_key(|at| {
            let partition = &partitions[*at];
            (partition.rule().priority, std::cmp::Reverse(partition.above_minimum()))
        });
        let may_go = |terms: EvictionTerms| {
            // Cheapest checks first: a search may check many shards.
            move |slot: Slot| {
                entries[slot as usize].as_ref().is_some_and(|entry| {
                    terms.allow(entry.at, now)
                        && is_idle(entry, open, opening)
                        && (last || !claims.contains_key(&entry.name))
                        && !pinned.contains(&entry.name)
                })
            }
        };
        for at in &order {
            let partition = &partitions[*at];
            let terms = partition.terms(need.charge);
            if let Some(spare) = partition.spare_shard(now, &mut may_go(terms)) {
                return Some((spare, false));
            }
        }
        if let Some(guest) = guest {
            return Some((guest, true));
        }
        if need.unadmitted && !last {
            return None;
        }
        order.retain(|at| {
            let partition = &partitions[*at];
            let more_important = !last && partition.rule().priority > priority;
            let keeps_all = partition.terms(need.charge).may_lose == 0;
            !(partition.rule().pin || more_important || keeps_all)
        });
        let than = need.than.filter(|_| !last);
        while let Some(first) = order.first() {
            let priority = partitions[*first].rule().priority;
            let alike = order.partition_point(|at| partitions[*at].rule().priority == priority);
            let alike: Vec<usize> = order.drain(..alike).collect();
            for at in &alike {
                let partition = &mut partitions[*at];
                let terms = partition.terms(need.charge);
                if let Some(victim) = partition.victim(&mut may_go(terms)) {
                    return Some((victim, true));
                }
            }
            let places = foreseen_places(alike.iter().map(|at| &partitions[*at]));
            let mut may_go = |number: Number| {
                let slot = numbers.get(&number).copied();
                let entry = slot.and_then(|slot| Some((slot, entries[slot as usize].as_ref()?)));
                entry.is_some_and(|(slot, entry)| {
                    may_go(partitions[entry.partition].terms(need.charge))(slot)
                })
            };
            if let Some(gone) = forecast.last_needed(&places, than, &mut may_go)
                && let Some(slot) = numbers.get(&gone)
            {
                return Some((*slot, true));
            }
        }
        None
    }
}

/// Ids of the partitions whose announced shards the forecast evicts.
fn foreseen_places<'a>(partitions: impl Iterator<Item = &'a Partition>) -> Vec<PartitionNumber> {
    let foreseen = partitions.filter(|partition| partition.uses_forecast());
    foreseen.filter_map(|partition| partition.place).collect()
}

#[cfg(test)]
mod tests;
