//! Allocation of a region's bytes, and the queue for them.
//!
//! Ranges are granted in the order of the requests; a smaller request never overtakes the head of
//! the queue, so large leases cannot starve.
//!
//! The book is kept in the region itself: two arenas of one region share it and cannot hand out the
//! same byte twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

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
        self.region.room().lock().in_use
    }

    /// Leases `len` bytes (rounded up to 4 KiB, starting at a multiple of 4 KiB), or `None` if they
    /// are not free now, if someone is already waiting, or if `len` is zero.
    #[must_use]
    pub fn try_lease(&self, len: usize) -> Option<Span> {
        let len = granules(len)?;
        let mut book = self.region.room().lock();
        if !book.waiters.is_empty() {
            return None;
        }
        let start = book.take(len)?;
        drop(book);
        Some(Span::new(&self.region, start, len))
    }

    /// Leases `len` bytes as [`Arena::try_lease`] does, waiting in line until there is room.
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
        let ticket = self.region.room().queue(&self.region, rounded, grant);
        let _place = Place { region: &self.region, ticket };
        granted.await.map_err(|_| Error::new(ErrorKind::Closed, "the arena's line was closed"))
    }
}

/// `len` in whole granules; `None` for zero and for what overflows.
fn granules(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(GRANULE).filter(|len| *len > 0)
}

/// A place in the line; leaving it lets the next in line have a try.
struct Place<'a> {
    region: &'a Arc<Region>,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.region.room().leave(self.region, self.ticket);
    }
}

/// The book of one region.
pub(crate) struct Room(Mutex<Book>);

struct Book {
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

impl Book {
    fn take(&mut self, len: usize) -> Option<usize> {
        let start = self.free.take(len)?;
        self.in_use += len;
        Some(start)
    }
}

impl Room {
    pub(crate) fn new(len: usize) -> Self {
        Self(Mutex::new(Book {
            free: Ranges::new(len),
            in_use: 0,
            waiters: VecDeque::new(),
            next_ticket: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("nothing panics while the book is open")
    }

    /// Ends a lease. `region` is the region this room belongs to.
    pub(crate) fn give_back(&self, region: &Arc<Region>, start: usize, len: usize) {
        let mut book = self.lock();
        book.free.give(start, len);
        book.in_use -= len;
        Self::serve(book, region);
    }

    fn queue(&self, region: &Arc<Region>, len: usize, grant: oneshot::Sender<Span>) -> u64 {
        let mut book = self.lock();
        let ticket = book.next_ticket;
        book.next_ticket += 1;
        book.waiters.push_back(Waiter { ticket, len, grant });
        // Room may have come free since the caller looked.
        Self::serve(book, region);
        ticket
    }

    fn leave(&self, region: &Arc<Region>, ticket: u64) {
        let mut book = self.lock();
        book.waiters.retain(|waiter| waiter.ticket != ticket);
        Self::serve(book, region);
    }

    /// Grants from the head of the line while it fits. Spans are sent with the book closed: one
    /// that finds its future gone drops at once and opens the book again.
    fn serve(mut book: MutexGuard<'_, Book>, region: &Arc<Region>) {
        let mut grants = Vec::new();
        while let Some(head) = book.waiters.front() {
            let len = head.len;
            let Some(start) = book.take(len) else { break };
            let waiter = book.waiters.pop_front().expect("the head was there a line ago");
            grants.push((waiter.grant, start, len));
        }
        drop(book);
        for (grant, start, len) in grants {
            drop(grant.send(Span::new(region, start, len)));
        }
    }
}
