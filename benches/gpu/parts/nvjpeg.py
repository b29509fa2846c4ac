"""nvJPEG by ctypes: its batched interface, from files to their components.

Numbers are those of nvJPEG's interface, which releases 12 and 13 share in the parts used here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

from cuda_driver import declare

# Backends: `device` ones read files on the device.
HYBRID, CORES, ENGINES, CORES_DEVICE, ENGINES_DEVICE = 1, 2, 3, 4, 5
BACKENDS = {
    ENGINES_DEVICE: "engines, files on the device",
    ENGINES: "engines, files on the host",
    CORES_DEVICE: "cores, files on the device",
    CORES: "cores, files on the host",
    HYBRID: "host and cores",
}
ON_DEVICE = (CORES_DEVICE, ENGINES_DEVICE)
# Components as stored; brightness alone.
YUV, LUMA = 1, 2
# A flag of handles: the engines keep no image back to overlap it with the next.
NO_PIPELINE = 1
# Images of any sampling fit what is allocated for unsampled ones.
CHROMA_444 = 0
STATUSES = (
    "success",
    "not initialized",
    "invalid parameter",
    "bad JPEG",
    "JPEG not supported",
    "allocator failure",
    "execution failed",
    "architecture mismatch",
    "internal error",
    "implementation not supported",
    "incomplete bitstream",
)
# The widest loads of any kernel.
ALIGN = 256
# A reader of whole words may pass a file's end by one vector.
PADDING = 256


class Image(ctypes.Structure):
    """Destinations of an image's components."""

    _fields_ = (("channel", c_void_p * 4), ("pitch", c_size_t * 4))


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "nvjpegGetProperty": (c_int, POINTER(c_int)),
    "nvjpegGetCudartProperty": (c_int, POINTER(c_int)),
    "nvjpegCreateEx": (c_int, c_void_p, c_void_p, c_uint, POINTER(c_void_p)),
    "nvjpegDestroy": (c_void_p,),
    "nvjpegGetHardwareDecoderInfo": (c_void_p, POINTER(c_uint), POINTER(c_uint)),
    "nvjpegJpegStateCreate": (c_void_p, POINTER(c_void_p)),
    "nvjpegJpegStateDestroy": (c_void_p,),
    "nvjpegJpegStreamCreate": (c_void_p, POINTER(c_void_p)),
    "nvjpegJpegStreamDestroy": (c_void_p,),
    "nvjpegJpegStreamParseHeader": (c_void_p, c_char_p, c_size_t, c_void_p),
    "nvjpegDecodeBatchedSupported": (c_void_p, c_void_p, POINTER(c_int)),
    "nvjpegDecodeBatchedPreAllocate": (c_void_p, c_void_p, *(c_int,) * 5),
    "nvjpegDecodeBatchedInitialize": (c_void_p, c_void_p, c_int, c_int, c_int),
    "nvjpegDecodeBatched": (
        c_void_p,
        c_void_p,
        POINTER(c_void_p),
        POINTER(c_size_t),
        POINTER(Image),
        c_void_p,
    ),
}


class Refused(Exception):
    """A call that nvJPEG refused; `status` is its answer."""

    def __init__(self, call: str, status: int) -> None:
        name = STATUSES[status] if status < len(STATUSES) else "unknown"
        super().__init__(f"{call}: status {status}, {name}")
        self.status = status


def places() -> list[str]:
    """Return files and names to try, in order: torchvision's own copy is the one in use there."""
    found = [os.environ["FOREBAY_NVJPEG"]] if os.environ.get("FOREBAY_NVJPEG") else []
    for package, folder in (("torchvision", "../torchvision.libs"), ("nvidia", "cu13/lib")):
        spec = importlib.util.find_spec(package)
        for home in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(map(str, Path(home, folder).glob("libnvjpeg*.so*")))
    return [*found, "libnvjpeg.so.13", "libnvjpeg.so.12"]


class Library:
    """The library, opened for good: it may have threads of its own."""

    def __init__(self, paths: Sequence[str] | None = None) -> None:
        tried = []
        for path in places() if paths is None else paths:
            try:
                self._library = ctypes.CDLL(path)
            except OSError as error:
                tried.append(str(error))
                continue
            self.path = path
            break
        else:
            raise FileNotFoundError(f"no nvJPEG: {'; '.join(tried)}")
        declare(self._library, FUNCTIONS)

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function and return its answer."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        Refused
            With its answer.
        """
        if status := self.status(name, *arguments):
            raise Refused(name, status)

    def version(self, of: str = "nvjpegGetProperty") -> str:
        """Return the release, such as 13.0.1."""
        parts = []
        for part in range(3):
            value = c_int()
            self.call(of, part, byref(value))
            parts.append(str(value.value))
        return ".".join(parts)


class Batch:
    """Files and the places of their components: what one call reads and writes."""

    def __init__(
        self,
        files: Sequence[tuple[int, int]],
        images: Sequence[Sequence[tuple[int, int]]],
        output: int = YUV,
    ) -> None:
        """Take files as (address, bytes), and per image its components as (address, pitch)."""
        self.count, self.output = len(files), output
        self.data = (c_void_p * self.count)(*(at for at, _ in files))
        self.lens = (c_size_t * self.count)(*(size for _, size in files))
        self.images = (Image * self.count)()
        for image, planes in zip(self.images, images, strict=True):
            for channel, (at, pitch) in enumerate(planes):
                image.channel[channel], image.pitch[channel] = at, pitch


class Decoder:
    """A handle on one backend, and states to take turns with; for one thread at a time."""

    def __init__(self, library: Library, backend: int, states: int = 1, flags: int = 0) -> None:
        self.library, self.backend = library, backend
        self._handle, self._stream = c_void_p(), c_void_p()
        self._states: list[c_void_p] = []
        library.call("nvjpegCreateEx", backend, None, None, flags, byref(self._handle))
        library.call("nvjpegJpegStreamCreate", self._handle, byref(self._stream))
        for _ in range(states):
            state = c_void_p()
            library.call("nvjpegJpegStateCreate", self._handle, byref(state))
            self._states.append(state)

    def engines(self) -> tuple[int, int]:
        """Return the number of JPEG engines, and the cores of each."""
        engines, cores = c_uint(), c_uint()
        arguments = (self._handle, byref(engines), byref(cores))
        self.library.call("nvjpegGetHardwareDecoderInfo", *arguments)
        return engines.value, cores.value

    def takes(self, file: bytes) -> str:
        """Return `yes`, `no`, or the status by which its header was refused."""
        call = "nvjpegJpegStreamParseHeader"
        status = self.library.status(call, self._handle, file, len(file), self._stream)
        if not status:
            answer = c_int(-1)
            call = "nvjpegDecodeBatchedSupported"
            status = self.library.status(call, self._handle, self._stream, byref(answer))
        if status:
            return str(Refused(call, status))
        # Zero means yes.
        return "no" if answer.value else "yes"

    def reserve(self, count: int, width: int, height: int, output: int = YUV) -> None:
        """Allocate every state's memory for such a batch."""
        for state in self._states:
            arguments = (self._handle, state, count, width, height, CHROMA_444, output)
            self.library.call("nvjpegDecodeBatchedPreAllocate", *arguments)

    def begin(self, batch: Batch, state: int = 0) -> None:
        """Prepare a state, whose batch before must have ended."""
        arguments = (self._handle, self._states[state], batch.count, 1, batch.output)
        self.library.call("nvjpegDecodeBatchedInitialize", *arguments)

    def decode(self, batch: Batch, stream: int, state: int = 0) -> None:
        """Decode a batch on `stream`, with a state that was prepared for it."""
        files = (batch.data, batch.lens, batch.images)
        self.library.call("nvjpegDecodeBatched", self._handle, self._states[state], *files, stream)

    def close(self) -> None:
        """Free it, once its work has ended."""
        for state in self._states:
            self.library.call("nvjpegJpegStateDestroy", state)
        self.library.call("nvjpegJpegStreamDestroy", self._stream)
        self.library.call("nvjpegDestroy", self._handle)


def pitch(width: int) -> int:
    """Return the bytes from row to row of a component, as Forebay places it."""
    return -(-width // ALIGN) * ALIGN
