//! Least recently used goes first. Right for data that is asked for again soon; for a reshuffled
//! data set larger than the tier it hits little, and for one in fixed order never.

use super::list::List;
use super::{Newcomer, Policy, Slot};

#[derive(Debug, Default)]
pub(super) struct Lru(List);

impl Policy for Lru {
    fn insert(&mut self, newcomer: Newcomer) {
        self.0.push(newcomer.slot);
    }

    fn hit(&mut self, slot: Slot) {
        self.0.remove(slot);
        self.0.push(slot);
    }

    fn remove(&mut self, slot: Slot, _evicted: bool) {
        self.0.remove(slot);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.oldest_that(may_go)
    }
}
