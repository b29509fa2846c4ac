//! A GPU that decodes: opened once per loader, with its streams, its memory and its decoder.
//!
//! Files are copied on one stream and decoded on another, and no batch waits for memory of the
//! batch before, so that copies, decoding and kernels of up to three batches overlap.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_error::Result;
use forebay_wire::slab::Slab;

use super::driver::{Driver, Stream};
use super::flight::Flight;
use super::memory::{Memory, Pool, Side};
use super::nvjpeg::{Backend, Decoder};
use super::registered::Registered;
use super::returns::Returns;
use super::submission::Submission;

/// Part of the device's memory that idle blocks take at most: a sixteenth, 5 GB of an H100's. Three
/// batches of 256 photos with their files and tensors take some 0.5 GB. As much may be lent memory
/// that was dropped.
const DEVICE_IDLE_PART: usize = 16;

/// Idle pinned memory kept: tables, and rows that the CPU decoded, of three batches of 256 float32
/// images of 224 pixels, which take 154 MB each, twice over.
const HOST_IDLE_MAX: usize = 1 << 30;

/// A GPU that decodes batches.
pub struct Device {
    pub(super) driver: Arc<Driver>,
    pub(super) copies: Stream,
    pub(super) work: Stream,
    memory: Pool,
    pinned: Pool,
    pub(super) returns: Returns,
    /// Present if the GPU was opened for images.
    decoder: Option<Decoder>,
    registered: Mutex<Option<Registered>>,
    flight: Flight,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.driver.ordinal()).finish_non_exhaustive()
    }
}

/// nvJPEG as it is asked for: paths to try first, and the backend to use, if not the first that
/// starts.
#[derive(Debug, Clone, Default)]
pub struct WithNvjpeg {
    /// Files of the library, the best first.
    pub paths: Vec<PathBuf>,
    /// The only backend to use.
    pub backend: Option<Backend>,
}

impl Device {
    /// Opens device `ordinal` of those visible to the process. Without `nvjpeg`, no images are
    /// decoded. Belongs to this process: a forked child must open its own.
    ///
    /// # Errors
    /// `NotFound` without a driver or the device, `Unavailable` without nvJPEG, `Invalid` for one
    /// that is too old, `Full` without memory on the device.
    pub fn open(ordinal: usize, nvjpeg: Option<&WithNvjpeg>) -> Result<Arc<Self>> {
        let driver = Driver::open(ordinal)?;
        let _entered = driver.enter()?;
        let decoder = nvjpeg
            .map(|nvjpeg| Decoder::open(&driver, &nvjpeg.paths, nvjpeg.backend))
            .transpose()?;
        let idle_max = driver.memory_size()? / DEVICE_IDLE_PART;
        Ok(Arc::new(Self {
            copies: driver.stream()?,
            work: driver.stream()?,
            memory: Pool::new(&driver, Side::Device, idle_max),
            pinned: Pool::new(&driver, Side::Host, HOST_IDLE_MAX),
            returns: Returns::new(&driver, idle_max),
            decoder,
            registered: Mutex::default(),
            flight: Flight::default(),
            driver,
        }))
    }

    /// Returns the number of devices visible to the process; 0 without a driver.
    #[must_use]
    pub fn count() -> usize {
        Driver::count()
    }

    /// Returns its number.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.driver.ordinal()
    }

    /// Registers `slab` for direct copies, in place of the slab before. If the device cannot, bytes
    /// go through pinned memory, with a warning. Images that are decoded from host memory take the
    /// same way: the engines were only measured with files in memory that is registered.
    pub fn copy_from(&self, slab: &Arc<Slab>) {
        let mut registered = self.registered();
        if registered.as_ref().is_some_and(|now| now.is_of(slab)) {
            return;
        }
        if self.unregister(&mut registered) {
            *registered = Some(Registered::new(&self.driver, slab));
        }
    }

    /// Gives back the slab that it copies from, once nothing is copied from it. A forked child has
    /// none.
    pub fn copy_from_none(&self) {
        if self.driver.is_ours() {
            self.unregister(&mut self.registered());
        }
    }

    /// Drops the registered slab, if there is one; false if copies may still be under way.
    fn unregister(&self, registered: &mut Option<Registered>) -> bool {
        if registered.is_none() {
            return true;
        }
        // Another thread's call may read files of the old slab now, and copies from it be queued.
        let _pause = self.decoder.as_ref().map(Decoder::pause);
        if self.copies.done().and_then(|copied| copied.wait()).is_err() {
            // The error reaches the batches that wait for the copies. It does not tell that they
            // are over, so the old slab stays.
            return false;
        }
        // Before the next is registered: there may be room for only one.
        *registered = None;
        true
    }

    /// True if it was opened for images.
    pub(crate) fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// Returns the decoder's name in statistics.
    pub(crate) fn decoder_name(&self) -> &'static str {
        self.decoder().backend().name()
    }

    /// True if files are decoded from the process's memory: only other bytes go to the device.
    pub(crate) fn decodes_from_host(&self) -> bool {
        self.decoder.as_ref().is_some_and(|one| one.backend() == Backend::EnginesFromHost)
    }

    pub(super) fn decoder(&self) -> &Decoder {
        self.decoder.as_ref().expect("checked with its fields")
    }

    /// True if nvJPEG accepts this file's header. Any thread may ask.
    pub(crate) fn takes(&self, file: &[u8]) -> bool {
        // A device that cannot be used is reported by what uses it next.
        self.driver.enter().is_ok_and(|_entered| self.decoder().takes(file))
    }

    /// Takes pinned memory for rows made by the CPU.
    pub(crate) fn staging(&self, len: usize) -> Result<Staging> {
        self.pinned(len).map(Staging)
    }

    /// Takes memory of the device. Lent memory that was dropped comes back first if there is no
    /// other.
    pub(super) fn memory(&self, len: usize) -> Result<Memory> {
        self.memory.take(len).or_else(|_| {
            self.returns.flush();
            self.decoder.iter().for_each(Decoder::give_back);
            self.memory.take(len)
        })
    }

    /// Takes pinned memory.
    pub(super) fn pinned(&self, len: usize) -> Result<Memory> {
        self.pinned.take(len)
    }

    /// Starts a batch, whose fields all lie in `around` if that is known. Waits while as many
    /// batches are in flight as overlap: more would take memory and save no time.
    pub(crate) fn begin<'a>(&'a self, around: &'a [u8]) -> Result<Submission<'a>> {
        let entered = self.driver.enter()?;
        let place = self.flight.begin()?;
        Ok(Submission::new(self, around, place, entered))
    }

    pub(super) fn registered(&self) -> MutexGuard<'_, Option<Registered>> {
        // State left by a panic is only dropped.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.driver.is_ours() {
            return;
        }
        // Nothing copies from the slab any more once it is unregistered.
        let ends = self.flight.take_ends().into_iter().chain(self.copies.done().ok());
        // Errors reach those that wait for the batches.
        ends.for_each(|done| drop(done.wait()));
    }
}

/// Pinned memory that the CPU writes before a batch is queued.
#[derive(Debug)]
pub(crate) struct Staging(pub(super) Memory);

impl Staging {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    #[test]
    fn opening_a_device_without_a_gpu_is_an_error() {
        let Err(error) = Device::open(0, Some(&WithNvjpeg::default())) else { return };
        assert!(
            matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::Invalid
            ),
            "{error}"
        );
    }
}
