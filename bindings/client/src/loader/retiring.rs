//! Leases on slots that a device still reads from.
//!
//! Its rule: a slot goes back to the daemon when the device is done with the batch, and nobody else waits for that.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use forebay_decode::Done;
use forebay_error::{Doing, Result};

use crate::lease::Lease;

/// A thread that waits for the device.
#[derive(Debug)]
pub(super) struct Retiring {
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
        let thread = std::thread::Builder::new()
            .name("fb-retire".into())
            .spawn(move || {
                for (done, _lease) in retired {
                    if let Err(error) = done.wait() {
                        // Whoever takes the batch hears of it; the slot is not read any more.
                        tracing::warn!(%error, "the GPU failed at a batch");
                    }
                }
            })
            .doing("start the thread that waits for the GPU")?;
        Ok(Self { leases: Some(leases), thread: Some(thread) })
    }

    /// Keeps `lease` until `done`.
    pub(super) fn keep(&self, done: Done, lease: Arc<Lease>) {
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
            // Its own panics were reported when they happened.
            let _ = thread.join();
        }
    }
}
