//! A GPU through its driver: found at run time, with its primary context, streams, events and
//! copies.
//!
//! Only calls named `wait` or `synchronize` wait for the device. All work is queued on a
//! stream, and an event reports its end. A thread that comes from outside enters first, and leaves
//! as it came ([`Driver::enter`]).
//!
//! Of cudarc only the bindings are used: its own contexts, streams and events make their device
//! the current one of any thread that touches or drops them, torch's included.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::ffi::{CString, c_uint, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::fork::Generation;

use super::view::{Address, Move, View};

/// CUDA release of the kernels' PTX, as drivers number it: older drivers reject it.
const CUDA_MIN: i32 = 12_010;

/// First driver of that release, for messages.
const DRIVER_MIN: &str = "530";

/// Threads of a block: enough to hide memory latency, few enough for two blocks' registers on any
/// device.
const THREADS: u32 = 256;

/// Rows of a grid, by CUDA's limits.
const GRID_ROWS_MAX: usize = 65_535;

/// Largest number of blocks of a row: more than any device runs at once.
const BLOCKS_MAX: u64 = 1 << 16;

/// Compiled kernels; `scripts/ptx.py` makes them, and tests compare.
const PTX: &str = include_str!("pixels.ptx");

/// End of some work on a device.
#[derive(Debug, Clone)]
pub struct Done(Arc<Event>);

/// An event of the driver's. Threads may use it at once, whatever their current device is.
struct Event {
    raw: sys::CUevent,
    driver: Arc<Driver>,
}

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.raw).finish()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.driver.is_ours()
            && let Ok(_entered) = self.driver.enter()
        {
            // SAFETY: it was made with this object, and has no other owner. An event may be
            // destroyed before it is complete.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

impl Done {
    /// Waits for it; other threads may use the CPU meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the device failed.
    pub fn wait(&self) -> Result<()> {
        // An event that is asked for in another way makes a graph invalid that is being captured.
        let _entered = self.0.driver.enter()?;
        // SAFETY: the event lives.
        let waited = unsafe { result::event::synchronize(self.0.raw) };
        waited.map_err(|error| failed("wait for the GPU", error))
    }

    /// True once it is done; false also for a device that failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let Ok(_entered) = self.0.driver.enter() else { return false };
        // SAFETY: the event lives.
        unsafe { result::event::query(self.0.raw) }.is_ok()
    }
}

/// One device, in the process that opened it, by the primary context that torch, JAX and CuPy use
/// as well.
pub(super) struct Driver {
    ordinal: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    module: sys::CUmodule,
    pixels: sys::CUfunction,
    gather: sys::CUfunction,
    /// True if read-only mapped memory can be registered.
    registers_read_only: bool,
    made_in: Generation,
}

// SAFETY: a context, its modules and its functions belong to no thread.
unsafe impl Send for Driver {}
// SAFETY: as above; the driver orders concurrent calls.
unsafe impl Sync for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("ordinal", &self.ordinal).finish_non_exhaustive()
    }
}

/// A thread's use of a device. Dropped, it leaves the thread as it was: with the current device of
/// its owner, such as torch, and its way to treat calls during a graph's capture.
#[derive(Debug)]
pub(super) struct Entered {
    before: sys::CUcontext,
    mode: sys::CUstreamCaptureMode,
    // It belongs to its thread.
    _here: PhantomData<*mut ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: both values were this thread's before, and one may be null for no device.
        unsafe {
            let _ = sys::cuThreadExchangeStreamCaptureMode(&raw mut self.mode);
            let _ = sys::cuCtxSetCurrent(self.before);
        }
    }
}

/// Makes `context` current.
fn enter(context: sys::CUcontext) -> std::result::Result<Entered, DriverError> {
    let mut before = null_mut();
    // Work of ours belongs to no graph that this thread or another is capturing: it must neither
    // be part of it nor make it invalid.
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: each call writes one value, and the context lives as long as its driver.
    unsafe {
        sys::cuCtxGetCurrent(&raw mut before).result()?;
        sys::cuCtxSetCurrent(context).result()?;
        if let Err(error) = sys::cuThreadExchangeStreamCaptureMode(&raw mut mode).result() {
            let _ = sys::cuCtxSetCurrent(before);
            return Err(error);
        }
    }
    Ok(Entered { before, mode, _here: PhantomData })
}

/// A queue of copies or of work on a device.
#[derive(Debug)]
pub(super) struct Stream {
    raw: sys::CUstream,
    driver: Arc<Driver>,
    /// Destroyed with this object; false for a framework's.
    owned: bool,
}

// SAFETY: a stream belongs to no thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders concurrent calls.
unsafe impl Sync for Stream {}

impl Driver {
    /// Returns the number of devices visible to the process; 0 without a driver.
    pub(super) fn count() -> usize {
        // SAFETY: opening it runs only libcuda's own initialisers.
        if !unsafe { sys::is_culib_present() } {
            return 0;
        }
        let count = result::init().and_then(|()| result::device::get_count());
        count.map_or(0, |count| usize::try_from(count).unwrap_or_default())
    }

    /// Opens device `ordinal` of those visible to the process.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without a driver or such a device, [`ErrorKind::Invalid`] if the
    /// driver is too old.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Self>> {
        // SAFETY: opening it runs only libcuda's own initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::new(ErrorKind::NotFound, "no CUDA driver is installed")
                .advise("install NVIDIA's driver (libcuda.so.1), or use device=\"cpu\""));
        }
        let mut version = 0;
        // SAFETY: it writes one number.
        let known = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        known.result().map_err(|error| failed("read the driver's release", error))?;
        if version < CUDA_MIN {
            return Err(Error::new(ErrorKind::Invalid, "the CUDA driver is too old")
                .at("cuda", format!("{}.{}", version / 1000, version % 1000 / 10))
                .advise(format!("install driver {DRIVER_MIN} or newer, or use device=\"cpu\"")));
        }
        let opened = |error| failed("open the GPU", error).at("device", format!("cuda:{ordinal}"));
        let device = result::init()
            .and_then(|()| result::device::get(ordinal.try_into().unwrap_or(std::ffi::c_int::MAX)));
        let device = device.map_err(opened)?;
        let read_only =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        // SAFETY: the driver named the device.
        let registers = unsafe { result::device::get_attribute(device, read_only) };
        // SAFETY: as above; released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(opened)?;
        // From here on, dropping it releases everything made so far.
        let mut driver = Self {
            ordinal,
            device,
            context,
            module: null_mut(),
            pixels: null_mut(),
            gather: null_mut(),
            registers_read_only: registers.map_err(|error| failed("query the GPU", error))? > 0,
            made_in: Generation::now(),
        };
        let entered = driver.enter()?;
        driver.load().map_err(|error| failed("load the kernels", error))?;
        drop(entered);
        Ok(Arc::new(driver))
    }

    /// Loads the kernels into the current context.
    fn load(&mut self) -> std::result::Result<(), DriverError> {
        let text = CString::new(PTX).expect("a text without zeros");
        // SAFETY: it is a whole PTX text, read during the call.
        self.module = unsafe { result::module::load_data(text.as_ptr().cast::<c_void>()) }?;
        // SAFETY: the module lives as long as the driver.
        let function = |name: &str| unsafe {
            let name = CString::new(name).expect("a name without zeros");
            result::module::get_function(self.module, name)
        };
        (self.pixels, self.gather) = (function("forebay_pixels")?, function("forebay_gather")?);
        Ok(())
    }

    /// Returns its number.
    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Makes it the calling thread's device until the result is dropped. Every entry from outside
    /// begins by this, drops of objects with memory of the device included.
    pub(super) fn enter(&self) -> Result<Entered> {
        enter(self.context).map_err(|error| failed("use the GPU", error))
    }

    /// Waits for all queued work, by anybody; false if it cannot, because a graph is captured. That
    /// graph may be invalid then: only what is rare calls this.
    pub(super) fn synchronize(&self) -> Result<bool> {
        use sys::CUresult as Code;
        let _entered = self.enter()?;
        match result::ctx::synchronize() {
            Ok(()) => Ok(true),
            Err(DriverError(
                Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                | Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                | Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            )) => Ok(false),
            Err(error) => Err(failed("wait for the GPU", error)),
        }
    }

    /// True in the process that opened it: a forked child must not use it.
    pub(super) fn is_ours(&self) -> bool {
        self.made_in.is_now()
    }

    /// True if read-only mapped memory can be registered.
    pub(super) fn registers_read_only(&self) -> bool {
        self.registers_read_only
    }

    /// Returns the bytes of the device's memory.
    pub(super) fn memory_size(&self) -> Result<usize> {
        // SAFETY: the driver named the device.
        let size = unsafe { result::device::total_mem(self.device) };
        size.map_err(|error| failed("query the GPU", error))
    }

    /// Makes a stream whose work goes before that of training: a batch's kernels are short, and a
    /// training step that waits for a batch waits for all of it.
    pub(super) fn stream(self: &Arc<Self>) -> Result<Stream> {
        let _entered = self.enter()?;
        let made = result::stream::get_priority_range().and_then(|(_, first)| {
            result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, first)
        });
        let raw = made.map_err(|error| failed("make a stream", error))?;
        Ok(Stream { raw, driver: self.clone(), owned: true })
    }

    /// Wraps a framework's stream; 0 is the shared default stream.
    ///
    /// # Safety
    /// It is a stream of this device's primary context, and outlives the result.
    pub(super) unsafe fn stream_of(self: &Arc<Self>, address: u64) -> Stream {
        Stream { raw: address as sys::CUstream, driver: self.clone(), owned: false }
    }

    /// Queues the kernel that makes tensor elements from planes, for `views` views at `at`.
    ///
    /// # Safety
    /// The views lie there once earlier queued work is done, with everything they name, until this
    /// is done.
    pub(super) unsafe fn make_pixels(
        &self,
        stream: &Stream,
        at: Address,
        views: usize,
        (table, element): (Address, u32),
        elements: u64,
    ) -> Result<()> {
        // A strip has four; few rounds per thread, and no more blocks than work.
        let blocks = elements.div_ceil(4 * u64::from(THREADS)).clamp(1, BLOCKS_MAX) as u32;
        for first in (0..views).step_by(GRID_ROWS_MAX) {
            let rows = (views - first).min(GRID_ROWS_MAX) as u32;
            let at = at + (first * size_of::<View>()) as u64;
            let arguments =
                [(&raw const at).cast(), (&raw const table).cast(), (&raw const element).cast()];
            // SAFETY: as the caller guarantees; the arguments are the kernel's.
            unsafe { launch(self.pixels, (blocks, rows), stream, &arguments) }?;
        }
        Ok(())
    }

    /// Queues the kernel that makes `moves` moves, listed at `at`, of `length` bytes each.
    ///
    /// # Safety
    /// As for [`Driver::make_pixels`].
    pub(super) unsafe fn gather(
        &self,
        stream: &Stream,
        at: Address,
        moves: usize,
        length: u64,
    ) -> Result<()> {
        // Few rounds per thread, and no more blocks than work.
        let blocks = length.div_ceil(16 * u64::from(THREADS)).clamp(1, BLOCKS_MAX) as u32;
        for first in (0..moves).step_by(GRID_ROWS_MAX) {
            let rows = (moves - first).min(GRID_ROWS_MAX) as u32;
            let at = at + (first * size_of::<Move>()) as u64;
            let arguments = [(&raw const at).cast(), (&raw const length).cast()];
            // SAFETY: as the caller guarantees; the arguments are the kernel's.
            unsafe { launch(self.gather, (blocks, rows), stream, &arguments) }?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if let Ok(_entered) = self.enter()
            && !self.module.is_null()
        {
            // SAFETY: streams with its kernels keep the driver, so that none is queued any more.
            let _ = unsafe { result::module::unload(self.module) };
        }
        // SAFETY: it was retained when this was opened.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Starts a kernel.
///
/// # Safety
/// The arguments are the kernel's, each at its address during the call.
unsafe fn launch(
    kernel: sys::CUfunction,
    (blocks, rows): (u32, u32),
    stream: &Stream,
    arguments: &[*const c_void],
) -> Result<()> {
    let mut arguments: Vec<*mut c_void> = arguments.iter().map(|one| one.cast_mut()).collect();
    // SAFETY: as the caller guarantees.
    let launched = unsafe {
        result::launch_kernel(
            kernel,
            (blocks, rows, 1),
            (THREADS as c_uint, 1, 1),
            0,
            stream.raw,
            &mut arguments,
        )
    };
    launched.map_err(|error| failed("start a kernel", error))
}

impl Stream {
    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Makes all work queued from now on wait for `done`.
    pub(super) fn after(&self, done: &Done) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event live.
        let waits = unsafe { result::stream::wait_event(self.raw, done.0.raw, flags) };
        waits.map_err(|error| failed("order the GPU's work", error))
    }

    /// Returns the end of all work queued so far. Any thread may ask.
    pub(super) fn done(&self) -> Result<Done> {
        // An event is made for the current context.
        let _entered = self.driver.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut raw = null_mut();
        // SAFETY: one event is written.
        let made = unsafe { sys::cuEventCreate(&raw mut raw, flags) };
        made.result().map_err(|error| failed("mark the GPU's work", error))?;
        let event = Event { raw, driver: self.driver.clone() };
        // SAFETY: stream and event live.
        let recorded = unsafe { result::event::record(raw, self.raw) };
        recorded.map_err(|error| failed("mark the GPU's work", error))?;
        Ok(Done(Arc::new(event)))
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `from` stays unchanged, and `to` has room and no other user, until it is done.
    pub(super) unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.raw) };
        copied.map_err(|error| failed("copy to the GPU", error))
    }

    /// Queues zeroing memory.
    ///
    /// # Safety
    /// `length` bytes are there, without another user, until it is done.
    pub(super) unsafe fn zero(&self, at: Address, length: usize) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let set = unsafe { result::memset_d8_async(at, 0, length, self.raw) };
        set.map_err(|error| failed("clear memory of the GPU", error))
    }

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// `length` bytes are at both places, without another writer, until it is done.
    pub(super) unsafe fn copy(&self, from: Address, to: Address, length: usize) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let copied = unsafe { result::memcpy_dtod_async(to, from, length, self.raw) };
        copied.map_err(|error| failed("copy on the GPU", error))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && self.driver.is_ours()
            && let Ok(_entered) = self.driver.enter()
        {
            // SAFETY: it was made with this object, and has no other owner. What is queued on it is
            // done first.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// Translates a driver error into the caller's next action.
pub(super) fn failed(doing: &str, DriverError(code): DriverError) -> Error {
    // The driver's own texts may be unavailable because the driver is; the code's name is ours.
    let name = format!("{code:?}");
    match code {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Error::new(ErrorKind::Full, "the GPU has no memory left for the batch")
                .at("doing", doing)
                .advise(
                    "use a smaller batch_size or prefetch, leave the loader more memory, or \
                         use device=\"cpu\"",
                )
        }
        sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_INVALID_DEVICE => {
            Error::new(ErrorKind::NotFound, "this GPU does not exist")
                .at("error", name)
                .advise("look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use device=\"cpu\"")
        }
        sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            Error::new(ErrorKind::Invalid, "the CUDA driver is too old for the kernels")
                .advise(format!("install driver {DRIVER_MIN} or newer, or use device=\"cpu\""))
        }
        sys::CUresult::CUDA_ERROR_NOT_INITIALIZED | sys::CUresult::CUDA_ERROR_DEINITIALIZED => {
            Error::new(ErrorKind::Closed, "this process cannot use the GPU")
                .at("doing", doing)
                .at("error", name)
                .advise(
                    "it was forked from a process that uses the GPU: start workers by \
                         \"spawn\"",
                )
        }
        _ => Error::new(ErrorKind::Unavailable, format!("failed to {doing}: {name}")).advise(
            "an earlier kernel of any library in this process may have failed: find the \
                     first error, and restart from the last state_dict()",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_errors_map_to_error_kinds() {
        let kind = |code| failed("try", DriverError(code)).kind();
        assert_eq!(kind(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY), ErrorKind::Full);
        assert_eq!(kind(sys::CUresult::CUDA_ERROR_NO_DEVICE), ErrorKind::NotFound);
        assert_eq!(kind(sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION), ErrorKind::Invalid);
        assert_eq!(kind(sys::CUresult::CUDA_ERROR_NOT_INITIALIZED), ErrorKind::Closed);
        let gone = failed("wait", DriverError(sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED));
        assert_eq!(gone.kind(), ErrorKind::Unavailable);
        assert!(gone.to_string().contains("CONTEXT_IS_DESTROYED"), "{gone}");
    }

    #[test]
    fn missing_driver_is_reported() {
        // SAFETY: as above.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        let error = Driver::open(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("no CUDA driver"), "{error}");
    }
}
