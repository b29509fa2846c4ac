"""Storage of a contender's bytes: the page cache, or a Forebay daemon with a tier.

Warm means the same level for all that are compared. Rivals read files through the page cache;
Forebay's memory tier is compared with them, and its tier on a disk, read with O_DIRECT, is reported
separately.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from daemons import node_daemon, private_daemon
from roster import PAGE_CACHE, Contender

GIB = 1 << 30
# Storage of a contender whose files exceed the page cache: a disk is part of its reads.
SMALL_PAGE_CACHE = "small_page_cache"
# Share of available memory that files may take to count as cached: trainers and workers need the
# rest.
CACHED_SHARE = 0.8
# A tier in memory holds the shards and some room at their ends.
ROOM = 1.1
# Memory of the daemon beside the tier: frames and slabs.
BESIDE_BYTES = GIB
# Share of available memory a tier may take: trainers need some, too.
SHARE = 0.5
IN_MEMORY = """
[daemon]
memory = "{memory}B"

[[tier]]
name = "ram"
class = "memory"
capacity = "{capacity}B"
"""


def no_room(shards: list[str], limit: int | None) -> str | None:
    """Return why the shards do not fit a tier in memory, or None."""
    needed = memory_of(shards)
    free = available_bytes()
    room = int(min(free * SHARE, limit * SHARE if limit else free))
    if needed <= room:
        return None
    return (
        f"the shards need {needed / GIB:.1f} GiB in a tier of memory, and {room / GIB:.1f} GiB"
        " can be spared: name fewer shards"
    )


def in_memory(folder: Path) -> str | None:
    """Return why a tier in `folder` would be in memory, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    device = os.stat(folder).st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Device numbers are the third field; the file system's name is the first one behind " - ".
        number, kind = line.split()[2], line.partition(" - ")[2].split()[0]
        if number == f"{os.major(device)}:{os.minor(device)}" and kind in ("tmpfs", "ramfs"):
            return f"{folder} is memory ({kind}), and no disk: name a folder on one by --work"
    return None


def page_cache(files: list[str], limit: int | None) -> str:
    """Return True if the page cache can hold all of `files`."""
    room = min(available_bytes(), limit) if limit else available_bytes()
    held = sum(os.path.getsize(file) for file in files)
    return PAGE_CACHE if held <= room * CACHED_SHARE else SMALL_PAGE_CACHE


def available_bytes() -> int:
    """Return the available memory: the kernel gives back cached pages on demand."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


def memory_of(shards: list[str]) -> int:
    """Return the memory of a daemon that holds `shards`."""
    return capacity_of(shards) + BESIDE_BYTES


def capacity_of(shards: list[str]) -> int:
    """Return the capacity of a tier that holds `shards`."""
    return int(sum(os.path.getsize(shard) for shard in shards) * ROOM) + (64 << 20)


@contextmanager
def place(
    contender: Contender,
    shards: list[str],
    cache: Path,
    forebay: Path,
    before: Callable[[], None],
) -> Iterator[dict[str, str]]:
    """Yield the environment in which `contender` plays; a daemon ends with it."""
    environment = dict(os.environ)
    if contender.storage in (PAGE_CACHE, SMALL_PAGE_CACHE):
        yield environment
    elif contender.storage == "o_direct":
        cache.mkdir(parents=True, exist_ok=True)
        with private_daemon(environment, cache, forebay):
            yield environment
    else:
        config = IN_MEMORY.format(memory=memory_of(shards), capacity=capacity_of(shards))
        with node_daemon(environment, config, before, forebay):
            yield environment


def out_of_page_cache(files: list[str]) -> None:
    """Drop `files` from the page cache."""
    for name in files:
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
