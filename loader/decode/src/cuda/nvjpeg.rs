//! nvJPEG, opened at run time: from JPEG files on the device to their components on the device.
//!
//! Only the batched interface, by the JPEG engines if present, else by the device's cores. A file
//! is described by its header, parsed here before. Components come out as stored; the kernel
//! converts colours, because it upsamples as libjpeg does.
//!
//! No decoder keeps to the order of a stream (seen on an H100, release 13.0): files are read and
//! components written from the call on, behind whatever is queued. So a caller waits on the host
//! for the files, and the components' memory is that of a batch which is over. Work queued after
//! the call finds the components complete. The engines' call lasts as long as they decode.

#![allow(unsafe_code, reason = "a C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUstream;
use forebay_error::{Error, ErrorKind, Result};
use libloading::Library;

use super::driver::{Done, Driver, Stream};
use super::memory::Memory;
use super::view::{Address, CHANNELS, Plane};

/// Library names, the newest first. Their interfaces agree in the parts used here.
const NAMES: [&str; 2] = ["libnvjpeg.so.13", "libnvjpeg.so.12"];

/// Batches that are decoded or queued at once: one each of the copies, the engines and the kernels.
pub(super) const BATCHES: usize = 3;

/// Bytes added to each block that nvJPEG takes of the device and of pinned memory, as NVIDIA's own
/// loaders do: a batch a little larger than the one before needs no new block, for which the driver
/// stops the device.
const PADDING: usize = 8 << 20;

type Handle = *mut c_void;
type State = *mut c_void;
type Parsed = *mut c_void;

/// Return value of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Status(c_int);

impl Status {
    const SUCCESS: Self = Self(0);
    const ARCH_MISMATCH: Self = Self(7);

    fn name(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "not initialized",
            2 => "invalid parameter",
            3 => "bad JPEG",
            4 => "JPEG not supported",
            5 => "allocator failure",
            6 => "execution failed",
            7 => "architecture mismatch",
            8 => "internal error",
            9 => "implementation not supported",
            10 => "incomplete bitstream",
            _ => "unknown",
        }
    }
}

/// Decoder of nvJPEG's, by its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Backend {
    /// JPEG engines, which read files in the process's memory.
    EnginesFromHost = 3,
    /// The device's own cores.
    Cores = 4,
    /// JPEG engines, which read files on the device.
    Engines = 5,
}

impl Backend {
    /// Tried in this order, the fastest first. On an H100, with release 13.0, a loop of batches of
    /// 256 photos decodes 29,000 a second by engines from the host's memory, 22,000 by engines from
    /// the device's (the library reads every header back), and 19,000 by the cores.
    const ALL: [Self; 3] = [Self::EnginesFromHost, Self::Engines, Self::Cores];

    /// Returns the backend that nvJPEG numbers so.
    ///
    /// # Errors
    /// `Invalid` for a number of none that Forebay can use.
    pub fn numbered(number: i32) -> Result<Self> {
        Self::ALL.into_iter().find(|backend| *backend as i32 == number).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "this backend of nvJPEG is not known")
                .at("backend", number)
                .advise("use 5 (engines), 3 (engines, files in host memory) or 4 (cores)")
        })
    }

    /// Returns its name in statistics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EnginesFromHost | Self::Engines => "nvjpeg_engines",
            Self::Cores => "nvjpeg_cores",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::EnginesFromHost => "engines, files in host memory",
            Self::Engines => "engines",
            Self::Cores => "cores",
        };
        write!(f, "backend {} ({what})", *self as i32)
    }
}

/// Bytes of components that are decoded at once: some 1,700 photos of 500 by 375 pixels, more than
/// keeps every engine busy. Larger batches are decoded in parts.
pub(super) const PLANES_MAX: usize = 512 << 20;

/// All three components as stored.
const OUTPUT_YUV: c_int = 1;

/// Brightness alone, as stored.
const OUTPUT_Y: c_int = 2;

/// Destinations of the components of an image.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Image {
    channels: [*mut u8; 4],
    pitches: [usize; 4],
}

macro_rules! functions {
    ($($name:ident = $symbol:literal : fn($($argument:ty),*);)*) => {
        /// Functions of the library, by their own names.
        #[derive(Clone, Copy)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> Status,)* }

        impl Functions {
            /// # Safety
            /// The library is nvJPEG and outlives the result.
            unsafe fn find(library: &Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the signatures are those of nvjpeg.h from CUDA 12.1 on.
                Ok(Self { $($name: *unsafe { library.get($symbol) }?,)* })
            }
        }
    };
}

functions! {
    property = b"nvjpegGetProperty\0": fn(c_int, *mut c_int);
    create = b"nvjpegCreateEx\0": fn(c_int, *mut c_void, *mut c_void, c_uint, *mut Handle);
    pad_device = b"nvjpegSetDeviceMemoryPadding\0": fn(usize, Handle);
    pad_pinned = b"nvjpegSetPinnedMemoryPadding\0": fn(usize, Handle);
    destroy = b"nvjpegDestroy\0": fn(Handle);
    state_create = b"nvjpegJpegStateCreate\0": fn(Handle, *mut State);
    state_destroy = b"nvjpegJpegStateDestroy\0": fn(State);
    parsed_create = b"nvjpegJpegStreamCreate\0": fn(Handle, *mut Parsed);
    parsed_destroy = b"nvjpegJpegStreamDestroy\0": fn(Parsed);
    parse = b"nvjpegJpegStreamParseHeader\0": fn(Handle, *const u8, usize, Parsed);
    supported = b"nvjpegDecodeBatchedSupported\0": fn(Handle, Parsed, *mut c_int);
    initialize = b"nvjpegDecodeBatchedInitialize\0": fn(Handle, State, c_int, c_int, c_int);
    decode = b"nvjpegDecodeBatched\0":
        fn(Handle, State, *const *const u8, *const usize, *mut Image, CUstream);
}

/// The library. It stays open for good: a thread of its own may outlive every decoder.
#[derive(Clone)]
pub(super) struct Nvjpeg {
    functions: Functions,
    version: (c_int, c_int),
    path: PathBuf,
}

impl fmt::Debug for Nvjpeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvjpeg")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Nvjpeg {
    fn load(path: &Path) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's library runs only its own initialisers.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: it has nvJPEG's name, and is never closed.
        let functions = unsafe { Functions::find(&library) }?;
        std::mem::forget(library);
        let number = |property| {
            let mut value = 0;
            // SAFETY: it writes one number.
            unsafe { (functions.property)(property, &raw mut value) };
            value
        };
        let version = (number(0), number(1));
        Ok(Self { functions, version, path: path.to_owned() })
    }

    /// Starts a decoder on the device of the calling thread's context.
    fn create(&self, backend: Backend) -> std::result::Result<Handle, Status> {
        let mut handle: Handle = null_mut();
        // SAFETY: no allocators of ours, and one handle is written.
        let status = unsafe {
            (self.functions.create)(backend as c_int, null_mut(), null_mut(), 0, &raw mut handle)
        };
        if status == Status::SUCCESS { Ok(handle) } else { Err(status) }
    }
}

/// Decoder of batches on one device.
#[derive(Debug)]
pub(super) struct Decoder {
    nvjpeg: Nvjpeg,
    driver: Arc<Driver>,
    handle: Handle,
    backend: Backend,
    /// Headers to read files into: as many as threads have read one at once.
    parsed: Mutex<Vec<Parsed>>,
    /// Used in turn.
    slots: [Mutex<Slot>; BATCHES],
    next: AtomicUsize,
    /// Held during a call: a batch keeps all engines busy, and one more that waits for them takes a
    /// CPU core.
    calls: Mutex<()>,
}

// SAFETY: nothing of it belongs to a thread, except the context that callers make theirs.
unsafe impl Send for Decoder {}
// SAFETY: the library's functions on a handle may be called at once; states and headers, for which
// this is not so, are behind locks.
unsafe impl Sync for Decoder {}

/// One batch's state, and the memory that it is decoded to.
#[derive(Debug)]
struct Slot {
    state: State,
    planes: Option<Memory>,
    /// End of its last batch, kernels included.
    done: Option<Done>,
}

impl Default for Slot {
    fn default() -> Self {
        Self { state: null_mut(), planes: None, done: None }
    }
}

impl Slot {
    /// Waits for its last batch.
    fn settle(&mut self) -> Result<()> {
        let waited = self.done.take().map_or(Ok(()), |done| done.wait());
        if waited.is_ok()
            && let Some(planes) = &mut self.planes
        {
            planes.is_unused();
            if planes.room() > PLANES_MAX {
                // One large image had it. Later batches take no more than they need.
                self.planes = None;
            }
        }
        waited
    }
}

/// One file and the destinations of its components.
#[derive(Debug, Clone, Copy)]
pub(super) struct JpegTask {
    /// The file: on the device, or in the process's memory for [`Backend::EnginesFromHost`].
    pub(super) at: Address,
    /// Size in bytes.
    pub(super) len: usize,
    /// Components, in memory of the batch's turn; a gray one uses the first.
    pub(super) planes: [Plane; CHANNELS],
}

/// Turn of a batch, which ends by [`Turn::finish`], or with an error when it is dropped.
pub(super) struct Turn<'d> {
    decoder: &'d Decoder,
    slot: MutexGuard<'d, Slot>,
    stream: &'d Stream,
}

impl Decoder {
    /// Makes a decoder on `driver`'s device, which is current, with the first library of `paths`
    /// and the library loader's names that starts there; by `wanted` only, if it is given.
    ///
    /// # Errors
    /// `Unavailable` with the error of each.
    pub(super) fn open(
        driver: &Arc<Driver>,
        paths: &[PathBuf],
        wanted: Option<Backend>,
    ) -> Result<Self> {
        let mut tried = Vec::new();
        let mut is_there = false;
        for path in paths.iter().map(PathBuf::as_path).chain(NAMES.iter().map(Path::new)) {
            let nvjpeg = match Nvjpeg::load(path) {
                Ok(nvjpeg) => nvjpeg,
                Err(error) => {
                    tried.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            is_there = true;
            let (major, minor) = nvjpeg.version;
            let mut failed = Vec::new();
            for backend in wanted.as_ref().map_or(&Backend::ALL[..], std::slice::from_ref) {
                let made = nvjpeg.create(*backend);
                match made.and_then(|handle| Self::new(driver, &nvjpeg, handle, *backend)) {
                    Ok(decoder) => {
                        warn_of(&failed, *backend);
                        return Ok(decoder);
                    }
                    Err(status) => failed.push((*backend, status)),
                }
            }
            for (backend, status) in failed {
                let path = path.display();
                tried.push(format!("{path} {major}.{minor}, {backend}: {}", status.name()));
            }
        }
        let (what, advice) = if is_there {
            (
                "nvJPEG does not start on this GPU",
                "check that one of these releases fits the driver and the device, or use \
                 device=\"cpu\"",
            )
        } else {
            (
                "nvJPEG was not found",
                "pip install nvidia-nvjpeg (or nvidia-nvjpeg-cu12), name its file in \
                 FOREBAY_NVJPEG, or use device=\"cpu\"",
            )
        };
        let error = Error::new(ErrorKind::Unavailable, what).at("tried", tried.join("; "));
        Err(error.advise(advice))
    }

    /// Makes a decoder of a handle of this backend.
    fn new(
        driver: &Arc<Driver>,
        nvjpeg: &Nvjpeg,
        handle: Handle,
        backend: Backend,
    ) -> std::result::Result<Self, Status> {
        // From here on, dropping it destroys everything made so far.
        let mut decoder = Self {
            nvjpeg: nvjpeg.clone(),
            driver: driver.clone(),
            handle,
            backend,
            parsed: Mutex::default(),
            slots: Default::default(),
            next: AtomicUsize::new(0),
            calls: Mutex::default(),
        };
        let functions = &decoder.nvjpeg.functions;
        let mut status = Status::SUCCESS;
        for slot in &mut decoder.slots {
            let slot = slot.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the handle lives, and one pointer is written.
            let made = unsafe { (functions.state_create)(handle, &raw mut slot.state) };
            status = if status == Status::SUCCESS { made } else { status };
        }
        // SAFETY: the handle lives. Without padding nvJPEG is slower, nothing else.
        unsafe {
            (functions.pad_device)(PADDING, handle);
            (functions.pad_pinned)(PADDING, handle);
        }
        if status == Status::SUCCESS { Ok(decoder) } else { Err(status) }
    }

    /// Returns the hardware that decodes.
    pub(super) fn backend(&self) -> Backend {
        self.backend
    }

    /// True if it accepts this file's header. Any thread may ask.
    pub(super) fn takes(&self, file: &[u8]) -> bool {
        let lock = || self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let functions = &self.nvjpeg.functions;
        let kept = lock().pop();
        let Some(parsed) = kept.or_else(|| {
            let mut parsed: Parsed = null_mut();
            // SAFETY: the handle lives, and one pointer is written.
            let status = unsafe { (functions.parsed_create)(self.handle, &raw mut parsed) };
            (status == Status::SUCCESS).then_some(parsed)
        }) else {
            return false;
        };
        let mut answer: c_int = -1;
        // SAFETY: handle and parsed live, no other thread has this one, the file is a slice, and
        // one number is written.
        let status = unsafe {
            match (functions.parse)(self.handle, file.as_ptr(), file.len(), parsed) {
                Status::SUCCESS => (functions.supported)(self.handle, parsed, &raw mut answer),
                status => status,
            }
        };
        lock().push(parsed);
        // Zero means yes.
        status == Status::SUCCESS && answer == 0
    }

    /// Waits for the next state, and begins a batch that is queued on `stream`.
    ///
    /// # Errors
    /// The error of the batch that used this state before.
    pub(super) fn turn<'d>(&'d self, stream: &'d Stream) -> Result<Turn<'d>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % BATCHES;
        let mut slot = self.slots[at].lock().unwrap_or_else(PoisonError::into_inner);
        slot.settle()?;
        Ok(Turn { decoder: self, slot, stream })
    }

    /// Keeps all calls away until the result is dropped, once the present one is over.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives memory of components back that no batch uses now.
    pub(super) fn give_back(&self) {
        for slot in &self.slots {
            // A slot in hand is in use.
            if let Ok(mut slot) = slot.try_lock()
                && slot.settle().is_ok()
            {
                slot.planes = None;
            }
        }
    }

    fn check(&self, doing: &str, status: Status) -> Result<()> {
        if status == Status::SUCCESS {
            return Ok(());
        }
        let (major, minor) = self.nvjpeg.version;
        Err(Error::new(ErrorKind::Unavailable, format!("failed to {doing}: {}", status.name()))
            .at("nvjpeg", format!("{major}.{minor}"))
            .at("path", self.nvjpeg.path.display())
            .at("backend", self.backend)
            .advise(
                "check that this release fits the driver and the device, or use device=\"cpu\"",
            ))
    }
}

/// Warns that a slower backend is used than the device might have.
fn warn_of(failed: &[(Backend, Status)], used: Backend) {
    for (backend, status) in failed {
        // A device without engines is no news.
        if *status == Status::ARCH_MISMATCH {
            continue;
        }
        let (failed, status) = (backend.to_string(), status.name());
        match used {
            Backend::Cores => tracing::warn!(
                failed,
                status,
                %used,
                "JPEG engines do not start: in a container they need the driver's video libraries \
                 (NVIDIA_DRIVER_CAPABILITIES=compute,utility,video)"
            ),
            Backend::EnginesFromHost | Backend::Engines => tracing::warn!(
                failed,
                status,
                %used,
                "nvJPEG's fastest backend does not start on this GPU: files are copied before they \
                 are decoded"
            ),
        }
    }
}

impl Turn<'_> {
    /// Returns the address of `len` bytes for components, which stay until the batch's end; `take`
    /// gives new ones.
    ///
    /// # Errors
    /// `take`'s.
    pub(super) fn planes(
        &mut self,
        len: usize,
        take: impl FnOnce(usize) -> Result<Memory>,
    ) -> Result<Address> {
        let slot = &mut *self.slot;
        if slot.planes.as_ref().is_none_or(|planes| planes.room() < len) {
            // The old ones first: there may be room for only one.
            slot.planes = None;
            slot.planes = Some(take(len)?);
        }
        let planes = slot.planes.as_mut().expect("taken just now");
        planes.is_used();
        Ok(planes.at())
    }

    /// Queues the decoding of `tasks`, all with `components` components (1 or 3); by engines it is
    /// over when this returns.
    ///
    /// # Errors
    /// `Unavailable` with the library's status. None of the batch may be used then.
    ///
    /// # Safety
    /// The files are in place and the planes are unused now, not only once earlier queued work is
    /// done: engines do not wait for it. Both stay until the work is done.
    pub(super) unsafe fn decode(&mut self, tasks: &[JpegTask], components: u32) -> Result<()> {
        let output = if components == 1 { OUTPUT_Y } else { OUTPUT_YUV };
        let files: Vec<*const u8> = tasks.iter().map(|task| task.at as *const u8).collect();
        let lens: Vec<usize> = tasks.iter().map(|task| task.len).collect();
        let mut images: Vec<Image> = tasks.iter().map(|task| image(task, components)).collect();
        let count = c_int::try_from(tasks.len()).expect("a batch's samples fit a u32");
        let (decoder, stream) = (self.decoder, self.stream.raw());
        let functions = &decoder.nvjpeg.functions;
        let state = self.slot.state;
        let _call = decoder.pause();
        // SAFETY: handle and state live. The last of these numbers is ignored.
        let status = unsafe { (functions.initialize)(decoder.handle, state, count, 1, output) };
        decoder.check("begin a batch", status)?;
        // SAFETY: the lists have `count` entries and are read during the call; the rest is as the
        // caller guarantees.
        let status = unsafe {
            (functions.decode)(
                decoder.handle,
                state,
                files.as_ptr(),
                lens.as_ptr(),
                images.as_mut_ptr(),
                stream,
            )
        };
        decoder.check("decode a batch", status)
    }

    /// Marks the batch's end after all that is queued on its stream.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn finish(mut self) -> Result<()> {
        let done = self.stream.done()?;
        self.slot.done = Some(done);
        Ok(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A batch that failed half-way may have begun to write.
        if self.slot.done.is_none() {
            self.slot.done = self.stream.done().ok();
        }
        if self.slot.done.is_none() {
            // Its end is unknown: the memory is freed after all work.
            self.slot.planes = None;
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        if !self.driver.is_ours() {
            return;
        }
        let Ok(_entered) = self.driver.enter() else { return };
        let slots = self.slots.each_mut();
        let slots = slots.map(|slot| slot.get_mut().unwrap_or_else(PoisonError::into_inner));
        let states = slots.map(|slot| {
            // Errors reach those that wait for the batch.
            let _ = slot.settle();
            slot.state
        });
        let functions = &self.nvjpeg.functions;
        // SAFETY: each object is destroyed once, in the library's order, with its device current.
        unsafe {
            for state in states.into_iter().filter_map(NonNull::new) {
                (functions.state_destroy)(state.as_ptr());
            }
            for parsed in self.parsed.get_mut().unwrap_or_else(PoisonError::into_inner) {
                (functions.parsed_destroy)(*parsed);
            }
            (functions.destroy)(self.handle);
        }
    }
}

fn image(task: &JpegTask, components: u32) -> Image {
    let mut image = Image { channels: [null_mut(); 4], pitches: [0; 4] };
    for (channel, plane) in task.planes[..components as usize].iter().enumerate() {
        image.channels[channel] = plane.at as *mut u8;
        image.pitches[channel] = plane.pitch as usize;
    }
    image
}

const _: () = assert!(size_of::<Image>() == 64 && std::mem::offset_of!(Image, pitches) == 32);

#[cfg(test)]
mod tests {
    use super::*;

    /// The library bundled with torchvision, which the tests' environment has.
    fn bundled() -> Option<PathBuf> {
        let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
        let pythons = std::fs::read_dir(venv).ok()?.flatten();
        let folders = pythons.map(|python| python.path().join("site-packages/torchvision.libs"));
        let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        files.map(|file| file.path()).find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvjpeg"))
        })
    }

    #[test]
    fn real_nvjpeg_has_all_symbols_and_reports_no_gpu() {
        let Some(path) = bundled() else { return };
        let nvjpeg = Nvjpeg::load(&path).unwrap();
        assert_eq!(nvjpeg.path, path);
        assert!(nvjpeg.version.0 >= 12, "{:?}", nvjpeg.version);
        // SAFETY: opening it runs only libcuda's own initialisers.
        if unsafe { cudarc::driver::sys::is_culib_present() } {
            return;
        }
        for backend in Backend::ALL {
            assert_eq!(nvjpeg.create(backend).unwrap_err().name(), "execution failed");
        }
    }

    #[test]
    fn backends_have_the_librarys_numbers() {
        for backend in Backend::ALL {
            assert_eq!(Backend::numbered(backend as i32).unwrap(), backend);
        }
        for number in [-1, 0, 1, 2, 6] {
            assert_eq!(Backend::numbered(number).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
