//! `static`: first come, first kept. What came while there was room stays; everything else only
//! passes. One job over a data set larger than the tier cannot hit more often than by this: the
//! share of the data set that fits (CoorDL, VLDB 2021).

use super::list::List;
use super::{Newcomer, Policy, Slot};

#[derive(Debug, Default)]
pub(super) struct Static(List);

impl Policy for Static {
    fn admits(&self, room: bool) -> bool {
        room
    }

    fn insert(&mut self, newcomer: Newcomer) {
        self.0.push(newcomer.slot);
    }

    fn hit(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot, _evicted: bool) {
        self.0.remove(slot);
    }

    /// Only where a tier shrinks or has to let a needed shard pass: the newest was kept last.
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.0.newest();
        while let Some(slot) = at {
            if may_go(slot) {
                return Some(slot);
            }
            at = self.0.older(slot);
        }
        None
    }
}
