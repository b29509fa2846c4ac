//! The in-flight table: owner of all that the kernel may touch.
//!
//! Its rule: **a slot owns file and span from before the kernel learns of them until its completion
//! has been read.** No future, handle or error path can take them out earlier. If the ring's thread
//! ends with slots still occupied (the kernel refused to go on), they are leaked: a leak is
//! bounded by the depth, a write into freed memory is not bounded by anything.

use std::mem;

use super::flight::Flight;

/// Completion tag of the read on the wake-up eventfd; slots are numbered from zero.
pub(super) const WAKE: u64 = u64::MAX;

pub(super) struct Slots {
    slots: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Buffer for the eventfd's count.
    wake: Box<[u8; 8]>,
    armed: bool,
}

impl Slots {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            wake: Box::new([0; 8]),
            armed: false,
        }
    }

    /// Operations in flight.
    pub(super) fn occupied(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Operations that may still join.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes an operation over; its slot number is its completion tag.
    pub(super) fn occupy(&mut self, flight: Flight) -> usize {
        let slot = self.free.pop().expect("the ring takes no more orders than it has room for");
        self.slots[slot] = Some(flight);
        slot
    }

    /// The operation in a slot that the kernel has just completed or not seen yet.
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Flight> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Gives a completed operation out.
    pub(super) fn vacate(&mut self, slot: usize) -> Option<Flight> {
        let flight = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(flight)
    }

    /// Lends the wake-up word to the kernel; `None` while it has it already.
    pub(super) fn arm(&mut self) -> Option<*mut u8> {
        if mem::replace(&mut self.armed, true) { None } else { Some(self.wake.as_mut_ptr()) }
    }

    /// The kernel has given the wake-up word back.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    pub(super) fn armed(&self) -> bool {
        self.armed
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for flight in self.slots.iter_mut().filter_map(Option::take) {
            flight.leak();
        }
        if self.armed {
            mem::forget(mem::replace(&mut self.wake, Box::new([0; 8])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flight::tests::transfer;
    use super::super::flight::{Direction, Flight};
    use super::*;

    #[test]
    fn slots_are_reused_and_counted() {
        let mut slots = Slots::new(2);
        let (first, ..) = transfer(Direction::Read, 1);
        let (second, ..) = transfer(Direction::Read, 1);
        let slot = slots.occupy(Flight::Transfer(first));
        assert_eq!((slots.occupied(), slots.room()), (1, 1));
        assert!(slots.vacate(slot).is_some());
        assert!(slots.vacate(slot).is_none(), "a completion counts once");
        assert!(slots.vacate(99).is_none());
        assert_eq!(slots.occupy(Flight::Transfer(second)), slot);
        slots.vacate(slot).expect("it was occupied").land(Ok(0));
        assert_eq!(slots.room(), 2);
    }

    #[test]
    fn memory_in_flight_is_leaked_not_reused() {
        let mut slots = Slots::new(1);
        let (flying, mut answer, arena) = transfer(Direction::Read, 1);
        slots.occupy(Flight::Transfer(flying));
        drop(slots);
        assert!(answer.try_recv().is_err(), "the caller learns that no answer will come");
        assert_eq!(arena.in_use(), 4096, "no one is given these bytes again");
    }

    #[test]
    fn the_wake_word_is_lent_once() {
        let mut slots = Slots::new(1);
        assert!(slots.arm().is_some());
        assert!(slots.arm().is_none());
        slots.disarm();
        assert!(slots.arm().is_some());
        slots.disarm();
        assert!(!slots.armed());
    }
}
