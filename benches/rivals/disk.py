"""Speed of the disk: fio reads the very files that Forebay's cache holds.

Both read the same files with the same record size and the same I/O (io_uring, O_DIRECT) in one run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

# Reads under way at once: enough to saturate an NVMe device.
DEPTH = 32
SECONDS = 4
# Smaller files in a cache's directory are indexes, not shards.
SHARD_BYTES_MIN = 1 << 20
BLOCK = 4096
# fio at its best: huge pages double what large reads reach.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
SETUPS = {"registered": ["--fixedbufs=1", "--registerfiles=1"], "not registered": []}
# fio takes a list of files of this length at most.
LIST_MAX = 4000


def shard_files(cache: Path) -> list[Path]:
    """Return the shards that rest in `cache`."""
    files = (path for path in sorted(cache.rglob("*")) if path.is_file())
    return [path for path in files if path.stat().st_size >= SHARD_BYTES_MIN]


def fio(cache: Path, record_bytes: int) -> tuple[str, float]:
    """Return fio's rate on `cache` in records of `record_bytes`, in bytes per second.

    The text before it describes fio's set-up: registered buffers and files where the limit on
    locked memory allows it, neither otherwise.
    """
    names, length = [], 0
    for file in shard_files(cache):
        name = str(file.relative_to(cache)).replace(":", r"\:")
        length += len(name) + 1
        if length > LIST_MAX:
            break
        names.append(name)
    size = aligned(record_bytes)
    command = [
        "fio",
        "--name=shards",
        "--filename=" + ":".join(names),
        "--readonly",
        "--rw=read",
        "--file_service_type=sequential",
        "--ioengine=io_uring",
        "--direct=1",
        f"--bs={size}",
        f"--iodepth={DEPTH}",
        "--time_based",
        f"--runtime={SECONDS}",
        "--output-format=json",
    ]
    for setup, options in SETUPS.items():
        run = subprocess.run(
            [*command, *options],
            cwd=cache,
            env={**os.environ, **HUGE_PAGES},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode == 0:
            rate = float(json.loads(run.stdout)["jobs"][0]["read"]["bw_bytes"])
            return f"fio {size // 1024} KiB, {setup}", rate
    raise RuntimeError(f"fio cannot read {cache}: {run.stderr}")


def aligned(size: int) -> int:
    """Return `size` rounded up to what O_DIRECT can read."""
    return -(-size // BLOCK) * BLOCK
