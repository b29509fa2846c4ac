//! Guests: copies of other owners' shards in the room that a node's own shards leave.
//!
//! A node copies a shard as it reads most of it, if it will read it again before the copy would
//! have to go: of the guests here, fewer than there is room for are read before. The guest that is
//! read last goes first.

use std::collections::BTreeSet;

use super::alone::NEVER;

/// Outcome of a read of another owner's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuestRead {
    /// A guest was there.
    Here,
    /// Records came from the owner.
    Records,
    /// The whole shard came from the owner, and stays.
    Copied,
}

/// Guests of one node.
pub(super) struct Guests {
    room: u64,
    /// By their next read.
    guests: BTreeSet<(usize, u32)>,
    /// Next read of each shard that is here.
    next: Vec<usize>,
}

impl Guests {
    /// Creates the guests of a node with room for so many, of so many shards.
    pub(super) fn new(room: u64, shards: usize) -> Self {
        Self { room, guests: BTreeSet::new(), next: vec![NEVER; shards] }
    }

    /// Reads a shard that will be read next at `next`. `most`: most of it is read now.
    pub(super) fn read(&mut self, shard: u32, next: usize, most: bool) -> GuestRead {
        let before = std::mem::replace(&mut self.next[shard as usize], NEVER);
        let was_here = before != NEVER && self.guests.remove(&(before, shard));
        let may_come = was_here || most;
        if may_come && next != NEVER && self.read_before(next) < self.room {
            if self.guests.len() as u64 == self.room {
                // It is read later than this one.
                self.guests.pop_last();
            }
            self.guests.insert((next, shard));
            self.next[shard as usize] = next;
            return if was_here { GuestRead::Here } else { GuestRead::Copied };
        }
        if was_here { GuestRead::Here } else { GuestRead::Records }
    }

    /// Returns the number of guests that are read before `next`.
    fn read_before(&self, next: usize) -> u64 {
        // Counted from the end: a newcomer that stays is usually read late.
        let later = self.guests.range((next, 0)..).count();
        (self.guests.len() - later) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_those_read_soonest() {
        let mut guests = Guests::new(2, 5);
        assert_eq!(guests.read(0, 10, true), GuestRead::Copied);
        assert_eq!(guests.read(1, 12, false), GuestRead::Records, "a small part of it");
        assert_eq!(guests.read(1, 12, true), GuestRead::Copied);
        assert_eq!(guests.read(2, 14, true), GuestRead::Records, "both are read before");
        assert_eq!(guests.read(3, 11, true), GuestRead::Copied);
        assert_eq!(guests.read(0, NEVER, true), GuestRead::Here);
        assert_eq!(guests.read(0, 30, true), GuestRead::Copied, "it had left");
        assert_eq!(guests.read(3, 31, true), GuestRead::Here);
        assert_eq!(guests.read(1, 40, true), GuestRead::Records, "it went for shard 3");
        let mut none = Guests::new(0, 1);
        assert_eq!(none.read(0, 1, true), GuestRead::Records);
    }
}
