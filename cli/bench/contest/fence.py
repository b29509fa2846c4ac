"""A memory limit for a contender and its children, page cache included.

A limit that cannot be set is an error: figures without it would be mislabelled. Swap is limited as
well, since memory beyond the limit would otherwise only be slow.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAME = "forebay-bench"
# A process that was killed is gone within so many seconds, unless the kernel waits for a device.
END_S = 30.0
# File in which the kernel reports the amount of swap.
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Version:
    """Paths of a cgroup version's memory controller and of its limits."""

    root: Path
    limit: str
    swap: str
    # True if the limit on swap covers memory and swap together.
    is_both: bool


VERSIONS = (
    Version(
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        is_both=True,
    ),
    Version(Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max", is_both=False),
)


class Unfenced(Exception):
    """Memory cannot be limited here."""


@contextmanager
def fence(limit: int) -> Iterator[Callable[[], None]]:
    """Yield the function a child calls before it begins, so that it and its children have `limit`
    bytes.

    Raises `Unfenced` if the limit cannot be set.
    """
    group = make(limit)
    try:
        yield lambda: enter(group)
    finally:
        clear(group)
        group.rmdir()


def clear(group: Path) -> None:
    """End all processes in `group`, and wait until they have ended."""
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
    for version in VERSIONS:
        root = version.root
        if not (root / "cgroup.procs").exists():
            continue
        if why := not_passed_on(root):
            raise Unfenced(f"memory cannot be limited: {why}")
        group = root / f"{NAME}-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            raise Unfenced(f"memory cannot be limited: {advice(error)}") from error
        try:
            (group / version.limit).write_text(str(limit))
            limit_swap(group / version.swap, limit if version.is_both else 0)
        except OSError as error:
            group.rmdir()
            raise Unfenced(f"memory cannot be limited: {advice(error)}") from error
        except Unfenced:
            group.rmdir()
            raise
        return group
    raise Unfenced("memory cannot be limited: there is no cgroup file system at /sys/fs/cgroup")


def limit_swap(file: Path, limit: int) -> None:
    """Limit swap, where there is any."""
    if file.exists():
        file.write_text(str(limit))
    elif has_swap():
        raise Unfenced(
            f"memory cannot be limited while swap is not, and the kernel has no {file.name}:"
            " swapoff -a, or boot with swapaccount=1"
        )


def has_swap() -> bool:
    """Return True if this machine has swap."""
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1]) > 0
    return False


def not_passed_on(root: Path) -> str | None:
    """Say why groups below `root`, if it is version 2's, have no controller of memory."""
    passed_on = root / "cgroup.subtree_control"
    if not passed_on.exists() or "memory" in passed_on.read_text().split():
        return None
    if "memory" in (root / "cgroup.controllers").read_text().split():
        return (
            f"{root} does not pass its memory controller on to groups: as root, echo +memory >"
            f" {passed_on} (in a container, its processes have to be in a group below first)"
        )
    return (
        f"{root} has no memory controller: the kernel or this container does without (see"
        f" {root / 'cgroup.controllers'}); run on the host"
    )


def advice(error: OSError) -> str:
    """Return the problem and the remedy."""
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return f"{error}: run as root"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error}: mount the cgroup file system writable (docker run --privileged)"
    return str(error)


def enter(group: Path) -> None:
    """Put this process into `group`."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
