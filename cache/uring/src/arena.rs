//! Allocation of a region's bytes, and the queue for them.
//!
//! Ranges are granted in the order of the requests; a smaller request never overtakes the head of
//! the queue, so large leases cannot starve.
//!
//! The list is kept in the region itself: two arenas of one region share it and cannot hand out the
//! same byte twice.
//!
//! Memory that nobody needs now may hold copies until somebody does ([`Arena::reclaim_from`]). A
//! lease that finds too little takes it back first. While a request waits, there are none: whoever
//! makes a copy looks for waiting requests afterwards, and a request looks for copies once it is in
//! the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_error::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::GRANULE;
use crate::ranges::Ranges;
use crate::region::Region;
use crate::span::Span;

/// Hands out exclusive, non-overlapping [`Span`]s of one region. Clones share the region.
#[derive(Debug, Clone)]
pub struct Arena {
    region: Arc<Region>,
}

/// Holder of memory that it gives back on request.
pub trait Reclaim: Send + Sync {
    /// Gives back a lease. Returns false if it has none.
    fn reclaim_one(&self) -> bool;

    /// Bytes of all its leases.
    fn bytes(&self) -> usize;
}

impl Arena {
    /// An arena over all of `region`.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Self {
        Self { region }
    }

    /// The region the spans lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes there are in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.region.len()
    }

    /// Bytes leased now, in whole granules, whoever leased them.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.region.free_list().lock().in_use
    }

    /// Bytes of [`Arena::in_use`] that the next lease takes back if it needs them.
    #[must_use]
    pub fn reclaimable(&self) -> usize {
        self.region.free_list().live_holders().iter().map(|holder| holder.bytes()).sum()
    }

    /// Leases `len` bytes (rounded up to 4 KiB, starting at a multiple of 4 KiB), or `None` if they
    /// are not free now and cannot be reclaimed, if someone is already waiting, or if `len` is
    /// zero.
    #[must_use]
    pub fn try_lease(&self, len: usize) -> Option<Span> {
        let len = granules(len)?;
        loop {
            let mut spans = self.region.free_list().lock();
            if !spans.waiters.is_empty() {
                return None;
            }
            if let Some(start) = spans.take(len) {
                drop(spans);
                return Some(Span::new(&self.region, start, len));
            }
            drop(spans);
            if !self.region.free_list().reclaim_one() {
                return None;
            }
        }
    }

    /// Reclaims leases from `holder`, while it lives, before a request waits.
    pub fn reclaim_from(&self, holder: Weak<dyn Reclaim>) {
        self.region.free_list().holders().push(holder);
    }

    /// Returns true if a request waits for memory.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.region.free_list().lock().waiters.is_empty()
    }

    /// Leases `len` bytes as [`Arena::try_lease`] does, waiting in the queue until a span is free.
    ///
    /// Dropping the future leaves the line; a range granted in that very moment goes back.
    ///
    /// # Errors
    /// `Full` if `len` is more than the arena's capacity, `Invalid` if it is zero.
    pub async fn lease(&self, len: usize) -> Result<Span> {
        let Some(rounded) = granules(len) else {
            return Err(Error::new(ErrorKind::Invalid, "a lease needs a length above zero")
                .at("bytes", len));
        };
        if rounded > self.capacity() {
            return Err(Error::new(ErrorKind::Full, "a lease is larger than its arena")
                .at("bytes", len)
                .at("capacity", self.capacity())
                .advise("raise the memory budget"));
        }
        if let Some(span) = self.try_lease(rounded) {
            return Ok(span);
        }
        let (grant, granted) = oneshot::channel();
        let ticket = self.region.free_list().queue(&self.region, rounded, grant);
        let _place = ArenaTicket { region: &self.region, ticket };
        // What was leased to a holder since the last look would never come back by itself.
        while self.is_awaited() && self.region.free_list().reclaim_one() {}
        granted.await.map_err(|_| Error::new(ErrorKind::Closed, "the arena's queue was closed"))
    }
}

/// `len` in whole granules; `None` for zero and for what overflows.
fn granules(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(GRANULE).filter(|len| *len > 0)
}

/// A place in the queue of a region; leaving it lets the next waiter try.
struct ArenaTicket<'a> {
    region: &'a Arc<Region>,
    ticket: u64,
}

impl Drop for ArenaTicket<'_> {
    fn drop(&mut self) {
        self.region.free_list().leave(self.region, self.ticket);
    }
}

/// Free spans of one region, the queue of those that wait for one, and those who give some back.
pub(crate) struct FreeList {
    spans: Mutex<Spans>,
    holders: Mutex<Vec<Weak<dyn Reclaim>>>,
}

struct Spans {
    free: Ranges,
    in_use: usize,
    /// One entry per live `lease` future, so as long as its callers allow.
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

struct Waiter {
    ticket: u64,
    len: usize,
    grant: oneshot::Sender<Span>,
}

impl Spans {
    fn take(&mut self, len: usize) -> Option<usize> {
        let start = self.free.take(len)?;
        self.in_use += len;
        Some(start)
    }
}

impl FreeList {
    pub(crate) fn new(len: usize) -> Self {
        let spans =
            Spans { free: Ranges::new(len), in_use: 0, waiters: VecDeque::new(), next_ticket: 0 };
        Self { spans: Mutex::new(spans), holders: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().expect("nothing panics while the list is locked")
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Weak<dyn Reclaim>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live_holders(&self) -> Vec<Arc<dyn Reclaim>> {
        let mut holders = self.holders();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has a holder give back a lease. Returns false if none has one.
    fn reclaim_one(&self) -> bool {
        self.live_holders().iter().any(|holder| holder.reclaim_one())
    }

    /// Ends a lease. `region` is the region this list belongs to.
    pub(crate) fn give_back(&self, region: &Arc<Region>, start: usize, len: usize) {
        let mut spans = self.lock();
        spans.free.give(start, len);
        spans.in_use -= len;
        Self::serve(spans, region);
    }

    fn queue(&self, region: &Arc<Region>, len: usize, grant: oneshot::Sender<Span>) -> u64 {
        let mut spans = self.lock();
        let ticket = spans.next_ticket;
        spans.next_ticket += 1;
        spans.waiters.push_back(Waiter { ticket, len, grant });
        // A span may have come free since the caller looked.
        Self::serve(spans, region);
        ticket
    }

    fn leave(&self, region: &Arc<Region>, ticket: u64) {
        let mut spans = self.lock();
        spans.waiters.retain(|waiter| waiter.ticket != ticket);
        Self::serve(spans, region);
    }

    /// Grants from the head of the queue while it fits. Spans are sent after the unlock: one whose
    /// future is gone drops at once and locks the list again.
    fn serve(mut spans: MutexGuard<'_, Spans>, region: &Arc<Region>) {
        let mut grants = Vec::new();
        while let Some(head) = spans.waiters.front() {
            let len = head.len;
            let Some(start) = spans.take(len) else { break };
            let waiter = spans.waiters.pop_front().expect("the head was there just before");
            grants.push((waiter.grant, start, len));
        }
        drop(spans);
        for (grant, start, len) in grants {
            drop(grant.send(Span::new(region, start, len)));
        }
    }
}
