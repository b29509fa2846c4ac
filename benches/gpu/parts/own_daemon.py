"""A daemon of a measurement's own, if Forebay is there: other rows need none.

Where memory has room its cache lies there, so that no disk is measured: a GPU decodes more photos a
second than the disk of many a machine delivers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daemons

SHARED_MEMORY = Path("/dev/shm")
# Room for the measured photos, and as much again for the shards they come from.
CAPACITY_BYTES, FREE_BYTES = 8 << 30, 16 << 30
# A daemon keeps a quarter of the memory for its tiers and batches unless told otherwise.
MEMORY_BYTES = 4 * (CAPACITY_BYTES + (2 << 30))


def memory() -> Path | None:
    """Return shared memory if it has room for shards and cache; else the default place."""
    if not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).free < FREE_BYTES:
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return SHARED_MEMORY if total >= MEMORY_BYTES else None


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Yield an environment whose loaders start a daemon on a new cache; end and remove both."""
    variables = dict(os.environ)
    place = memory()
    if place is not None:
        variables["FOREBAY_CAPACITY"] = str(CAPACITY_BYTES)
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-", dir=place) as cache:
        # Machines have a Forebay of a wheel beside a Python that it is not installed in.
        if not shutil.which(daemons.FOREBAY):
            yield variables
            return
        with daemons.private_daemon(variables, Path(cache)):
            yield variables
