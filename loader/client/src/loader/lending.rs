//! Slots that the consumer keeps as views, and the limit on them.
//!
//! However long the consumer keeps its views, the daemon has a slot and contiguous space for the
//! next batch. A batch that cannot be lent is copied.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lease::Lease;

/// The daemon leases whole pages, so a page of which a lent batch has a byte is not free.
const PAGE: u64 = 4 << 10;

/// Slots the consumer holds as views, and copies made because it holds many.
#[derive(Debug)]
pub(super) struct Lending {
    at_most: usize,
    book: Mutex<Book>,
    copies: AtomicU64,
}

#[derive(Debug, Default)]
struct Book {
    lent: Vec<Entry>,
    /// The largest batch so far.
    largest: u64,
    last_number: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The slab, told from others by where it is mapped.
    slab: usize,
    range: Range<u64>,
}

/// A lent slot and the shards that its batch borrows, until dropped.
#[derive(Debug)]
pub(super) struct Loan {
    _lease: Arc<Lease>,
    lending: Arc<Lending>,
    number: u64,
}

impl Lending {
    /// For a job of `prefetch` slots: half of them may be with the consumer, for the daemon needs
    /// slots to go on.
    pub(super) fn new(prefetch: usize) -> Self {
        Self { at_most: prefetch / 2, book: Mutex::default(), copies: AtomicU64::new(0) }
    }

    /// Batches copied so far.
    pub(super) fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Lends the slot whose batch lies within `range`, if that is known; else counts a copy.
    pub(super) fn lend(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        range: Option<Range<u64>>,
    ) -> Option<Loan> {
        let loan =
            range.zip(lease.spare()).and_then(|(range, spare)| self.enter(lease, range, spare));
        if loan.is_none() {
            self.copies.fetch_add(1, Ordering::Relaxed);
        }
        loan
    }

    fn enter(self: &Arc<Self>, lease: &Arc<Lease>, range: Range<u64>, spare: u64) -> Option<Loan> {
        let slab = lease.slab().addresses().start;
        let mut book = self.book();
        book.largest = book.largest.max(range.end - range.start);
        let of_this_slab = book.lent.iter().filter(|entry| entry.slab == slab);
        let ranges = of_this_slab.map(|entry| entry.range.clone()).chain([range.clone()]);
        let room = largest_gap(lease.slab().len() as u64, ranges.collect());
        // Without another batch there is nothing to reserve.
        let wanted = if spare == 0 { 0 } else { spare.max(book.largest) };
        if book.lent.len() >= self.at_most || room < wanted {
            return None;
        }
        book.last_number += 1;
        let number = book.last_number;
        book.lent.push(Entry { number, slab, range });
        drop(book);
        Some(Loan { _lease: lease.clone(), lending: self.clone(), number })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lending.book().lent.retain(|entry| entry.number != self.number);
    }
}

/// The largest piece of `len` bytes of which none of the ranges has a page.
fn largest_gap(len: u64, mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let (mut gap, mut free_from) = (0, 0);
    for range in ranges {
        gap = gap.max((range.start / PAGE * PAGE).saturating_sub(free_from));
        free_from = free_from.max(range.end.next_multiple_of(PAGE));
    }
    gap.max(len.saturating_sub(free_from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_gap_is_the_longest_free_range() {
        let page = |from: u64, until: u64| from * PAGE..until * PAGE;
        assert_eq!(largest_gap(8 * PAGE, vec![]), 8 * PAGE);
        assert_eq!(largest_gap(8 * PAGE, vec![page(3, 4)]), 4 * PAGE);
        assert_eq!(largest_gap(8 * PAGE, vec![page(5, 6), page(2, 3)]), 2 * PAGE);
        assert_eq!(
            largest_gap(8 * PAGE, std::iter::once(5 * PAGE + 1..5 * PAGE + 2).collect()),
            5 * PAGE
        );
        assert_eq!(largest_gap(8 * PAGE, vec![page(0, 8)]), 0);
        assert_eq!(largest_gap(8 * PAGE, vec![page(1, 5), page(2, 3)]), 3 * PAGE);
    }
}
