//! nvJPEG, opened at run time: from JPEG files on the device to their components on the device.
//!
//! Only the batched interface with files on the device, by the JPEG engines if present, else
//! by its cores. A file is described by its header, parsed here before. Components come out as
//! stored; the kernel converts colours, because it upsamples as libjpeg does.

#![allow(unsafe_code, reason = "a C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

use cudarc::driver::sys::CUstream;
use forebay_error::{Error, ErrorKind, Result};
use libloading::Library;

use super::driver::{Done, Stream};
use super::view::{Address, CHANNELS, Plane};

/// Library names, the newest first. Their interfaces agree in the parts used here.
const NAMES: [&str; 2] = ["libnvjpeg.so.13", "libnvjpeg.so.12"];

/// Batches in flight: one being decoded, one being queued.
const BATCHES: usize = 2;

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

/// Hardware that decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Backend {
    /// The device's own cores.
    Cores = 4,
    /// JPEG engines.
    Engines = 5,
}

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

/// The library.
pub(super) struct Nvjpeg {
    functions: Functions,
    version: (c_int, c_int),
    path: PathBuf,
    // Dropped last.
    _library: Library,
}

impl std::fmt::Debug for Nvjpeg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvjpeg")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Nvjpeg {
    /// Opens the first library found among `paths` and the library loader's names.
    ///
    /// # Errors
    /// `Unavailable` if none is found.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut last = None;
        for path in paths.iter().map(PathBuf::as_path).chain(NAMES.iter().map(Path::new)) {
            match Self::load(path) {
                Ok(nvjpeg) => return Ok(nvjpeg),
                Err(error) => last = Some((path.to_owned(), error)),
            }
        }
        let missing = Error::new(ErrorKind::Unavailable, "nvJPEG was not found");
        let missing = last.into_iter().fold(missing, |missing, (path, error)| {
            missing.at("last", path.display()).at("error", error)
        });
        Err(missing.advise(
            "pip install nvidia-nvjpeg (or nvidia-nvjpeg-cu12), name its file in FOREBAY_NVJPEG, or use \
             device=\"cpu\"",
        ))
    }

    fn load(path: &Path) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: NVIDIA's library runs only its own initialisers, and stays open as long as
        // `Self`.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: it has nvJPEG's name, and lives as long as the functions.
        let functions = unsafe { Functions::find(&library) }?;
        let number = |property| {
            let mut value = 0;
            // SAFETY: it writes one number.
            unsafe { (functions.property)(property, &raw mut value) };
            value
        };
        let version = (number(0), number(1));
        Ok(Self { functions, version, path: path.to_owned(), _library: library })
    }
}

/// Decoder of batches on one device, for one thread at a time.
#[derive(Debug)]
pub(super) struct Decoder {
    nvjpeg: Nvjpeg,
    handle: Handle,
    backend: Backend,
    parsed: Parsed,
    states: [(State, Option<Done>); BATCHES],
    next: usize,
}

// SAFETY: nothing of it belongs to a thread, except the context that callers make theirs.
unsafe impl Send for Decoder {}

/// One file and the destinations of its components.
#[derive(Debug, Clone, Copy)]
pub(super) struct JpegTask {
    /// The file, on the device.
    pub(super) at: Address,
    /// Size in bytes.
    pub(super) len: usize,
    /// Components; a gray one uses the first.
    pub(super) planes: [Plane; CHANNELS],
    /// 1 or 3.
    pub(super) components: u32,
}

impl Decoder {
    /// Makes a decoder on the device of the calling thread's context.
    ///
    /// # Errors
    /// `Unavailable` with the library's status.
    pub(super) fn new(nvjpeg: Nvjpeg) -> Result<Self> {
        let create = |backend: Backend| {
            let mut handle: Handle = null_mut();
            // SAFETY: no allocators of ours, and one handle is written.
            let status = unsafe {
                (nvjpeg.functions.create)(
                    backend as c_int,
                    null_mut(),
                    null_mut(),
                    0,
                    &raw mut handle,
                )
            };
            (status, handle)
        };
        let (mut status, mut handle) = create(Backend::Engines);
        let mut backend = Backend::Engines;
        if status == Status::ARCH_MISMATCH {
            // This device has no engines.
            backend = Backend::Cores;
            (status, handle) = create(backend);
        }
        if status != Status::SUCCESS {
            return Err(nvjpeg.refused("start nvJPEG", status));
        }
        let states = [(null_mut(), None), (null_mut(), None)];
        // From here on, dropping it destroys everything made so far.
        let mut decoder = Self { nvjpeg, handle, backend, parsed: null_mut(), states, next: 0 };
        let functions = &decoder.nvjpeg.functions;
        // SAFETY: the handle lives, and one pointer is written.
        let status = unsafe { (functions.parsed_create)(handle, &raw mut decoder.parsed) };
        decoder.check("start nvJPEG", status)?;
        for state in 0..BATCHES {
            let functions = &decoder.nvjpeg.functions;
            // SAFETY: as above.
            let status =
                unsafe { (functions.state_create)(handle, &raw mut decoder.states[state].0) };
            decoder.check("start nvJPEG", status)?;
        }
        Ok(decoder)
    }

    /// Returns the decoder's name in statistics.
    pub(super) fn name(&self) -> &'static str {
        match self.backend {
            Backend::Engines => "nvjpeg_engines",
            Backend::Cores => "nvjpeg_cores",
        }
    }

    /// True if it accepts this file's header.
    pub(super) fn takes(&mut self, file: &[u8]) -> bool {
        let functions = &self.nvjpeg.functions;
        let mut answer: c_int = -1;
        // SAFETY: handle and parsed live, the file is a slice, and one number is written.
        let status = unsafe {
            match (functions.parse)(self.handle, file.as_ptr(), file.len(), self.parsed) {
                Status::SUCCESS => (functions.supported)(self.handle, self.parsed, &raw mut answer),
                status => status,
            }
        };
        // Zero means yes.
        status == Status::SUCCESS && answer == 0
    }

    /// Queues the decoding of a batch on `stream`; [`Decoder::put_in_line`] must be told its end.
    ///
    /// # Errors
    /// `Unavailable` with the library's status. None of the batch may be used then.
    ///
    /// # Safety
    /// The files are on the device once earlier queued work is done, the planes belong to the batch
    /// alone, and both stay until this is done.
    pub(super) unsafe fn decode(&mut self, jobs: &[JpegTask], stream: &Stream) -> Result<()> {
        let (colored, gray): (Vec<&JpegTask>, Vec<&JpegTask>) =
            jobs.iter().partition(|job| job.components > 1);
        for (jobs, output) in [(colored, OUTPUT_YUV), (gray, OUTPUT_Y)] {
            if !jobs.is_empty() {
                // SAFETY: as the caller guarantees.
                unsafe { self.decode_alike(&jobs, output, stream) }?;
            }
        }
        Ok(())
    }

    /// Decodes files with the same number of components.
    unsafe fn decode_alike(
        &mut self,
        jobs: &[&JpegTask],
        output: c_int,
        stream: &Stream,
    ) -> Result<()> {
        let (state, done) = &mut self.states[self.next];
        self.next = (self.next + 1) % BATCHES;
        let state = *state;
        if let Some(done) = done.take() {
            // Its state is in use by the batch before until then.
            done.wait()?;
        }
        let files: Vec<*const u8> = jobs.iter().map(|job| job.at as *const u8).collect();
        let lens: Vec<usize> = jobs.iter().map(|job| job.len).collect();
        let mut images: Vec<Image> = jobs.iter().map(|job| image(job)).collect();
        let count = c_int::try_from(jobs.len()).expect("a batch's samples fit a u32");
        let functions = &self.nvjpeg.functions;
        // SAFETY: handle and state live. The last of these numbers is ignored.
        let status = unsafe { (functions.initialize)(self.handle, state, count, 1, output) };
        self.check("begin a batch", status)?;
        // SAFETY: the lists have `count` entries and are read during the call; the rest is as the
        // caller guarantees.
        let status = unsafe {
            (functions.decode)(
                self.handle,
                state,
                files.as_ptr(),
                lens.as_ptr(),
                images.as_mut_ptr(),
                stream.raw(),
            )
        };
        self.check("decode a batch", status)?;
        let done = stream.done()?;
        let last = (self.next + BATCHES - 1) % BATCHES;
        self.states[last].1 = Some(done);
        Ok(())
    }

    fn check(&self, doing: &str, status: Status) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.nvjpeg.refused(doing, status)) }
    }
}

impl Nvjpeg {
    fn refused(&self, doing: &str, status: Status) -> Error {
        let (major, minor) = self.version;
        Error::new(ErrorKind::Unavailable, format!("failed to {doing}: {}", status.name()))
            .at("nvjpeg", format!("{major}.{minor}"))
            .at("path", self.path.display())
            .advise(
                "check that this release fits the driver and the device, or use \
                         device=\"cpu\"",
            )
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        for (_, done) in &mut self.states {
            // Errors reach those that wait for the batch.
            let _ = done.take().map(|done| done.wait());
        }
        let functions = &self.nvjpeg.functions;
        // SAFETY: each object is destroyed once, in the library's order.
        unsafe {
            for (state, _) in &self.states {
                if let Some(state) = NonNull::new(*state) {
                    (functions.state_destroy)(state.as_ptr());
                }
            }
            if let Some(parsed) = NonNull::new(self.parsed) {
                (functions.parsed_destroy)(parsed.as_ptr());
            }
            (functions.destroy)(self.handle);
        }
    }
}

fn image(job: &JpegTask) -> Image {
    let mut image = Image { channels: [null_mut(); 4], pitches: [0; 4] };
    for (channel, plane) in job.planes[..job.components as usize].iter().enumerate() {
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
        let nvjpeg = Nvjpeg::open(std::slice::from_ref(&path)).unwrap();
        assert_eq!(nvjpeg.path, path);
        assert!(nvjpeg.version.0 >= 12, "{:?}", nvjpeg.version);
        // SAFETY: opening it runs only libcuda's own initialisers.
        if unsafe { cudarc::driver::sys::is_culib_present() } {
            return;
        }
        let error = Decoder::new(nvjpeg).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("execution failed"), "{error}");
    }

    #[test]
    fn missing_nvjpeg_is_reported_with_the_package() {
        let error = Nvjpeg::open(&[PathBuf::from("/nowhere/libnvjpeg.so.13")]);
        // A machine that has the library is fine, too.
        let Err(error) = error else { return };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("nvidia-nvjpeg"), "{error}");
    }
}
