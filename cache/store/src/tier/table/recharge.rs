//! Other rules for the shards that are here.
//!
//! One rule: afterwards every shard is charged as it would be, had it come by these rules. What policies
//! knew of use stays known: a shelf that keeps its policy and to which nobody comes goes on as it is, any
//! other is filled anew in the order of use.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Entry, State, Table};
use crate::directory::ShardName;
use crate::shares::{Charge, Provenance, Shares};
use crate::store::is_read_in_place;
use crate::tier::effects::Present;
use crate::tier::shelf::Shelf;
use forebay_policy::Slot;

/// Uses told to another policy, at most. What was used more often stays before the rest either way, and
/// telling all uses of long jobs would keep the table from them.
const USES_TOLD: u32 = 64;

/// Whom shards are charged to by other rules, found out before the tables are held: patterns are slow to
/// compare beside everything else that is done there.
pub(crate) struct Judged {
    pub(crate) shares: Arc<Shares>,
    datasets: HashMap<Arc<str>, usize>,
}

impl Judged {
    /// What these rules say of the shards.
    pub(crate) fn by(shares: Arc<Shares>, shards: impl Iterator<Item = Provenance>) -> Self {
        let mut datasets = HashMap::new();
        for shard in shards {
            let of = |url: &Arc<str>| shares.dataset_of(url);
            let at = datasets.get(&shard.url).copied().unwrap_or_else(|| of(&shard.url));
            datasets.insert(shard.url, at);
        }
        Self { shares, datasets }
    }

    pub(crate) fn charge(&self, shard: &Provenance) -> Charge {
        // What came since.
        let found = || self.shares.dataset_of(&shard.url);
        Charge {
            dataset: self.datasets.get(&shard.url).copied().unwrap_or_else(found),
            tenant: self.shares.tenant_of(shard.tenant.as_deref()),
        }
    }
}

impl Table {
    /// Where every shard that is here comes from.
    pub(in crate::tier) fn provenances(&self) -> Vec<Provenance> {
        let entries = self.entries.iter().flatten().chain(&self.stuck);
        entries.map(|entry| entry.of.clone()).collect()
    }

    /// Every shard that is here, and whom it is charged to.
    pub(in crate::tier) fn present(&self) -> Vec<Present> {
        let present = |entry: &Entry| Present {
            of: entry.of.clone(),
            charge: self.shelves[entry.shelf].charge,
            bytes: entry.at.bytes,
            since: entry.at.since,
        };
        self.entries.iter().flatten().map(present).collect()
    }

    /// Looks for shards that the rules do not want on this tier.
    pub(in crate::tier) fn find_unwanted(&mut self, tier: &str) {
        let is_unwanted = |entry: &&Entry| {
            let rule = self.shelves[entry.shelf].rule();
            !rule.allows(tier) || is_read_in_place(rule, &entry.of.url)
        };
        let found = self.entries.iter().flatten().filter(is_unwanted);
        self.unwanted = found.map(|entry| entry.name.clone()).collect();
    }

    /// One of them that nobody reads, and whether its data set is to have no copies anywhere.
    pub(in crate::tier) fn unwanted(&self) -> Option<(ShardName, bool)> {
        let mut resting = self.unwanted.iter().filter(|name| self.is_resting(name));
        let entry = self.get(resting.next()?)?;
        let rule = self.shelves[entry.shelf].rule();
        Some((entry.name.clone(), is_read_in_place(rule, &entry.of.url)))
    }

    pub(in crate::tier) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty()
    }

    /// Other rules count from here on.
    pub(in crate::tier) fn recharge(&mut self, judged: &Judged) {
        self.shares = judged.shares.clone();
        let (order, goes_on) = self.judge(judged);
        // Where they lie is told anew below.
        for (slot, charge) in &order {
            let stays = self.entries[*slot as usize].as_ref().is_some_and(|entry| {
                goes_on[entry.shelf] && self.shelves[entry.shelf].charge == *charge
            });
            if !stays {
                self.know_nothing_of(*slot);
            }
        }
        self.stand_anew(&order, &goes_on);
        for entry in &self.stuck {
            entry.space.charge_to(self.shares.budgets(judged.charge(&entry.of)));
        }
        self.look_forward();
    }

    /// Every shard by its last use, with whom it is charged to; and of every shelf whether it goes on as it is.
    fn judge(&self, judged: &Judged) -> (Vec<(Slot, Charge)>, Vec<bool>) {
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
            if self.shelves[entry.shelf].charge != charge {
                come.insert(charge);
            }
        }
        let goes_on = |shelf: &Shelf| {
            let charge = &shelf.charge;
            let is_left_alone = charged.contains(charge) && !come.contains(charge);
            is_left_alone && shelf.keeps_its_order(&self.shares)
        };
        (order, self.shelves.iter().map(goes_on).collect())
    }

    /// Puts every shard on the shelf of whom it is charged to.
    fn stand_anew(&mut self, order: &[(Slot, Charge)], goes_on: &[bool]) {
        let Self { entries, shelves, places, shares, free_places, forecast, .. } = self;
        places.clear();
        // Those that go on have another place; of the others the shards are taken one by one.
        let mut before = Vec::with_capacity(shelves.len());
        for (shelf, goes_on) in std::mem::take(shelves).into_iter().zip(goes_on) {
            before.push(if *goes_on {
                places.insert(shelf.charge, shelves.len());
                shelves.push(shelf.ruled(shares));
                Before::GoesOn(shelves.len() - 1)
            } else {
                free_places.extend(shelf.place);
                Before::Ends(shelf)
            });
        }
        for (slot, charge) in order {
            let Some(entry) = entries[*slot as usize].as_mut() else { continue };
            entry.space.charge_to(shares.budgets(*charge));
            let to = *places.entry(*charge).or_insert_with(|| {
                let place = free_places.pop().or_else(|| forecast.place());
                shelves.push(Shelf::new(shares, *charge, place));
                shelves.len() - 1
            });
            match &mut before[std::mem::replace(&mut entry.shelf, to)] {
                Before::GoesOn(at) if *at == to => {
                    shelves[to].ages(entry.at);
                    continue;
                }
                Before::GoesOn(at) => shelves[*at].remove(entry.at, false),
                Before::Ends(shelf) => shelf.remove(entry.at, false),
            }
            let (shelf, identity) = (&mut shelves[to], entry.name.hash());
            // What was let in for a reason that counts no more stays, as after a start.
            entry.at.passes = entry.state == State::Partial
                || entry.at.passes && shelf.passes(identity, entry.at.bytes, true);
            shelf.insert(entry.at, identity);
            shelf.was_used(entry.at, entry.uses.min(USES_TOLD));
        }
    }
}

/// What becomes of a shelf.
enum Before {
    /// It goes on, at this place.
    GoesOn(usize),
    Ends(Shelf),
}

#[cfg(test)]
mod tests;
