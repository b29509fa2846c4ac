//! Leases on slots that a device still reads from.
//!
//! A slot goes back to the daemon when the device is done with the batch, and nobody else waits for
//! that. From when until when it was with the device is noted, for a batch that waits for such a
//! slot waits for the device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use forebay_decode::Done;
use forebay_error::{Doing, Result};
use forebay_wire::clock::now_ns;

use crate::lease::Lease;

/// Busy times of the device with recent batches, in nanoseconds of the node's monotonic clock.
#[derive(Debug)]
pub(super) struct Busy {
    stretches: Mutex<VecDeque<Range<u64>>>,
    limit: usize,
}

impl Busy {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Range<u64>>> {
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One stretch per batch, oldest first; the device is still at those that have no end.
    pub(super) fn stretches(&self) -> Vec<Range<u64>> {
        self.lock().iter().cloned().collect()
    }

    fn begin(&self) {
        let mut stretches = self.lock();
        if stretches.len() >= self.limit {
            stretches.pop_front();
        }
        stretches.push_back(now_ns()..u64::MAX);
    }

    /// The device ends batches in the order in which it got them.
    fn end(&self) {
        if let Some(first) = self.lock().iter_mut().find(|stretch| stretch.end == u64::MAX) {
            first.end = now_ns();
        }
    }
}

/// A thread that waits for the device.
#[derive(Debug)]
pub(super) struct Retiring {
    busy: Arc<Busy>,
    /// Nothing once it is to end.
    leases: Option<Sender<(Done, Arc<Lease>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Retiring {
    /// One that holds `limit` leases at most.
    ///
    /// # Errors
    /// `Unavailable` if the system refuses the thread.
    pub(super) fn new(limit: usize) -> Result<Self> {
        let (leases, retired) = bounded::<(Done, Arc<Lease>)>(limit);
        // As many again as can be with the device: those in line, one that is waited for and one
        // that comes.
        let limit = 2 * (limit + 2);
        let busy = Arc::new(Busy { stretches: Mutex::default(), limit });
        let ended = busy.clone();
        let thread = std::thread::Builder::new()
            .name("fb-retire".into())
            .spawn(move || {
                for (done, _lease) in retired {
                    if let Err(error) = done.wait() {
                        // The batch's consumer gets the error; the slot is no longer read.
                        tracing::warn!(%error, "the GPU failed at a batch");
                    }
                    ended.end();
                }
            })
            .doing("start the thread that waits for the GPU")?;
        Ok(Self { busy, leases: Some(leases), thread: Some(thread) })
    }

    /// Returns the busy times.
    pub(super) fn busy(&self) -> Arc<Busy> {
        self.busy.clone()
    }

    /// Keeps `lease` until `done`.
    pub(super) fn keep(&self, done: Done, lease: Arc<Lease>) {
        self.busy.begin();
        if let Some(leases) = &self.leases {
            // The thread ends only with this.
            let _ = leases.send((done, lease));
        }
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        self.leases = None;
        if let Some(thread) = self.thread.take() {
            // Panics of the thread were reported when they happened.
            let _ = thread.join();
        }
    }
}
