"""One memory limit for whatever a contender starts, its share of the page cache included.

Its rule: a limit that cannot be set ends the run; figures without it would be called by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Where the controller of memory is, by version 1 and by version 2, and the file with the limit.
CONTROLLERS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
NAME = "forebay-bench"


@contextmanager
def fence(limit: int) -> Iterator[Callable[[], None]]:
    """Yield what a child calls before it begins, so that it and its children have `limit` bytes."""
    root, file = next(
        (root, file) for root, file in CONTROLLERS.items() if (root / "cgroup.procs").exists()
    )
    group = root / f"{NAME}-{os.getpid()}"
    try:
        group.mkdir()
        (group / file).write_text(str(limit))
    except OSError as error:
        raise SystemExit(f"memory cannot be limited ({error}): run as root") from error
    try:
        yield lambda: enter(group)
    finally:
        group.rmdir()


def enter(group: Path) -> None:
    """Put this process into `group`."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
