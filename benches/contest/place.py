"""Where a contender finds its bytes: the page cache, or a daemon of Forebay's with a tier.

Its rule: warm means the same level for those who are compared. Rivals read files through the page
cache; Forebay's memory tier is held against them, and its tier on a disk, read by O_DIRECT, stands
for itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from daemons import node_daemon, private_daemon
from roster import PAGE_CACHE, Contender

GIB = 1 << 30
# Of a contender whose files are more than the page cache can hold: a disk is part of what it reads.
SMALL_PAGE_CACHE = "small_page_cache"
# Of what memory is free, files may take this share for the page cache to hold all of them: trainers
# and workers need the rest.
CACHED_SHARE = 0.8
# A tier in memory holds the shards and some room at their ends.
ROOM = 1.1
# What the daemon has beside the tier: frames and slabs.
BESIDE_BYTES = GIB
# Of what memory is free, a tier may take this share: trainers need some, too.
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
    """Return why the shards do not fit a tier in memory."""
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
    """Return why a tier in `folder` would be one of memory."""
    folder.mkdir(parents=True, exist_ok=True)
    device = os.stat(folder).st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Device numbers are the third field; the file system's name is the first one behind " - ".
        number, kind = line.split()[2], line.partition(" - ")[2].split()[0]
        if number == f"{os.major(device)}:{os.minor(device)}" and kind in ("tmpfs", "ramfs"):
            return f"{folder} is memory ({kind}), and no disk: name a folder on one by --work"
    return None


def page_cache(files: list[str], limit: int | None) -> str:
    """Return whether the page cache can hold all of `files`."""
    room = min(available_bytes(), limit) if limit else available_bytes()
    held = sum(os.path.getsize(file) for file in files)
    return PAGE_CACHE if held <= room * CACHED_SHARE else SMALL_PAGE_CACHE


def available_bytes() -> int:
    """Return the memory that can be had: what caches files is given back when it is asked for."""
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
    """Have the kernel forget `files`."""
    for name in files:
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
