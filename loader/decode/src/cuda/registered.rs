//! The daemon's memory, registered with the driver so that the device copies from it directly.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::slab::Slab;

use super::driver::{Driver, failed};

/// Largest piece registered at once: drivers of the 580 line fail above.
const REGISTER_MAX: usize = 64 << 30;

/// A slab that the device copies from directly.
pub(super) struct Registered {
    driver: Arc<Driver>,
    slab: Arc<Slab>,
    /// Registered address ranges; none if the driver rejects this memory.
    pieces: Vec<Range<usize>>,
}

impl Registered {
    /// Registers `slab`. A device that rejects it, as an H200 in confidential-computing mode does,
    /// copies through pinned memory.
    pub(super) fn new(driver: &Arc<Driver>, slab: &Arc<Slab>) -> Self {
        let mut registered =
            Self { driver: driver.clone(), slab: slab.clone(), pieces: Vec::new() };
        if let Err(error) = registered.register() {
            registered.unregister();
            tracing::warn!(
                bytes = slab.len(),
                %error,
                "the GPU cannot copy from the daemon's memory directly: the CPU copies batches to \
                 pinned memory first"
            );
        }
        registered
    }

    fn register(&mut self) -> Result<()> {
        if !self.driver.registers_read_only() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the GPU registers no memory that is read-only",
            ));
        }
        let _entered = self.driver.enter()?;
        let all = self.slab.addresses();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        for start in all.clone().step_by(REGISTER_MAX) {
            let piece = start..all.end.min(start + REGISTER_MAX);
            // SAFETY: the slab stays mapped while it is kept, which is until its pieces are
            // unregistered.
            let status =
                unsafe { sys::cuMemHostRegister_v2(start as *mut c_void, piece.len(), flags) };
            status.result().map_err(|error| failed("register the daemon's memory", error))?;
            self.pieces.push(piece);
        }
        Ok(())
    }

    fn unregister(&mut self) {
        if self.pieces.is_empty() || !self.driver.is_ours() {
            return;
        }
        let Ok(_entered) = self.driver.enter() else { return };
        for piece in self.pieces.drain(..) {
            // SAFETY: it was registered, and nothing copies from it any more: whoever replaces or
            // drops it waits for that.
            let _ = unsafe { sys::cuMemHostUnregister(piece.start as *mut c_void) };
        }
    }

    /// True if it is `slab` that is registered.
    pub(super) fn is_of(&self, slab: &Arc<Slab>) -> bool {
        Arc::ptr_eq(&self.slab, slab)
    }

    /// True if the device copies these bytes directly; false if they lie in two pieces.
    pub(super) fn has(&self, bytes: &[u8]) -> bool {
        let part = bytes.as_ptr_range();
        let holds = |piece: &Range<usize>| {
            piece.start <= part.start as usize && part.end as usize <= piece.end
        };
        self.pieces.iter().any(holds)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.unregister();
    }
}
