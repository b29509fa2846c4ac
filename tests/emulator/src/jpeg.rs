//! The part of nvJPEG that Forebay calls. A file with the comment `nvjpeg: refuse` is rejected; one
//! with `nvjpeg: fail` makes its batch fail.
//!
//! Decoders decode at the call, whatever is in line on the stream, as an H100's do: a file that is
//! not there yet, and components that earlier work is still to read, show as wrong pixels or end
//! the process. Calls of the engines last as long as they decode. A handle is the number of its
//! backend.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::driver::{COPY_PRICE, asked};
use crate::line::{Mark, current, device, fault};

type Status = c_int;

const SUCCESS: Status = 0;
const INVALID: Status = 2;
const BAD_JPEG: Status = 3;
const EXECUTION_FAILED: Status = 6;
const ARCH_MISMATCH: Status = 7;

const BACKEND_ENGINES_HOST: c_int = 3;
const BACKEND_CORES: c_int = 4;
const BACKEND_ENGINES: c_int = 5;

/// Price of a byte that is decoded: decoding and copying a batch take about as long.
const DECODE_PRICE: u64 = COPY_PRICE;
const OUTPUT_YUV: c_int = 1;
const OUTPUT_Y: c_int = 2;

/// Decoders that did not start, of those that are not to.
static CREATE_FAILS: AtomicUsize = AtomicUsize::new(0);

/// States that were not made, of those that are not to.
static STATES_FAIL: AtomicUsize = AtomicUsize::new(0);

/// A batch is to fail.
static FAILS: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub struct State {
    count: usize,
    output: c_int,
    /// The batch that it holds.
    last: Option<Mark>,
}

#[derive(Default)]
pub struct Parsed {
    is_refused: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Image {
    channels: [u64; 4],
    pitches: [usize; 4],
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegGetProperty(property: c_int, value: *mut c_int) -> Status {
    unsafe { *value = if property == 0 { 13 } else { 0 } };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegCreateEx(
    backend: c_int,
    _device: *mut c_void,
    _pinned: *mut c_void,
    _flags: c_uint,
    handle: *mut usize,
) -> Status {
    if current() == 0 {
        return EXECUTION_FAILED;
    }
    let has_engines = asked("ENGINES") != Some(0);
    match backend {
        BACKEND_ENGINES | BACKEND_ENGINES_HOST if !has_engines => return ARCH_MISMATCH,
        BACKEND_ENGINES | BACKEND_ENGINES_HOST | BACKEND_CORES => {}
        _ => return INVALID,
    }
    if CREATE_FAILS.fetch_add(1, Ordering::Relaxed) < asked("CREATE_FAILS").unwrap_or(0) {
        return EXECUTION_FAILED;
    }
    unsafe { *handle = backend as usize };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvjpegDestroy(_handle: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegJpegStateCreate(_handle: usize, state: *mut *mut State) -> Status {
    if STATES_FAIL.fetch_add(1, Ordering::Relaxed) < asked("STATES_FAIL").unwrap_or(0) {
        return EXECUTION_FAILED;
    }
    unsafe { *state = Box::into_raw(Box::default()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegJpegStateDestroy(state: *mut State) -> Status {
    let state = unsafe { Box::from_raw(state) };
    if state.last.is_some_and(|mark| !device().is_done(mark)) {
        fault("a state of nvJPEG's is ended while its batch is in line");
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegJpegStreamCreate(
    _handle: usize,
    parsed: *mut *mut Parsed,
) -> Status {
    unsafe { *parsed = Box::into_raw(Box::default()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegJpegStreamDestroy(parsed: *mut Parsed) -> Status {
    drop(unsafe { Box::from_raw(parsed) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegJpegStreamParseHeader(
    _handle: usize,
    file: *const u8,
    len: usize,
    parsed: *mut Parsed,
) -> Status {
    let file = unsafe { std::slice::from_raw_parts(file, len) };
    let says = |what: &[u8]| file.windows(what.len()).any(|part| part == what);
    if !file.starts_with(&[0xff, 0xd8]) {
        return BAD_JPEG;
    }
    unsafe { (*parsed).is_refused = says(b"nvjpeg: refuse") };
    if says(b"nvjpeg: fail") {
        FAILS.store(true, Ordering::Relaxed);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegDecodeBatchedSupported(
    _handle: usize,
    parsed: *const Parsed,
    answer: *mut c_int,
) -> Status {
    unsafe { *answer = c_int::from((*parsed).is_refused) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvjpegSetDeviceMemoryPadding(_bytes: usize, _handle: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvjpegSetPinnedMemoryPadding(_bytes: usize, _handle: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegDecodeBatchedInitialize(
    _handle: usize,
    state: *mut State,
    count: c_int,
    _threads: c_int,
    output: c_int,
) -> Status {
    let state = unsafe { &mut *state };
    if state.last.is_some_and(|mark| !device().is_done(mark)) {
        fault("a state of nvJPEG's is used while its batch is in line");
    }
    (state.count, state.output) = (count as usize, output);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvjpegDecodeBatched(
    handle: usize,
    state: *mut State,
    files: *const u64,
    lens: *const usize,
    images: *const Image,
    stream: usize,
) -> Status {
    if FAILS.swap(false, Ordering::Relaxed) {
        return EXECUTION_FAILED;
    }
    let state = unsafe { &mut *state };
    let list = |at: usize| unsafe { (*files.add(at), *lens.add(at), *images.add(at)) };
    let jobs: Vec<(u64, usize, Image)> = (0..state.count).map(list).collect();
    let components = match state.output {
        OUTPUT_YUV => 3,
        OUTPUT_Y => 1,
        _ => return INVALID,
    };
    let mut device = device();
    let backend = handle as c_int;
    for (file, len, _) in jobs.iter().filter(|_| backend != BACKEND_ENGINES_HOST) {
        device.check(*file, *len, "nvJPEG reads a file");
    }
    let price = jobs.iter().map(|(_, len, _)| *len as u64 * DECODE_PRICE).sum();
    let work = move || {
        for (file, len, image) in jobs {
            decode(
                unsafe { std::slice::from_raw_parts(file as *const u8, len) },
                &image,
                components,
            );
        }
    };
    device.decode(stream, work, price, backend != BACKEND_CORES);
    state.last = Some(device.mark(stream));
    SUCCESS
}

fn decode(file: &[u8], image: &Image, components: usize) {
    if !file.starts_with(&[0xff, 0xd8]) {
        fault("nvJPEG decodes a file that is not there yet");
    }
    let planes = forebay_kernel::planes(file);
    if planes.len() != components {
        fault("a batch of nvJPEG's has files of another number of components");
    }
    for (channel, plane) in planes.iter().enumerate() {
        let rows = plane.values.chunks_exact(plane.pitch as usize).take(plane.height as usize);
        for (at, row) in rows.enumerate() {
            let to = image.channels[channel] as usize + at * image.pitches[channel];
            let width = plane.width as usize;
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), to as *mut u8, width) };
        }
    }
}
