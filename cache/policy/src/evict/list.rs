//! A doubly linked list of slots, linked in place: what queue policies are made of.
//!
//! Slots are dense, so links are two numbers in a vector: 8 bytes a shard and no hashing.

use super::Slot;

/// No slot. A tier of four billion shards is none that exists.
const NIL: Slot = Slot::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    /// Towards the back, which came in earlier.
    older: Slot,
    /// Towards the front, which came in later.
    newer: Slot,
}

/// Slots from the newest to the oldest.
#[derive(Debug)]
pub struct List {
    links: Vec<Links>,
    newest: Slot,
    oldest: Slot,
}

impl Default for List {
    fn default() -> Self {
        Self { links: Vec::new(), newest: NIL, oldest: NIL }
    }
}

fn some(slot: Slot) -> Option<Slot> {
    (slot != NIL).then_some(slot)
}

impl List {
    /// Puts a slot, which is in no place of this list, before all others.
    pub fn push(&mut self, slot: Slot) {
        let at = slot as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, Links { older: NIL, newer: NIL });
        }
        self.links[at] = Links { older: self.newest, newer: NIL };
        match some(self.newest) {
            Some(newest) => self.links[newest as usize].newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }

    /// Takes a slot, which is in this list, out of it.
    pub fn remove(&mut self, slot: Slot) {
        let Links { older, newer } = self.links[slot as usize];
        match some(older) {
            Some(older) => self.links[older as usize].newer = newer,
            None => self.oldest = newer,
        }
        match some(newer) {
            Some(newer) => self.links[newer as usize].older = older,
            None => self.newest = older,
        }
    }

    /// The one that came in last.
    #[must_use]
    pub fn newest(&self) -> Option<Slot> {
        some(self.newest)
    }

    /// The one that came in first.
    #[must_use]
    pub fn oldest(&self) -> Option<Slot> {
        some(self.oldest)
    }

    /// The next one that came in after `slot`.
    #[must_use]
    pub fn newer(&self, slot: Slot) -> Option<Slot> {
        some(self.links[slot as usize].newer)
    }

    /// The next one that came in before `slot`.
    #[must_use]
    pub fn older(&self, slot: Slot) -> Option<Slot> {
        some(self.links[slot as usize].older)
    }

    /// The oldest for which `fits` holds.
    pub fn oldest_that(&self, fits: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let mut at = self.oldest();
        while let Some(slot) = at {
            if fits(slot) {
                return Some(slot);
            }
            at = self.newer(slot);
        }
        None
    }
}
