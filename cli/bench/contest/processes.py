"""CPU time and memory of processes, as the kernel counts them.

Processes that work for a contender count with it, their children included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int | None = None) -> list[int]:
    """Return the running children of `pid` (default: this process), theirs included."""
    found = []
    try:
        for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children(child)]
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile.
        pass
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of `pids` so far, in user and kernel mode, ended children included."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # Those of the children that it waited for come behind its own.
        ticks += sum(_times(stat))
    return ticks / CLOCK_TICKS


def _times(stat: str) -> list[int]:
    """Return user and kernel time of a `stat`, then those of its ended children, in ticks."""
    # The command's name, in brackets, may hold anything; fields are counted behind it.
    return [int(field) for field in stat.rpartition(")")[2].split()[11:15]]


def thread_seconds(pids: Iterable[int]) -> dict[str, float]:
    """Return the CPU seconds of the threads of `pids` that run now, summed by name.

    A number behind a name's last dash is left out: `fb-decode-3` counts as `fb-decode`.
    """
    ticks: dict[str, int] = {}
    for pid in pids:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                stat = (task / "stat").read_text()
                name = stat.rpartition(")")[0].partition("(")[2]
                kind, dash, number = name.rpartition("-")
                name = kind if dash and number.isdigit() else name
                ticks[name] = ticks.get(name, 0) + sum(_times(stat)[:2])
        except (FileNotFoundError, ProcessLookupError):
            # It ended meanwhile.
            continue
    return {name: spent / CLOCK_TICKS for name, spent in ticks.items()}


def memory_bytes(pid: int | str, file: str, name: str) -> int:
    """Return a figure of `/proc/PID/FILE` in bytes; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/{file} has no {name}")
