"""One limit on memory for whatever a contender starts, its share of the page cache included.

Its rule: a limit that cannot be set is an error; figures without it would be called by its name.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Where the controller of memory is, by version 1 and by version 2, and the file with the limit.
CONTROLLERS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
NAME = "forebay-bench"
# A process that was killed is gone within so many seconds, unless the kernel waits for a device.
END_S = 30.0


class Unfenced(Exception):
    """Memory cannot be limited here."""


@contextmanager
def fence(limit: int) -> Iterator[Callable[[], None]]:
    """Yield what a child calls before it begins, so that it and its children have `limit` bytes.

    Raises `Unfenced` where that cannot be had.
    """
    group = make(limit)
    try:
        yield lambda: enter(group)
    finally:
        clear(group)
        group.rmdir()


def clear(group: Path) -> None:
    """End whoever is still in `group`, and wait until they have."""
    for pid in map(int, (group / "cgroup.procs").read_text().split()):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], END_S)
        os.close(handle)


def make(limit: int) -> Path:
    """Make a group with a limit."""
    for root, file in CONTROLLERS.items():
        if not (root / "cgroup.procs").exists():
            continue
        group = root / f"{NAME}-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            raise Unfenced(f"memory cannot be limited ({error}): run as root") from error
        try:
            (group / file).write_text(str(limit))
        except OSError as error:
            group.rmdir()
            raise Unfenced(f"memory cannot be limited ({error}): run as root") from error
        return group
    raise Unfenced("memory cannot be limited: there is no cgroup file system at /sys/fs/cgroup")


def enter(group: Path) -> None:
    """Put this process into `group`."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
