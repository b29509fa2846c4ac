//! Budgets: bytes of a tier and of the shares it is charged to, reserved before they are written.
//!
//! Rule: [`Budget::reserve`] never lets the sum of all reservations exceed the capacity. Bytes that
//! recovery finds on disk are entered as they are, and evicted before anything new comes in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Hard limit on bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    capacity: AtomicU64,
    /// Usable bytes: less than the capacity if others use the disk, too.
    limit: AtomicU64,
    used: Mutex<u64>,
    /// Bytes that trainers read in place.
    lent: Mutex<u64>,
    freed: Notify,
}

/// Bytes taken from a budget until dropped.
#[derive(Debug)]
struct Reservation {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Reservation {
    fn new(budget: &Arc<Budget>, bytes: u64) -> Self {
        Self { budget: budget.clone(), bytes: AtomicU64::new(bytes) }
    }

    /// Takes over the bytes of another reservation of the same budget.
    fn absorb(&self, other: &Self) {
        self.bytes.fetch_add(other.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns all but `bytes`.
    fn shrink(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::Relaxed);
        self.budget.give_back(before.saturating_sub(bytes));
    }
}

/// Bytes of a budget that trainers read in place, until dropped.
#[derive(Debug)]
struct LentBytes {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        *self.budget.lent_bytes() -= self.bytes;
    }
}

/// Entry of a space among those that trainers read in place, until dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    _of: [LentBytes; 3],
}

/// Bytes of a tier, and of the shares of a data set and a tenant, until dropped.
#[derive(Debug)]
pub(crate) struct Space {
    // Dropped before `tier`: a waiter that the tier wakes finds room in all three.
    shares: Mutex<[Reservation; 2]>,
    tier: Reservation,
}

impl Space {
    /// Takes `bytes` from all three budgets, or from none.
    pub(crate) fn reserve(
        tier: &Arc<Budget>,
        [dataset, tenant]: [&Arc<Budget>; 2],
        bytes: u64,
    ) -> Option<Self> {
        let shares = [dataset.reserve(bytes)?, tenant.reserve(bytes)?];
        Some(Self { shares: Mutex::new(shares), tier: tier.reserve(bytes)? })
    }

    /// Enters bytes that are on the disk already, even past the limits.
    pub(crate) fn enter(tier: &Arc<Budget>, shares: [&Arc<Budget>; 2], bytes: u64) -> Self {
        let shares = shares.map(|share| share.enter(bytes));
        Self { shares: Mutex::new(shares), tier: tier.enter(bytes) }
    }

    /// Charges the bytes to other shares, even past their limits: the bytes are there already.
    pub(crate) fn charge_to(&self, budgets: [&Arc<Budget>; 2]) {
        let bytes = self.bytes();
        for (own, budget) in self.shares().iter_mut().zip(budgets) {
            if !Arc::ptr_eq(&own.budget, budget) {
                *own = budget.enter(bytes);
            }
        }
    }

    fn shares(&self) -> MutexGuard<'_, [Reservation; 2]> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tier.bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` more from all three budgets, or from none. Returns true on success.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let shares = self.shares();
        let budgets = [&shares[0].budget, &shares[1].budget];
        let Some(more) = Self::reserve(&self.tier.budget, budgets, bytes) else { return false };
        drop(shares);
        self.join(&more);
        true
    }

    /// Enters the bytes among those that trainers read in place, which are half of each budget at
    /// most: other shards find room in the other half.
    pub(crate) fn lend(&self) -> Option<Lent> {
        let (shares, bytes) = (self.shares(), self.bytes());
        let [dataset, tenant] = [&shares[0].budget, &shares[1].budget];
        let _of = [dataset.lend(bytes)?, tenant.lend(bytes)?, self.tier.budget.lend(bytes)?];
        Some(Lent { _of })
    }

    /// Takes over the bytes of another space of the same budgets.
    pub(crate) fn join(&self, other: &Self) {
        for (own, other) in self.shares().iter().zip(other.shares().iter()) {
            own.absorb(other);
        }
        self.tier.absorb(&other.tier);
    }

    /// Returns all but `bytes`.
    pub(crate) fn shrink(&self, bytes: u64) {
        self.shares().iter().for_each(|share| share.shrink(bytes));
        self.tier.shrink(bytes);
    }
}

impl Budget {
    pub(crate) fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            capacity: AtomicU64::new(capacity),
            limit: AtomicU64::new(capacity),
            used: Mutex::new(0),
            lent: Mutex::new(0),
            freed: Notify::new(),
        })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Changes the capacity and the usable part of it. Reservations above it stay.
    pub(crate) fn set_capacity(&self, bytes: u64, limit: u64) {
        self.capacity.store(bytes, Ordering::Relaxed);
        self.set_limit(limit);
    }

    pub(crate) fn used(&self) -> u64 {
        *self.lock()
    }

    /// Usable bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Lowers or raises the usable bytes, never past the capacity.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let before = self.limit.swap(bytes.min(self.capacity()), Ordering::Relaxed);
        if before < bytes {
            self.wake();
        }
    }

    /// Takes `bytes` if that many are free.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let mut used = self.lock();
        let after = used.checked_add(bytes).filter(|after| *after <= self.limit())?;
        *used = after;
        Some(Reservation::new(self, bytes))
    }

    /// Enters bytes that are on the disk already, even past the capacity.
    fn enter(self: &Arc<Self>, bytes: u64) -> Reservation {
        let mut used = self.lock();
        *used = used.saturating_add(bytes);
        Reservation::new(self, bytes)
    }

    /// Enters bytes of a shard that is lent, if half of the usable bytes are enough for all. A
    /// shard of more than an eighth is not lent: few of that size find room beside it.
    fn lend(self: &Arc<Self>, bytes: u64) -> Option<LentBytes> {
        let mut lent = self.lent_bytes();
        let limit = self.limit();
        let is_small = bytes <= limit / 8;
        *lent = lent.checked_add(bytes).filter(|after| is_small && *after <= limit / 2)?;
        Some(LentBytes { budget: self.clone(), bytes })
    }

    /// Bytes that trainers read in place.
    pub(crate) fn lent(&self) -> u64 {
        *self.lent_bytes()
    }

    fn lent_bytes(&self) -> MutexGuard<'_, u64> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, bytes: u64) {
        let mut used = self.lock();
        *used = used.saturating_sub(bytes);
        drop(used);
        self.wake();
    }

    /// Returns true if `bytes` are free.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        self.lock().checked_add(bytes).is_some_and(|after| after <= self.limit())
    }

    /// Completes when bytes are freed after this call.
    pub(crate) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Wakes everyone who waits for room, because a shard is no longer in use.
    pub(crate) fn wake(&self) {
        self.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_capacity() {
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

    #[test]
    fn space_takes_bytes_from_all_budgets_or_none() {
        let (tier, dataset, tenant) = (Budget::new(100), Budget::new(50), Budget::new(70));
        let used = || (tier.used(), dataset.used(), tenant.used());
        let space = Space::reserve(&tier, [&dataset, &tenant], 50).unwrap();
        assert!(Space::reserve(&tier, [&dataset, &tenant], 1).is_none());
        assert_eq!(used(), (50, 50, 50));
        let large = Budget::new(u64::MAX);
        assert!(Space::reserve(&tier, [&large, &tenant], 21).is_none(), "the tenant's is short");
        assert!(Space::reserve(&tier, [&large, &large], 51).is_none(), "the tier's is short");
        assert_eq!((used(), large.used()), ((50, 50, 50), 0));
        drop(space);
        assert_eq!(used(), (0, 0, 0));
    }

    #[test]
    fn space_can_be_charged_to_other_shares() {
        let tier = Budget::new(100);
        let [a, b, c] = [100, 10, 70].map(Budget::new);
        let used = || (tier.used(), a.used(), b.used(), c.used());
        let space = Space::reserve(&tier, [&a, &c], 40).unwrap();
        space.charge_to([&b, &c]);
        assert_eq!(used(), (40, 0, 40, 40));
        assert!(!space.grow(1), "it is above what it may have");
        assert!(Space::reserve(&tier, [&b, &c], 1).is_none());
        space.charge_to([&b, &a]);
        assert_eq!(used(), (40, 40, 40, 0));
        space.shrink(5);
        assert_eq!(used(), (5, 5, 5, 0));
        assert!(space.grow(5));
        assert_eq!(used(), (10, 10, 10, 0));
        drop(space);
        assert_eq!(used(), (0, 0, 0, 0));
    }

    #[test]
    fn half_of_each_budget_is_lent_at_most() {
        let (tier, dataset, tenant) = (Budget::new(160), Budget::new(80), Budget::new(160));
        let lent = || (tier.lent(), dataset.lent(), tenant.lent());
        let space = |dataset, bytes| Space::enter(&tier, [dataset, &tenant], bytes);
        assert!(space(&dataset, 11).lend().is_none(), "more than an eighth of the data set's");
        assert_eq!(lent(), (0, 0, 0), "all or none");
        let first: Vec<_> = (0..4).map(|_| space(&dataset, 10).lend().unwrap()).collect();
        assert_eq!(lent(), (40, 40, 40));
        assert!(space(&dataset, 1).lend().is_none(), "half of the data set's is lent");
        let other = Budget::new(u64::MAX);
        let second: Vec<_> = (0..2).map(|_| space(&other, 20).lend().unwrap()).collect();
        assert!(space(&other, 1).lend().is_none(), "half of the tier's is lent");
        drop(first);
        assert_eq!((lent(), other.lent()), ((40, 0, 40), 40));
        drop(second);
        assert_eq!((lent(), other.lent()), ((0, 0, 0), 0));
    }

    #[test]
    fn new_capacity_counts_at_once() {
        let (tier, share) = (Budget::new(100), Budget::new(50));
        let space = Space::reserve(&tier, [&share, &share], 20).unwrap();
        share.set_capacity(30, 30);
        assert_eq!((share.used(), share.limit(), share.has(1)), (40, 30, false));
        share.set_capacity(60, 60);
        assert_eq!((share.used(), share.limit(), share.has(20)), (40, 60, true));
        drop(space);
        assert_eq!(share.used(), 0);
    }

    #[test]
    fn space_grows_in_all_budgets_or_none() {
        let (tier, dataset, tenant) = (Budget::new(100), Budget::new(50), Budget::new(70));
        let used = || (tier.used(), dataset.used(), tenant.used());
        let space = Space::reserve(&tier, [&dataset, &tenant], 20).unwrap();
        assert!(space.grow(30));
        assert!(!space.grow(1), "the data set's is short");
        assert_eq!((used(), space.bytes()), ((50, 50, 50), 50));
        space.shrink(15);
        assert_eq!((used(), space.bytes()), ((15, 15, 15), 15));
        space.shrink(40);
        assert_eq!(space.bytes(), 15, "nothing is taken by giving back");
        drop(space);
        assert_eq!(used(), (0, 0, 0));
    }
}
