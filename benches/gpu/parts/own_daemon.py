"""A daemon of a measurement's own, if Forebay is there: other rows need none.

Where memory has room its cache lies there, so that no disk is measured: a GPU decodes more photos a
second than the disk of many a machine delivers. Figures say which it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import daemons
import place

SHARED_MEMORY = Path("/dev/shm")
# Room for the measured photos, and as much again for the shards they come from.
CAPACITY_BYTES, FREE_BYTES = 8 << 30, 16 << 30
# A file system of our own in memory, where the machine's is missing or small.
MOUNT_BYTES = 24 << 30
# A daemon keeps a quarter of the memory for its tiers and batches unless told otherwise.
MEMORY_BYTES = 4 * (CAPACITY_BYTES + (2 << 30))
# Seconds that a mount or its end takes at most.
MOUNT_SECONDS = 10
# Seconds of `timeout=` of a measured loader: a batch takes milliseconds, so a loader that takes
# longer hangs.
WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Place:
    """The folder of shards and cache, and its kind: `memory` or `disk`."""

    folder: Path = Path(tempfile.gettempdir())
    kind: str = "disk"

    def __str__(self) -> str:
        return f"{self.folder} ({self.kind})"


def memory() -> Path | None:
    """Return shared memory if it is memory and has room for shards and cache."""
    if not SHARED_MEMORY.is_dir() or place.in_memory(SHARED_MEMORY) is None:
        return None
    has_room = shutil.disk_usage(SHARED_MEMORY).free >= FREE_BYTES
    return SHARED_MEMORY if has_room and _is_large() else None


def _is_large() -> bool:
    """Return True if the machine's memory has room for a daemon with such a cache."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= MEMORY_BYTES


@contextmanager
def storage() -> Iterator[Place]:
    """Yield the place for shards and cache: memory if the machine has it, else the disk."""
    shared = memory()
    if shared is not None:
        yield Place(shared, "memory")
        return
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-memory-") as name:
        if not (_is_large() and _mount(Path(name))):
            yield Place()
            return
        try:
            yield Place(Path(name), "memory")
        finally:
            # Lazily: a process that outlives this one may still have files there.
            _called("umount", "--lazy", name)


def _mount(folder: Path) -> bool:
    """Mount memory at a folder; False if this process may not, or there is no such command."""
    if os.geteuid() != 0:
        return False
    options = f"size={MOUNT_BYTES},mode=0700"
    return _called("mount", "-t", "tmpfs", "-o", options, "forebay-gpu", str(folder))


def _called(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=MOUNT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@contextmanager
def environment(where: Place | None = None) -> Iterator[dict[str, str]]:
    """Yield an environment whose loaders start a daemon on a new cache; end and remove both."""
    where = where or Place()
    variables = dict(os.environ)
    if where.kind == "memory":
        variables["FOREBAY_CAPACITY"] = str(CAPACITY_BYTES)
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-", dir=where.folder) as cache:
        # Machines have a Forebay of a wheel beside a Python that it is not installed in.
        if not shutil.which(daemons.FOREBAY):
            yield variables
            return
        with daemons.private_daemon(variables, Path(cache)):
            yield variables
