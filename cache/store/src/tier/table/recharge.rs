//! Change of rules for present shards.
//!
//! Afterwards every shard is charged as if it had come under these rules. Policies keep their
//! knowledge of uses: a partition with the same policy and no new shards stays as it is; any other
//! is filled anew in the order of use.

use std::collections::HashSet;
use std::time::SystemTime;

use forebay_policy::Slot;

use super::ShardTable;
use crate::directory::ShardName;
use crate::shares::{Charge, Provenance};
use crate::tier::entry::{Entry, ShardState};
use crate::tier::new_charges::NewCharges;
use crate::tier::partition::Partition;

/// A present shard.
pub(in crate::tier) struct PresentShard {
    pub(in crate::tier) of: Provenance,
    pub(in crate::tier) charge: Charge,
    pub(in crate::tier) bytes: u64,
    pub(in crate::tier) since: SystemTime,
}

/// Maximum number of uses passed to another policy. Shards with more uses stay before the others
/// anyway, and passing all uses of long jobs would lock the table for long.
const USES_TOLD: u32 = 64;

impl ShardTable {
    /// Provenance of every present shard.
    pub(in crate::tier) fn provenances(&self) -> Vec<Provenance> {
        let entries = self.entries.iter().flatten().chain(&self.stuck);
        entries.map(|entry| entry.of.clone()).collect()
    }

    /// Every present shard with its charge.
    pub(in crate::tier) fn present(&self) -> Vec<PresentShard> {
        let present = |entry: &Entry| PresentShard {
            of: entry.of.clone(),
            charge: self.partitions[entry.partition].charge,
            bytes: entry.at.bytes,
            since: entry.at.since,
        };
        self.entries.iter().flatten().map(present).collect()
    }

    /// Finds shards that the rules do not want on this tier.
    pub(in crate::tier) fn find_unwanted(&mut self, tier: &str) {
        let is_unwanted = |entry: &&Entry| {
            let rule = self.partitions[entry.partition].rule();
            !rule.allows(tier) || rule.is_read_in_place(&entry.of.url)
        };
        let found = self.entries.iter().flatten().filter(is_unwanted);
        self.unwanted = found.map(|entry| entry.name.clone()).collect();
    }

    /// An unwanted shard that nobody reads. True if its data set is to have no copies anywhere.
    pub(in crate::tier) fn unwanted(&self) -> Option<(ShardName, bool)> {
        let mut resting = self.unwanted.iter().filter(|name| self.is_idle(name));
        let entry = self.get(resting.next()?)?;
        let rule = self.partitions[entry.partition].rule();
        Some((entry.name.clone(), rule.is_read_in_place(&entry.of.url)))
    }

    pub(in crate::tier) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty()
    }

    /// Puts other rules in force.
    pub(in crate::tier) fn recharge(&mut self, judged: &NewCharges) {
        self.shares = judged.shares.clone();
        let (order, goes_on) = self.judge(judged);
        // Linked again below, in the new partition.
        for (slot, charge) in &order {
            let stays = self.entries[*slot as usize].as_ref().is_some_and(|entry| {
                goes_on[entry.partition] && self.partitions[entry.partition].charge == *charge
            });
            if !stays {
                self.unlink_forecast(*slot);
            }
        }
        self.stand_anew(&order, &goes_on);
        for entry in &self.stuck {
            entry.space.charge_to(self.shares.budgets(judged.charge(&entry.of)));
        }
        self.refresh_forecast();
    }

    /// All shards by last use with their new charges, and for each partition true if it stays as it
    /// is.
    fn judge(&self, judged: &NewCharges) -> (Vec<(Slot, Charge)>, Vec<bool>) {
        let entries = (0..).zip(&self.entries);
        let mut here: Vec<(Slot, &Entry)> =
            entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?))).collect();
        here.sort_by_key(|(_, entry)| entry.used);
        let (mut order, mut charged, mut come) =
            (Vec::with_capacity(here.len()), HashSet::new(), HashSet::new());
        for (slot, entry) in here {
            let charge = judged.charge(&entry.of);
            order.push((slot, charge));
            charged.insert(charge);
            if self.partitions[entry.partition].charge != charge {
                come.insert(charge);
            }
        }
        let goes_on = |partition: &Partition| {
            let charge = &partition.charge;
            let is_left_alone = charged.contains(charge) && !come.contains(charge);
            is_left_alone && partition.keeps_order(&self.shares)
        };
        (order, self.partitions.iter().map(goes_on).collect())
    }

    /// Puts every shard into the partition of its charge.
    fn stand_anew(&mut self, order: &[(Slot, Charge)], goes_on: &[bool]) {
        let Self { entries, partitions, places, shares, free_places, forecast, .. } = self;
        places.clear();
        // Kept partitions get another index; shards of the others are removed one by one.
        let mut before = Vec::with_capacity(partitions.len());
        for (partition, goes_on) in std::mem::take(partitions).into_iter().zip(goes_on) {
            before.push(if *goes_on {
                places.insert(partition.charge, partitions.len());
                partitions.push(partition.with_rules(shares));
                PartitionFate::Kept(partitions.len() - 1)
            } else {
                free_places.extend(partition.place);
                PartitionFate::Dissolved(partition)
            });
        }
        for (slot, charge) in order {
            let Some(entry) = entries[*slot as usize].as_mut() else { continue };
            entry.space.charge_to(shares.budgets(*charge));
            let to = *places.entry(*charge).or_insert_with(|| {
                let place = free_places.pop().or_else(|| forecast.new_partition_id());
                partitions.push(Partition::new(shares, *charge, place));
                partitions.len() - 1
            });
            match &mut before[std::mem::replace(&mut entry.partition, to)] {
                PartitionFate::Kept(at) if *at == to => {
                    partitions[to].add_age(entry.at);
                    continue;
                }
                PartitionFate::Kept(at) => partitions[*at].remove(entry.at, false),
                PartitionFate::Dissolved(partition) => partition.remove(entry.at, false),
            }
            let (partition, identity) = (&mut partitions[to], entry.name.hash());
            // A shard admitted for a reason that no longer counts stays admitted, as after a start.
            entry.at.unadmitted = entry.state == ShardState::Partial
                || entry.at.unadmitted
                    && partition.denies_admission(identity, entry.at.bytes, true);
            partition.insert(entry.at, identity);
            partition.replay_uses(entry.at, entry.uses.min(USES_TOLD));
        }
    }
}

/// Outcome for a partition.
enum PartitionFate {
    /// Kept, at this index.
    Kept(usize),
    Dissolved(Partition),
}

#[cfg(test)]
mod tests;
