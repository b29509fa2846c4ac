//! The right to run a fill.
//!
//! Its rule: whoever has it and whoever waits for it is counted, apart from the places themselves, so that
//! work that waits beside an idle worker is seen from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_error::Result;
use forebay_source::{Place, Queue, Rank};
use serde::{Deserialize, Serialize};

use super::FILLS;

/// Fills of a store now: fetches from origins, and moves between tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fills {
    /// Those at work.
    pub running: usize,
    /// Those whose turn has not come.
    pub waiting: usize,
    /// How many may be at work at once.
    pub limit: usize,
}

/// The turns of a store's fills: what is waited for goes before what is fetched ahead, and jobs that have
/// fewer under way before those that have more.
pub(crate) struct Flights {
    places: Arc<Queue>,
    running: AtomicUsize,
    waiting: AtomicUsize,
}

/// A fill's turn, until dropped.
pub(crate) struct Flight<'a> {
    // Before the permit: whoever is next must find one running less.
    _running: Counted<'a>,
    _place: Place,
}

/// One more of something, until dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one_more(of: &'a AtomicUsize) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flights {
    pub(crate) fn new() -> Self {
        let (running, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { places: Queue::new(FILLS), running, waiting }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(crate) async fn turn(&self, rank: &Rank) -> Result<Flight<'_>> {
        let waiting = Counted::one_more(&self.waiting);
        let place = self.places.place(rank).await?;
        let running = Counted::one_more(&self.running);
        drop(waiting);
        Ok(Flight { _running: running, _place: place })
    }

    /// No more fills begin.
    pub(crate) fn close(&self) {
        self.places.close();
    }

    /// Whether a fill that begins now has its turn at once.
    pub(crate) fn is_idle(&self) -> bool {
        let fills = self.report();
        fills.waiting == 0 && fills.running < fills.limit
    }

    pub(crate) fn report(&self) -> Fills {
        Fills {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            limit: FILLS,
        }
    }
}
