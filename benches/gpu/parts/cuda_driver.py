"""CUDA's driver by ctypes: a device's memory, streams, events, and a kernel that holds a stream.

The probe and the bare loops use it, so that nothing but the driver stands between them and a GPU.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Flags and answers of the driver's interface.
STREAM_NON_BLOCKING = 1
# An event without a time, for which the host sleeps: a wait that spins would count as work.
EVENT_DISABLE_TIMING, EVENT_BLOCKING_SYNC = 2, 1
# A kernel of one thread that ends after a time. It sleeps meanwhile, which leaves its core to
# others. Hopper's clock of the whole device counts nanoseconds in steps of some 32.
HOLD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 nanoseconds)
{
 .reg .u64 %rd<5>;
 .reg .pred %p<2>;
 ld.param.u64 %rd1, [nanoseconds];
 mov.u64 %rd2, %globaltimer;
AGAIN:
 nanosleep.u32 1000;
 mov.u64 %rd3, %globaltimer;
 sub.u64 %rd4, %rd3, %rd2;
 setp.lt.u64 %p1, %rd4, %rd1;
 @%p1 bra AGAIN;
 ret;
}
"""
POINTER = ctypes.POINTER(c_void_p)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (ctypes.POINTER(c_int),),
    "cuDeviceGet": (ctypes.POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (ctypes.POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (ctypes.POINTER(c_size_t), ctypes.POINTER(c_size_t)),
    "cuMemAlloc_v2": (ctypes.POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (POINTER, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventQuery": (c_void_p,),
    "cuModuleLoadData": (POINTER, c_char_p),
    "cuModuleGetFunction": (POINTER, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER, POINTER),
}


class DriverError(Exception):
    """A call that the driver refused; `status` is its answer, 0 without a driver."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: CUDA error {status}" if status else call)
        self.status = status


def declare(library: ctypes.CDLL, functions: dict[str, tuple[Any, ...]]) -> None:
    """Give functions of a library their arguments' types; each returns a status."""
    for name, arguments in functions.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int


def load() -> ctypes.CDLL:
    """Return the driver's library with its functions' types, started.

    Raises
    ------
    DriverError
        If there is no driver, or no device.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"no CUDA driver: {error}", 0) from None
    declare(library, FUNCTIONS)
    if status := library.cuInit(0):
        raise DriverError("cuInit", status)
    return library


class Device:
    """A device with its primary context, current in the thread that opened it."""

    def __init__(self, ordinal: int = 0) -> None:
        self._library = load()
        self._number = c_int()
        self.call("cuDeviceGet", byref(self._number), ordinal)
        self._context = self._pointer("cuDevicePrimaryCtxRetain", self._number)
        self.bind()
        module = self._pointer("cuModuleLoadData", HOLD)
        self._hold = self._pointer("cuModuleGetFunction", module, b"hold")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises
        ------
        DriverError
            With its answer.
        """
        if status := self.status(name, *arguments):
            raise DriverError(name, status)

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver and return its answer."""
        return int(getattr(self._library, name)(*arguments))

    def _pointer(self, name: str, *arguments: Any) -> int:
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made.value or 0

    def bind(self) -> None:
        """Make the context current in the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int:
        """Return an attribute of the device, by its number in `cuda.h`."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self._number)
        return value.value

    def name(self) -> str:
        """Return the model."""
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, len(text), self._number)
        return text.value.decode()

    def version(self) -> int:
        """Return the newest CUDA release that the driver runs, as 13000 for 13.0."""
        value = c_int()
        self.call("cuDriverGetVersion", byref(value))
        return value.value

    # Memory

    def take(self, size: int) -> int:
        """Return the address of `size` new bytes on the device."""
        at = c_uint64()
        self.call("cuMemAlloc_v2", byref(at), size)
        return at.value

    def give(self, at: int) -> None:
        """Free a block on the device, once the device is done with it."""
        self.call("cuMemFree_v2", at)

    def pinned(self, size: int) -> Bytes:
        """Return `size` bytes of host memory that the device copies from directly, never freed."""
        at = self._pointer("cuMemHostAlloc", size, 0)
        return np.ctypeslib.as_array((c_ubyte * size).from_address(at))

    def upload(self, to: int, data: Bytes) -> None:
        """Copy bytes to the device and wait for it."""
        self.call("cuMemcpyHtoD_v2", to, data.ctypes.data, data.nbytes)
        self.call("cuCtxSynchronize")

    def download(self, at: int, size: int) -> Bytes:
        """Return bytes of the device; work that writes them must have ended."""
        data = np.empty(size, np.uint8)
        self.call("cuMemcpyDtoH_v2", data.ctypes.data, at, size)
        return data

    # Streams

    def stream(self) -> int:
        """Make a stream that does not wait for the default one."""
        return self._pointer("cuStreamCreate", STREAM_NON_BLOCKING)

    def event(self) -> int:
        """Make an event."""
        return self._pointer("cuEventCreate", EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC)

    def record(self, event: int, stream: int) -> None:
        """Let an event mark the end of all work now on a stream."""
        self.call("cuEventRecord", event, stream)

    def after(self, stream: int, event: int) -> None:
        """Let later work of a stream wait for an event, on the device."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def wait(self, event: int) -> None:
        """Wait for an event on the host."""
        self.call("cuEventSynchronize", event)

    def finish(self, stream: int | None = None) -> None:
        """Wait for a stream, or for all of them."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)

    def copy_in(self, to: int, data: Bytes, stream: int) -> None:
        """Queue a copy of pinned bytes to the device."""
        self.call("cuMemcpyHtoDAsync_v2", to, data.ctypes.data, data.nbytes, stream)

    def copy(self, to: int, at: int, size: int, stream: int) -> None:
        """Queue a copy on the device."""
        self.call("cuMemcpyDtoDAsync_v2", to, at, size, stream)

    def fill(self, at: int, value: int, size: int, stream: int) -> None:
        """Queue the writing of one value to `size` bytes."""
        self.call("cuMemsetD8Async", at, value, size, stream)

    def hold(self, stream: int, milliseconds: float) -> None:
        """Queue a kernel that ends after that time."""
        duration = c_uint64(int(milliseconds * 1e6))
        parameters = (c_void_p * 1)(ctypes.addressof(duration))
        shape = (1, 1, 1, 1, 1, 1, 0)
        self.call("cuLaunchKernel", self._hold, *shape, stream, parameters, None)
