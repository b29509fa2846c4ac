//! A GPU through its driver: found at run time, with its primary context, streams, events and
//! copies.
//!
//! Only calls named `wait` or `synchronize` wait for the device. All work is queued on a
//! stream, and an event reports its end.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, LaunchConfig};
use cudarc::driver::{PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
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
pub struct Done(Arc<CudaEvent>);

impl Done {
    /// Waits for it; other threads may use the CPU meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the device failed.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(|error| failed("wait for the GPU", error))
    }
}

/// One device, in the process that opened it.
#[derive(Debug)]
pub(super) struct Driver {
    context: Arc<CudaContext>,
    pixels: CudaFunction,
    gather: CudaFunction,
    /// True if read-only mapped memory can be registered.
    registers_read_only: bool,
    made_in: Generation,
}

/// A queue of copies or of work on a device.
#[derive(Debug, Clone)]
pub(super) struct Stream(Arc<CudaStream>);

impl Driver {
    /// Opens device `ordinal` of those visible to the process; torch, JAX and CuPy use the same
    /// context.
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
        let context = CudaContext::new(ordinal).map_err(|error| {
            failed("open the GPU", error).at("device", format!("cuda:{ordinal}"))
        })?;
        // SAFETY: every use of memory is ordered here, by events.
        unsafe { context.disable_event_tracking() };
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        let registers = context.attribute(attribute);
        let registers_read_only = registers.map_err(|error| failed("query the GPU", error))? > 0;
        let module = context
            .load_module(Ptx::from_src(PTX))
            .map_err(|error| failed("load the kernels", error))?;
        let function = |name| {
            module
                .load_function(name)
                .map_err(|error| failed("find a kernel", error).at("name", name))
        };
        Ok(Arc::new(Self {
            pixels: function("forebay_pixels")?,
            gather: function("forebay_gather")?,
            registers_read_only,
            context,
            made_in: Generation::now(),
        }))
    }

    /// Returns its number.
    pub(super) fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Makes it the device of the calling thread.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|error| failed("use the GPU", error))
    }

    /// Waits for all queued work, by anybody.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.context.synchronize().map_err(|error| failed("wait for the GPU", error))
    }

    /// True in the process that opened it: a forked child must not use it.
    pub(super) fn is_ours(&self) -> bool {
        self.made_in.is_now()
    }

    /// True if read-only mapped memory can be registered.
    pub(super) fn registers_read_only(&self) -> bool {
        self.registers_read_only
    }

    pub(super) fn stream(&self) -> Result<Stream> {
        self.context.new_stream().map(Stream).map_err(|error| failed("make a stream", error))
    }

    /// Wraps a framework's stream; 0 is the shared default stream.
    ///
    /// # Safety
    /// It is a stream of this device's primary context, and outlives the result.
    pub(super) unsafe fn stream_of(&self, address: u64) -> Stream {
        // SAFETY: as the caller guarantees.
        Stream(unsafe { self.context.wrap_borrowed_stream(address as sys::CUstream) })
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
            let mut launch = stream.0.launch_builder(&self.pixels);
            launch.arg(&at).arg(&table).arg(&element);
            // SAFETY: as the caller guarantees; the arguments are the kernel's.
            let launched = unsafe { launch.launch(grid(blocks, rows)) };
            launched.map_err(|error| failed("start a kernel", error))?;
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
            let mut launch = stream.0.launch_builder(&self.gather);
            launch.arg(&at).arg(&length);
            // SAFETY: as the caller guarantees; the arguments are the kernel's.
            let launched = unsafe { launch.launch(grid(blocks, rows)) };
            launched.map_err(|error| failed("start a kernel", error))?;
        }
        Ok(())
    }
}

fn grid(blocks: u32, rows: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, rows, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

impl Stream {
    pub(super) fn raw(&self) -> sys::CUstream {
        self.0.cu_stream()
    }

    /// Makes all work queued from now on wait for `done`.
    pub(super) fn after(&self, done: &Done) -> Result<()> {
        self.0.wait(&done.0).map_err(|error| failed("order the GPU's work", error))
    }

    /// Returns the end of all work queued so far.
    pub(super) fn done(&self) -> Result<Done> {
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        let event = self.0.context().new_event(Some(flags)).and_then(|event| {
            event.record(&self.0)?;
            Ok(event)
        });
        event
            .map(|event| Done(Arc::new(event)))
            .map_err(|error| failed("mark the GPU's work", error))
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `from` stays unchanged, and `to` has room and no other user, until it is done.
    pub(super) unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.raw()) };
        copied.map_err(|error| failed("copy to the GPU", error))
    }

    /// Queues zeroing memory.
    ///
    /// # Safety
    /// `length` bytes are there, without another user, until it is done.
    pub(super) unsafe fn zero(&self, at: Address, length: usize) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let set = unsafe { result::memset_d8_async(at, 0, length, self.raw()) };
        set.map_err(|error| failed("clear memory of the GPU", error))
    }

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// `length` bytes are at both places, without another writer, until it is done.
    pub(super) unsafe fn copy(&self, from: Address, to: Address, length: usize) -> Result<()> {
        // SAFETY: as the caller guarantees.
        let copied = unsafe { result::memcpy_dtod_async(to, from, length, self.raw()) };
        copied.map_err(|error| failed("copy on the GPU", error))
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
