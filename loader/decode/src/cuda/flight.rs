//! Batches in flight, of which a device has no more than overlap: more would take memory and save
//! no time.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use forebay_error::Result;

use super::driver::Done;
use super::nvjpeg::BATCHES;

/// Batches in flight on a device.
#[derive(Debug, Default)]
pub(super) struct Flight {
    batches: Mutex<Batches>,
    /// A place is free, or a batch has an end to wait for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Batches {
    /// Those whose end is not marked yet.
    queueing: usize,
    /// Ends of the others, the oldest first.
    ends: VecDeque<Done>,
}

/// Place of a batch that is being queued. Dropped without an end, it is free again.
#[derive(Debug)]
pub(super) struct Place<'f> {
    flight: &'f Flight,
    end: Option<Done>,
}

impl Flight {
    /// Waits for a place. Each is taken once, whatever other threads begin meanwhile.
    ///
    /// # Errors
    /// The error of the batch that had it before.
    pub(super) fn begin(&self) -> Result<Place<'_>> {
        let mut batches = self.batches();
        let before = loop {
            if batches.queueing + batches.ends.len() < BATCHES {
                break None;
            }
            if let Some(oldest) = batches.ends.pop_front() {
                break Some(oldest);
            }
            // All are being queued, by threads that end them.
            batches = self.changed.wait(batches).unwrap_or_else(PoisonError::into_inner);
        };
        batches.queueing += 1;
        drop(batches);
        let place = Place { flight: self, end: None };
        before.map_or(Ok(()), |before| before.wait())?;
        Ok(place)
    }

    /// Takes the ends of all batches that have one.
    pub(super) fn take_ends(&self) -> VecDeque<Done> {
        std::mem::take(&mut self.batches().ends)
    }

    fn batches(&self) -> MutexGuard<'_, Batches> {
        // Each change is one step.
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// Marks the batch's end: the place is free then.
    pub(super) fn ends_at(&mut self, done: Done) {
        self.end = Some(done);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut batches = self.flight.batches();
        batches.queueing -= 1;
        batches.ends.extend(self.end.take());
        drop(batches);
        self.flight.changed.notify_one();
    }
}
