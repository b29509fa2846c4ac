"""Quiet of the disk between contenders.

A file that a contender removed is discarded on the disk after its play, at the file system's next
commit. The contender that comes next would wait for that, and always the same one.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# Fields of /sys/dev/block/*/stat: operations completed.
READS, WRITES, DISCARDS, FLUSHES = 0, 4, 11, 15
# A disk without an operation for so long has nothing left to do.
QUIET_SECONDS = 0.3
# A machine whose disk is never quiet is measured all the same.
PATIENCE_SECONDS = 20.0


def settle(directory: Path) -> None:
    """Wait until the disk of a directory has done all that was asked of it."""
    os.sync()
    began = since = time.monotonic()
    before = _operations(directory)
    while time.monotonic() - since < QUIET_SECONDS:
        if time.monotonic() - began > PATIENCE_SECONDS:
            return
        time.sleep(QUIET_SECONDS / 10)
        after = _operations(directory)
        if after != before:
            before, since = after, time.monotonic()


def _operations(directory: Path) -> list[int]:
    """Return the numbers of operations so far; none for a file system without a disk."""
    device = os.stat(directory).st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not stat.exists():
        return []
    fields = stat.read_text().split()
    # Kernels before 4.18 and 5.5 have fewer.
    return [int(fields[at]) for at in (READS, WRITES, DISCARDS, FLUSHES) if at < len(fields)]
