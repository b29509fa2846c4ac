"""Speed of the disk itself: fio writes and reads as many bytes as a checkpoint has.

Both sides use io_uring and O_DIRECT with the same record size and depth, and end synced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from rounds import Figures

# A block of a checkpoint, and the blocks of the memory that a daemon lends to a rank.
RECORD = 4 << 20
DEPTH = 16
# fio at its best: huge pages double what large reads reach.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# Without room to lock memory fio cannot register its buffers.
SETUPS: tuple[list[str], ...] = (["--fixedbufs=1", "--registerfiles=1"], [])


def write(folder: Path, size: int, jobs: int = 1) -> Figures:
    """Write a fresh file of `size` bytes in each of `jobs` processes, synced at the end."""
    folder.mkdir(exist_ok=True)
    try:
        return _run(folder, size, jobs, ["--rw=write", "--end_fsync=1", "--fallocate=posix"])
    finally:
        shutil.rmtree(folder)


def prepare(folder: Path, size: int, jobs: int = 1) -> None:
    """Write the files that `read` reads."""
    folder.mkdir(exist_ok=True)
    _run(folder, size, jobs, ["--rw=write", "--end_fsync=1", "--fallocate=posix"])


def read(folder: Path, size: int, jobs: int = 1) -> Figures:
    """Read the files that `prepare` wrote."""
    return _run(folder, size, jobs, ["--rw=read", "--readonly"])


def _run(folder: Path, size: int, jobs: int, what: list[str]) -> Figures:
    command = ["fio", "--name=checkpoint", f"--directory={folder}", f"--size={size}"]
    command += [f"--bs={RECORD}", f"--iodepth={DEPTH}", f"--numjobs={jobs}", "--direct=1"]
    command += ["--ioengine=io_uring", "--output-format=json", *what]
    environment = {**os.environ, **HUGE_PAGES}
    for setup in SETUPS:
        run = subprocess.run(
            [*command, *setup], env=environment, capture_output=True, text=True, check=False
        )
        if run.returncode == 0:
            return _told(json.loads(run.stdout)["jobs"], size)
    raise SystemExit(f"fio failed on {folder}: {run.stderr or run.stdout}")


def _told(jobs: list[dict[str, Any]], size: int) -> Figures:
    # fio's own time, without the start of a process; the sync at the end is in it.
    seconds = max(job["job_runtime"] for job in jobs) / 1000
    shares = ((job["usr_cpu"] + job["sys_cpu"]) * job["job_runtime"] for job in jobs)
    cpu = sum(shares) / 100 / 1000
    moved = size * len(jobs)
    return {"seconds": seconds, "bytes": moved, "rate": moved / seconds, "cpu": cpu}
