//! Least frequently used goes first, with dynamic aging: a newcomer starts with the count at which
//! the last victim went, so that yesterday's favourites do not stay for ever (Arlitt et al., 2000).

use std::collections::BTreeSet;

use super::{Newcomer, Policy, Slot};

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Uses, plus the age at which it came in.
    count: u64,
    /// Among equals the one whose last use is longer ago goes first.
    last: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lfu {
    order: BTreeSet<(u64, u64, Slot)>,
    uses: Vec<Use>,
    age: u64,
    clock: u64,
}

impl Lfu {
    fn place(&mut self, slot: Slot, count: u64) {
        self.clock += 1;
        self.uses[slot as usize] = Use { count, last: self.clock };
        self.order.insert((count, self.clock, slot));
    }

    fn take(&mut self, slot: Slot) -> u64 {
        let Use { count, last } = self.uses[slot as usize];
        self.order.remove(&(count, last, slot));
        count
    }
}

impl Policy for Lfu {
    fn insert(&mut self, newcomer: Newcomer) {
        let at = newcomer.slot as usize;
        if at >= self.uses.len() {
            self.uses.resize(at + 1, Use::default());
        }
        self.place(newcomer.slot, self.age + 1);
    }

    fn hit(&mut self, slot: Slot) {
        let count = self.take(slot);
        self.place(slot, count + 1);
    }

    fn remove(&mut self, slot: Slot, evicted: bool) {
        let count = self.take(slot);
        if evicted {
            self.age = self.age.max(count);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.order.iter().map(|&(_, _, slot)| slot).find(|slot| may_go(*slot))
    }
}
