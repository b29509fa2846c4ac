"""Machine and versions of a measurement.

A figure without its machine and its versions is not a figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "results"
PACKAGES = (
    "forebay",
    "webdataset",
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "torchcodec",
    "nvidia-nvimgcodec-cu13",
    "nvidia-nvjpeg",
)


def cpu() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def slug() -> str:
    """Return the processor and the cores lent of it as part of a folder's name."""
    name = f"{cpu()} {len(os.sched_getaffinity(0))} cores"
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def results() -> Path:
    """Return the folder of today's figures of this machine, made if it is not there."""
    folder = RESULTS / f"{datetime.now(timezone.utc):%Y-%m-%d}-{slug()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def record(report: Mapping[str, object], name: str) -> None:
    """Write a report among today's figures, and say where it is."""
    target = results() / name
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {target}")


def describe(folder: Path) -> dict[str, object]:
    """Return the machine, the disk under `folder` and the versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = subprocess.run(
        ["df", "--output=source,fstype,size", folder], capture_output=True, text=True, check=True
    ).stdout.splitlines()[-1]
    commit = ""
    # A machine lent for an hour has neither git nor a repository.
    if shutil.which("git"):
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    return {
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 30), 1),
        "kernel": platform.release(),
        "disk": " ".join(disk.split()),
        "python": platform.python_version(),
        "commit": commit,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed here."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
