//! Nothing stays: shards pass through the tier and go as soon as nobody needs them. For sources
//! that are as fast as the tier, and for data that is read once.

use super::list::List;
use super::{Newcomer, Policy, Slot};

#[derive(Debug, Default)]
pub(super) struct None(List);

impl Policy for None {
    fn admits(&self, _room: bool) -> bool {
        false
    }

    // Shards that stayed under another policy, before this one was chosen.
    fn insert(&mut self, newcomer: Newcomer) {
        self.0.push(newcomer.slot);
    }

    fn hit(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot, _evicted: bool) {
        self.0.remove(slot);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.oldest_that(may_go)
    }
}
