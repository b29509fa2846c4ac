//! Bytes, reserved before they are written.
//!
//! One rule: the sum of all reservations never passes the capacity through [`Budget::reserve`];
//! what recovery finds on disk is entered as it is, and evicted down before anything new comes in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A hard limit on bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    capacity: u64,
    used: Mutex<u64>,
    freed: Notify,
}

/// Bytes taken from a budget until dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self { capacity, used: Mutex::new(0), freed: Notify::new() })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        *self.lock()
    }

    /// Takes `bytes` if that many are free.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let mut used = self.lock();
        let after = used.checked_add(bytes).filter(|after| *after <= self.capacity)?;
        *used = after;
        Some(Reservation { budget: self.clone(), bytes })
    }

    /// Enters bytes that are on the disk already, even past the capacity.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Reservation {
        let mut used = self.lock();
        *used = used.saturating_add(bytes);
        Reservation { budget: self.clone(), bytes }
    }

    /// Completes when bytes were freed after this call.
    pub(crate) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Wakes whoever waits for room: something that was in use is not any more.
    pub(crate) fn wake(&self) {
        self.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = self.budget.lock();
        *used = used.saturating_sub(self.bytes);
        drop(used);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reserved_past_the_capacity() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        let second = budget.reserve(40).unwrap();
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 40);
        assert!(budget.reserve(u64::MAX).is_none());
        drop(second);
        let found = budget.enter(150);
        assert!(budget.reserve(1).is_none(), "what was found counts");
        drop(found);
        assert_eq!(budget.used(), 0);
    }
}
