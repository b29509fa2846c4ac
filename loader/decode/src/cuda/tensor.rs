//! A tensor on a device, and the ways it leaves: copied to a framework's memory, or lent.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::sync::{Arc, OnceLock};

use cudarc::driver::{DriverError, sys};
use forebay_error::Result;

use super::driver::{Done, Driver, failed};
use super::memory::Memory;
use super::returns::Returns;
use crate::dtype::DType;

/// A dense array in C order on a device, written by work queued there.
#[derive(Debug)]
pub struct DeviceTensor {
    /// Element type.
    pub dtype: DType,
    /// Elements per dimension, the outermost first.
    pub shape: Vec<usize>,
    /// Present until it is taken.
    memory: Option<Memory>,
    /// Set once its batch is queued.
    ready: Arc<OnceLock<Done>>,
    driver: Arc<Driver>,
    returns: Returns,
}

impl DeviceTensor {
    /// Makes a tensor in `memory`, which is written by the work before `ready`.
    pub(super) fn new(
        (dtype, shape): (DType, Vec<usize>),
        memory: Memory,
        ready: Arc<OnceLock<Done>>,
        (driver, returns): (&Arc<Driver>, &Returns),
    ) -> Self {
        let (driver, returns) = (driver.clone(), returns.clone());
        Self { dtype, shape, memory: Some(memory), ready, driver, returns }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("taken by its end only")
    }

    /// Returns its device's number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Returns its address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory().at()
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory().len()
    }

    /// True if it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies it to `to`, queued on a framework's stream; its own memory is free after that.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `to` is device memory as long as the tensor, whose owner orders its use by that stream,
    /// which belongs to the device's primary context.
    pub unsafe fn copy_to(mut self, to: u64, stream: u64) -> Result<()> {
        let _entered = self.driver.enter()?;
        // SAFETY: as the caller guarantees.
        let stream = unsafe { self.driver.stream_of(stream) };
        stream.after(self.ready()?)?;
        // Its end is that of the copy from here on; without one, it is freed after all work.
        let mut memory = self.memory.take().expect("taken by its end only");
        if memory.len() > 0 {
            // SAFETY: as the caller guarantees.
            unsafe { stream.copy(memory.at(), to, memory.len()) }?;
        }
        memory.used_until(&stream.done()?);
        Ok(())
    }

    /// Lends it to a user whose first work with it is queued on `stream`; without one, to anybody
    /// at once.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `stream` belongs to the device's primary context.
    pub unsafe fn lend(mut self, stream: Option<u64>) -> Result<Lent> {
        let _entered = self.driver.enter()?;
        self.returns.start()?;
        match stream {
            None => self.ready()?.wait()?,
            Some(address) => {
                // SAFETY: as the caller guarantees.
                let stream = unsafe { self.driver.stream_of(address) };
                stream.after(self.ready()?)?;
            }
        }
        // Whoever drops it may be where the driver must not be called, not even to end an event.
        self.ready = Arc::default();
        Ok(Lent(self))
    }

    fn ready(&self) -> Result<&Done> {
        self.ready
            .get()
            .ok_or_else(|| failed("use a tensor", DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)))
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        // A tensor that nobody took is free once it is made.
        if let Some(memory) = &mut self.memory
            && let Some(ready) = self.ready.get()
        {
            memory.used_until(ready);
        }
    }
}

/// A tensor lent to a framework. Once dropped, its memory is reused after all work that was queued
/// on the device by then.
#[derive(Debug)]
pub struct Lent(DeviceTensor);

impl Lent {
    /// Returns the tensor.
    #[must_use]
    pub fn tensor(&self) -> &DeviceTensor {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.0.memory.take()
            && self.0.driver.is_ours()
        {
            self.0.returns.take(memory);
        }
    }
}
