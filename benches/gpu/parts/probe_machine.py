"""The machine under a decoder: memory that a GPU copies from directly (E1), and backends (E2)."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cuda_driver import Bytes, Device, DriverError
from nvjpeg import BACKENDS, Decoder, Library, Refused
from probe_lines import Line, attempt, failure, median

# Attributes of `cuda.h`: registration at all, and of memory mapped read-only; pageable access.
HOST_REGISTER, READ_ONLY_REGISTER, PAGEABLE_ACCESS = 99, 113, 88
# Registration for all contexts, and of memory that the device only reads.
PORTABLE, READ_ONLY = 1, 8
# As large as a small slab, and what is copied from it at once.
SLAB, PIECE, PIECES = 512 << 20, 64 << 20, 16
HUGE = 2 << 20
ROUNDS = 3
# Linux: no writable map may be made from now on.
F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 0x10
# Linux: joins pages to huge ones at once, as Forebay's daemon asks for.
MADV_COLLAPSE, MAP_FIXED = 25, 0x10
SHARED_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def mapped(memory: int, protection: int) -> Bytes:
    """Map a slab where huge pages can lie, until the process ends.

    Raises
    ------
    OSError
        The system's.
    """
    # An address range to choose an aligned part of; Python maps only where the system likes.
    reserved = LIBC.mmap(None, SLAB + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    at = -(-(reserved or 0) // HUGE) * HUGE
    if LIBC.mmap(at, SLAB, protection, mmap.MAP_SHARED | MAP_FIXED, memory, 0) != at:
        raise OSError(ctypes.get_errno(), "mmap")
    return np.ctypeslib.as_array((ctypes.c_ubyte * SLAB).from_address(at))


def registration(folder: Path) -> Iterator[Line]:
    """E1: registration of a slab as a client maps it, and copies from it."""
    del folder
    device = Device()
    huge = SHARED_HUGE.read_text().strip() if SHARED_HUGE.exists() else "absent"
    numbers = {
        "register": device.attribute(HOST_REGISTER),
        "read_only": device.attribute(READ_ONLY_REGISTER),
        "pageable": device.attribute(PAGEABLE_ACCESS),
    }
    yield Line(f"attributes {numbers}; huge pages of shared memory: {huge}", numbers)
    target, stream = device.take(PIECE), device.stream()
    pinned = device.pinned(PIECE)
    pinned[:] = 1
    yield from attempt("cudaHostAlloc", _rate, device, target, stream, pinned, "cudaHostAlloc")
    kinds = (
        ("4 KiB pages", 0, False),
        ("joined to 2 MiB pages", 0, True),
        ("a pool's 2 MiB pages", os.MFD_HUGETLB, False),
    )
    for name, flags, is_joined in kinds:
        yield from attempt(name, _slab, device, (target, stream), name, flags, is_joined)


def _slab(
    device: Device, to: tuple[int, int], name: str, flags: int, is_joined: bool
) -> Iterator[Line]:
    memory = os.memfd_create("slab", flags | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, SLAB)
    # The daemon's own map stays writable; the client's is made after the seal.
    writable = mapped(memory, mmap.PROT_READ | mmap.PROT_WRITE)
    writable[:] = 1
    if is_joined:
        # Each for itself, as the daemon does: not every page finds room.
        places = range(writable.ctypes.data, writable.ctypes.data + SLAB, HUGE)
        joined = sum(not LIBC.madvise(place, HUGE, MADV_COLLAPSE) for place in places)
        name = f"{name} ({joined} of {len(places)})"
    fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    view = mapped(memory, mmap.PROT_READ)
    tried = {}
    for words, how in (("read-only", PORTABLE | READ_ONLY), ("plain", PORTABLE)):
        begin = time.perf_counter()
        status = device.status("cuMemHostRegister_v2", view.ctypes.data, SLAB, how)
        spent = time.perf_counter() - begin
        tried[words] = {"status": status, "seconds": round(spent, 4)}
        if status:
            continue
        yield Line(
            f"{name}: registered {words} in {spent * 1000:.1f} ms, {SLAB / spent / 1e9:.1f} GB/s",
            {"slab": name, "tried": tried},
        )
        yield from _rate(device, *to, view[:PIECE], f"{name}, registered {words}")
        device.call("cuMemHostUnregister", view.ctypes.data)
        break
    else:
        yield Line(f"{name}: not registered: {tried}", {"slab": name, "tried": tried})
    yield from _rate(device, *to, view[PIECE : 2 * PIECE], f"{name}, not registered")


def _rate(device: Device, target: int, stream: int, source: Bytes, name: str) -> Iterator[Line]:
    rates = []
    for turn in range(ROUNDS + 1):
        begin = time.perf_counter()
        for _ in range(PIECES):
            device.copy_in(target, source, stream)
        device.finish(stream)
        if turn:
            rates.append(PIECE * PIECES / (time.perf_counter() - begin) / 1e9)
    yield Line(
        f"{name}: copies at {median(rates):.1f} GB/s", {"source": name, "gb_per_second": rates}
    )


def backends(folder: Path) -> Iterator[Line]:
    """E2: backends that start here, their engines, and the library that engines need."""
    del folder
    try:
        device = Device()
        driver = device.version()
        yield Line(f"{device.name()}, driver's CUDA {driver // 1000}.{driver % 1000 // 10}")
    except DriverError as error:
        yield Line(f"no device: {failure(error)}")
    for name in ("libnvcuvid.so.1", "libnvidia-ml.so.1"):
        try:
            ctypes.CDLL(name)
            yield Line(f"{name} loads", {"library": name, "loads": True})
        except OSError as error:
            yield Line(f"{name}: {error}", {"library": name, "loads": False})
    library = Library()
    cudart = library.version("nvjpegGetCudartProperty")
    yield Line(
        f"nvJPEG {library.version()} (cudart {cudart}) of {Path(library.path).name}",
        {"nvjpeg": library.version(), "cudart": cudart},
    )
    for backend, name in BACKENDS.items():
        begin = time.perf_counter()
        try:
            decoder = Decoder(library, backend)
        except Refused as error:
            yield Line(
                f"backend {backend}, {name}: {error}", {"backend": backend, "status": error.status}
            )
            continue
        spent = (time.perf_counter() - begin) * 1000
        try:
            engines, cores = decoder.engines()
            words = f"{engines} engines of {cores} cores"
        except Refused as error:
            words = str(error)
        yield Line(
            f"backend {backend}, {name}: starts in {spent:.0f} ms; {words}",
            {"backend": backend, "status": 0, "engines": words},
        )
        decoder.close()
