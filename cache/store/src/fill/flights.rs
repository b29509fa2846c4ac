//! The right to run a fill.
//!
//! Its rule: whoever has it and whoever waits for it is counted, apart from the permits themselves, so that
//! work that waits beside an idle worker is seen from outside.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_error::Result;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::FILLS;
use crate::tier::shutting_down;

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

/// The turns of a store's fills.
pub(crate) struct Flights {
    permits: Semaphore,
    running: AtomicUsize,
    waiting: AtomicUsize,
}

/// A fill's turn, until dropped.
pub(crate) struct Flight<'a> {
    // Before the permit: whoever is next must find one running less.
    _running: Counted<'a>,
    _permit: SemaphorePermit<'a>,
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
        Self { permits: Semaphore::new(FILLS), running, waiting }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// `Closed` once no more fills begin.
    pub(crate) async fn turn(&self) -> Result<Flight<'_>> {
        let waiting = Counted::one_more(&self.waiting);
        let permit = self.permits.acquire().await.map_err(|_| shutting_down())?;
        let running = Counted::one_more(&self.running);
        drop(waiting);
        Ok(Flight { _running: running, _permit: permit })
    }

    /// No more fills begin.
    pub(crate) fn close(&self) {
        self.permits.close();
    }

    pub(crate) fn report(&self) -> Fills {
        Fills {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            limit: FILLS,
        }
    }
}
