//! SIEVE: one queue in order of arrival, one bit a shard, one hand that moves from the oldest to
//! the newest, clears bits and takes the first shard whose bit is not set (Zhang et al., NSDI
//! 2024).

use super::list::List;
use super::{Newcomer, Policy, Slot};

#[derive(Debug, Default)]
pub(super) struct Sieve {
    queue: List,
    used: Vec<bool>,
    /// Position of the hand; none: at the oldest.
    hand: Option<Slot>,
}

impl Policy for Sieve {
    fn insert(&mut self, newcomer: Newcomer) {
        let at = newcomer.slot as usize;
        if at >= self.used.len() {
            self.used.resize(at + 1, false);
        }
        self.used[at] = false;
        self.queue.push(newcomer.slot);
    }

    fn hit(&mut self, slot: Slot) {
        self.used[slot as usize] = true;
    }

    fn remove(&mut self, slot: Slot, _evicted: bool) {
        if self.hand == Some(slot) {
            self.hand = self.queue.newer(slot);
        }
        self.queue.remove(slot);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        // Once to clear every bit, once to take; more would be the same again. A lap ends where the
        // hand falls off the newest end, and the first may have begun in the middle.
        let mut laps = 0;
        let mut at = self.hand;
        while laps < 3 {
            let Some(slot) = at.or_else(|| self.queue.oldest()) else { break };
            // One that may not go is passed over as it is, bit and all.
            if may_go(slot) && !std::mem::take(&mut self.used[slot as usize]) {
                self.hand = Some(slot);
                return Some(slot);
            }
            at = self.queue.newer(slot);
            laps += u32::from(at.is_none());
        }
        self.hand = at;
        None
    }
}
