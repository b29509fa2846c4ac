//! The part of CUDA's driver that Forebay calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::line::{Mark, Side, Work, device};

type Status = c_int;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
const INVALID_DEVICE: Status = 101;
const NOT_FOUND: Status = 500;
const NOT_READY: Status = 600;

/// Flag to register a read-only map.
const REGISTER_READ_ONLY: c_uint = 8;

/// Attribute of devices that support such maps.
const ATTRIBUTE_READ_ONLY: c_int = 113;

/// The one context.
const CONTEXT: usize = 1;

/// The most that drivers of the 580 line register in one piece.
const REGISTER_MAX: usize = 64 << 30;

/// The kernels, as functions are named.
const PIXELS: usize = 1;
const GATHER: usize = 2;

/// A number that the environment gives.
fn asked(name: &str) -> Option<usize> {
    std::env::var(format!("FOREBAY_EMULATOR_{name}")).ok()?.parse().ok()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    unsafe { *version = asked("CUDA").unwrap_or(13_000) as c_int };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Status {
    if asked("DEVICES") == Some(0) { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(found: *mut c_int, ordinal: c_int) -> Status {
    if ordinal as usize >= asked("DEVICES").unwrap_or(1) {
        return INVALID_DEVICE;
    }
    unsafe { *found = ordinal };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: c_int,
) -> Status {
    let no = attribute == ATTRIBUTE_READ_ONLY && asked("READ_ONLY") == Some(0);
    unsafe { *value = c_int::from(!no) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) -> Status {
    unsafe { *context = CONTEXT };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_context: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    unsafe { *context = CONTEXT };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    device().run_all();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> Status {
    let image = unsafe { CStr::from_ptr(image) }.to_bytes();
    let has = |name: &[u8]| image.windows(name.len()).any(|part| part == name);
    let entries = [&b".entry forebay_pixels"[..], b".entry forebay_gather"];
    if !has(b".target sm_70") || !entries.into_iter().all(has) {
        return NOT_FOUND;
    }
    unsafe { *module = 1 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_module: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    _module: usize,
    name: *const c_char,
) -> Status {
    let found = match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"forebay_pixels" => PIXELS,
        b"forebay_gather" => GATHER,
        _ => return NOT_FOUND,
    };
    unsafe { *function = found };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> Status {
    unsafe { *stream = device().new_stream() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    device().end_stream(stream);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Status {
    let mut device = device();
    if let Some(mark) = device.recorded(event) {
        device.put(stream, Work::Wait(mark));
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Status {
    unsafe { *event = device().new_event() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    device().end_event(event);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    device().record(event, stream);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Status {
    let mut device = device();
    if let Some(mark) = device.recorded(event) {
        device.run_to(mark);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Status {
    let device = device();
    let is_done = |mark: Mark| device.is_done(mark);
    if device.recorded(event).is_none_or(is_done) { SUCCESS } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: usize) -> Status {
    let limit = asked("BYTES").unwrap_or(1 << 32);
    match device().take(len, Side::Device, limit) {
        Some(found) => unsafe { *at = found },
        None => return OUT_OF_MEMORY,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> Status {
    if device().free(at, Side::Device) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut u64, len: usize, _flags: c_uint) -> Status {
    match device().take(len, Side::Host, usize::MAX) {
        Some(found) => unsafe { *at = found },
        None => return OUT_OF_MEMORY,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: u64) -> Status {
    if device().free(at, Side::Host) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(at: u64, len: usize, flags: c_uint) -> Status {
    if len == 0 || len > REGISTER_MAX || flags & REGISTER_READ_ONLY == 0 {
        return INVALID_VALUE;
    }
    device().register(at, len);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: u64) -> Status {
    if device().unregister(at) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) -> Status {
    let mut device = device();
    // A real driver would copy it aside, and the caller would wait for that: Forebay never asks for
    // it.
    if !device.is_pinned(from, len) {
        return INVALID_VALUE;
    }
    device.check(to, len, "a copy writes");
    device.count_copy(from, len);
    let late = Duration::from_millis(COPIES_LATE_MS.load(Ordering::Relaxed));
    let copy = move || {
        pass(late);
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) }
    };
    device.put(stream, Work::Run(Box::new(copy)));
    SUCCESS
}

/// Extra milliseconds of each copy to the device.
static COPIES_LATE_MS: AtomicU64 = AtomicU64::new(0);

/// A slow bus, for tests: copies that are put in line from now on take so much longer. No driver
/// has this.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_emulator_delay_copies(milliseconds: u64) {
    COPIES_LATE_MS.store(milliseconds, Ordering::Relaxed);
}

#[allow(clippy::disallowed_methods, reason = "the delay itself is what is made here")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// Copies so far from memory that was registered, for tests: no driver has this.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_emulator_registered_copies() -> u64 {
    device().registered_copies()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) -> Status {
    device().put(stream, Work::Copy { to, from, len });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, len: usize, stream: usize) -> Status {
    device().put(stream, Work::Set { to, value, len });
    SUCCESS
}

/// Size of the kernels' `View`.
const VIEW: u64 = 184;

/// Size of its `Move`.
const MOVE: u64 = 16;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    blocks: c_uint,
    rows: c_uint,
    _layers: c_uint,
    threads: c_uint,
    _threads_y: c_uint,
    _threads_z: c_uint,
    _shared: c_uint,
    stream: usize,
    arguments: *const *const c_void,
    _extra: *const c_void,
) -> Status {
    if blocks == 0 || rows == 0 || rows > 65_535 || threads == 0 || threads > 1024 {
        return INVALID_VALUE;
    }
    let argument = |at: usize| unsafe { *(*arguments.add(at)).cast::<u64>() };
    let work: Box<dyn FnOnce() + Send> = match function {
        PIXELS => {
            let (views, table) = (argument(0), argument(1));
            let element = unsafe { *(*arguments.add(2)).cast::<u32>() };
            Box::new(move || {
                for row in 0..u64::from(rows) {
                    let view = (views + row * VIEW) as *const c_void;
                    unsafe { forebay_kernel::forebay_pixels(view, table as *const u8, element) };
                }
            })
        }
        GATHER => {
            let (moves, length) = (argument(0), argument(1));
            Box::new(move || {
                for row in 0..u64::from(rows) {
                    let one = (moves + row * MOVE) as *const c_void;
                    let threads = u64::from(blocks) * u64::from(threads);
                    unsafe { forebay_kernel::forebay_gather(one, length, threads) };
                }
            })
        }
        _ => return INVALID_VALUE,
    };
    device().put(stream, Work::Run(work));
    SUCCESS
}
