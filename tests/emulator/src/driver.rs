//! The part of CUDA's driver that Forebay calls.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::line::{Device, Mark, Side, Work, current, device, set_current};

type Status = c_int;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
const INVALID_DEVICE: Status = 101;
const INVALID_CONTEXT: Status = 201;
const NOT_FOUND: Status = 500;
const NOT_READY: Status = 600;
const LAUNCH_FAILED: Status = 719;
const NOT_SUPPORTED: Status = 801;

/// Way of a thread to treat calls that a capture of a graph forbids.
const MODE_RELAXED: c_int = 2;

/// Flag to register a read-only map.
const REGISTER_READ_ONLY: c_uint = 8;

/// Attribute of devices that support such maps.
const ATTRIBUTE_READ_ONLY: c_int = 113;

/// The most that drivers of the 580 line register in one piece.
const REGISTER_MAX: usize = 64 << 30;

/// The kernels, as functions are named.
const PIXELS: usize = 1;
const GATHER: usize = 2;

/// Priority of streams that go before all others.
const PRIORITY_FIRST: c_int = -5;

/// Prices of work, for the clock: of a byte that is copied, and of a result of the kernels.
pub(crate) const COPY_PRICE: u64 = 1;
const RESULT_PRICE: u64 = 8192;

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// A number that the environment gives.
pub(crate) fn asked(name: &str) -> Option<usize> {
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
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    unsafe { *count = asked("DEVICES").unwrap_or(1) as c_int };
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
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Status {
    unsafe { *bytes = memory_size() };
    SUCCESS
}

fn memory_size() -> usize {
    asked("BYTES").unwrap_or(1 << 32)
}

/// Each device's one context has the number after its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Status {
    unsafe { *context = device as usize + 1 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    set_current(context);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    unsafe { *context = current() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Status {
    unsafe { *mode = MODE.replace(*mode) };
    SUCCESS
}

/// Makes a call that takes or gives memory, or asks for an event, if the calling thread may.
fn call(work: impl FnOnce(&mut Device) -> Status) -> Status {
    let mut device = device();
    if device.is_capturing && MODE.get() != MODE_RELAXED {
        crate::line::fault("a call makes the graph invalid that is being captured");
    }
    if current() == 0 { INVALID_CONTEXT } else { work(&mut device) }
}

/// The status of a call that names something of the driver's.
fn found(is_there: bool) -> Status {
    if is_there { SUCCESS } else { INVALID_VALUE }
}

/// Begins or ends the capture of a graph, for tests: no driver has this.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_emulator_capture(captures: bool) {
    device().is_capturing = captures;
}

/// The host's time, for tests: no driver has this.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_emulator_clock() -> u64 {
    device().clock()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    call(|device| {
        if device.is_capturing {
            // In any mode of the thread.
            crate::line::fault("all work is waited for while a graph is captured");
        }
        device.run_all();
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    last: *mut c_int,
    first: *mut c_int,
) -> Status {
    unsafe { (*last, *first) = (0, PRIORITY_FIRST) };
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
    if current() == 0 {
        return INVALID_CONTEXT;
    }
    unsafe { *stream = device().new_stream() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    flags: c_uint,
    priority: c_int,
) -> Status {
    // Batches would wait behind the kernels of a training step.
    if priority != PRIORITY_FIRST {
        crate::line::fault("a stream of Forebay's does not go first");
    }
    unsafe { cuStreamCreate(stream, flags) }
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
        device.put(stream, Work::Wait(mark), 0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> Status {
    if EVENTS_FAIL.load(Ordering::Relaxed) {
        return LAUNCH_FAILED;
    }
    call(|device| {
        unsafe { *event = device.new_event() };
        SUCCESS
    })
}

/// No event is made.
static EVENTS_FAIL: AtomicBool = AtomicBool::new(false);

/// Work whose end is unknown, for tests: until it is called again, no event is made. No driver has
/// this.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_emulator_fail_events(fail: bool) {
    EVENTS_FAIL.store(fail, Ordering::Relaxed);
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
    call(|device| {
        if let Some(mark) = device.recorded(event) {
            device.wait(mark);
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Status {
    call(|device| {
        let is_done = |mark: Mark| device.is_done(mark);
        if device.recorded(event).is_none_or(is_done) { SUCCESS } else { NOT_READY }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: usize) -> Status {
    take(at, len, Side::Device, memory_size())
}

fn take(at: *mut u64, len: usize, side: Side, limit: usize) -> Status {
    call(|device| {
        let Some(taken) = device.take(len, side, limit) else { return OUT_OF_MEMORY };
        unsafe { *at = taken };
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> Status {
    free(at, Side::Device)
}

fn free(at: u64, side: Side) -> Status {
    call(|device| found(device.free(at, side)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut u64, len: usize, _flags: c_uint) -> Status {
    take(at, len, Side::Host, asked("PINNED").unwrap_or(usize::MAX))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: u64) -> Status {
    free(at, Side::Host)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(at: u64, len: usize, flags: c_uint) -> Status {
    if len == 0 || len > REGISTER_MAX || flags & REGISTER_READ_ONLY == 0 {
        return INVALID_VALUE;
    }
    call(|device| {
        if asked("REGISTERS").is_some_and(|most| device.registered() >= most) {
            return NOT_SUPPORTED;
        }
        device.register(at, len);
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: u64) -> Status {
    call(|device| found(device.unregister(at)))
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
    device.put_upload(stream, Work::Run(Box::new(copy)), from, len, len as u64 * COPY_PRICE);
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
    device().put(stream, Work::Copy { to, from, len }, 0);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, len: usize, stream: usize) -> Status {
    device().put(stream, Work::Set { to, value, len }, 0);
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
    device().put(stream, Work::Run(work), u64::from(rows) * RESULT_PRICE);
    SUCCESS
}
