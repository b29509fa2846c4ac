"""What the disk can do: fio reads the very files that Forebay's cache holds.

Its rule: same files, same record size, same kind of I/O (io_uring, O_DIRECT), same run.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

# Reads under way at once: enough to saturate an NVMe device.
DEPTH = 32
SECONDS = 4
# Smaller files in a cache's directory are indexes, not shards.
SHARD_BYTES_MIN = 1 << 20
BLOCK = 4096


def shard_files(cache: Path) -> list[Path]:
    """Return the shards that rest in `cache`."""
    files = (path for path in sorted(cache.rglob("*")) if path.is_file())
    return [path for path in files if path.stat().st_size >= SHARD_BYTES_MIN]


def fio(files: list[Path], record_bytes: int) -> float:
    """Return the bytes per second at which fio reads `files` in records of `record_bytes`."""
    command = [
        "fio",
        "--name=shards",
        "--filename=" + ":".join(str(path).replace(":", r"\:") for path in files),
        "--readonly",
        "--rw=read",
        "--file_service_type=sequential",
        "--ioengine=io_uring",
        "--direct=1",
        f"--bs={aligned(record_bytes)}",
        f"--iodepth={DEPTH}",
        "--time_based",
        f"--runtime={SECONDS}",
        "--output-format=json",
    ]
    report = json.loads(subprocess.check_output(command))
    return float(report["jobs"][0]["read"]["bw_bytes"])


def aligned(size: int) -> int:
    """Return `size` rounded up to what O_DIRECT can read."""
    return -(-size // BLOCK) * BLOCK
