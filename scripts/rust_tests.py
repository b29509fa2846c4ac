#!/usr/bin/env python3
"""Runs the Rust tests of the workspace, some test binaries at a time.

Output appears as a whole when a binary has ended; a passed binary prints one line. Each failure is
printed in full, every other binary still runs, and the exit code is 1 at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "target/test-times.json"
# Most of the tests wait for servers and timers: three binaries keep two cores busy.
AT_ONCE = 3
# A binary's daemons have a gigabyte of frames and slabs each, and some binaries start four.
BYTES_EACH = 4 << 30
# Binaries that measure waiting or throughput, or whose limits on a silent disk end soon: beside
# others they would measure those.
ALONE = {
    "benchmarks",
    "causes",
    "clairvoyance",
    "costs",
    "devices",
    "loader",
    "starvation",
    "stress",
    "trace",
}


@dataclasses.dataclass
class Binary:
    """A test binary: its crate and target, and where it runs."""

    name: str
    target: str
    path: str
    folder: Path


def build(cargo: list[str]) -> list[Binary]:
    """Builds the tests; cargo writes its own progress and errors to standard error."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *cargo]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    binaries = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if message["executable"] is not None:
            folder = Path(message["manifest_path"]).parent
            target = message["target"]["name"]
            name = f"{folder.relative_to(ROOT)}: {target}"
            binaries.append(Binary(name, target, message["executable"], folder))
    return binaries


def run(binary: Binary) -> tuple[int, str, float]:
    """Runs one binary; returns its exit code, its output and its seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [binary.path],
        cwd=binary.folder,
        env={**os.environ, "CARGO_MANIFEST_DIR": str(binary.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - began


class Runs:
    """Results, printed as they come."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failed: list[str] = []
        self.times: dict[str, float] = {}

    def add(self, binary: Binary) -> None:
        """Runs a binary and prints what came of it."""
        code, output, seconds = run(binary)
        with self.lock:
            self.times[binary.name] = seconds
            if code == 0:
                passed = sum(line.endswith(" ... ok") for line in output.splitlines())
                print(f"ok      {seconds:6.1f} s  {binary.name} ({passed} tests)", flush=True)
            else:
                self.failed.append(binary.name)
                print(
                    f"FAILED  {seconds:6.1f} s  {binary.name} (exit code {code})\n{output}",
                    flush=True,
                )

    def add_all(self, binaries: list[Binary], at_once: int) -> None:
        """Runs binaries, `at_once` at a time, in order."""
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(self.add, binary) for binary in binaries]:
                done.result()


def fitting() -> int:
    """Returns the number of binaries that memory has room for, at least one."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) << 10
    return max(1, min(AT_ONCE, available // BYTES_EACH))


def main() -> int:
    """Builds and runs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-once", type=int, default=fitting(), help="binaries at a time")
    parser.add_argument("cargo", nargs="*", help="arguments of cargo test, after --")
    arguments = parser.parse_args()
    binaries = build(arguments.cargo)
    # The longest first, by the last run: none is left over at the end.
    before = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    binaries.sort(key=lambda binary: -before.get(binary.name, 60.0))
    began, runs = time.monotonic(), Runs()
    alone = [binary for binary in binaries if binary.target in ALONE]
    runs.add_all([binary for binary in binaries if binary not in alone], arguments.at_once)
    runs.add_all(alone, 1)
    TIMES.write_text(json.dumps({**before, **runs.times}, indent=1))
    minutes = (time.monotonic() - began) / 60
    print(f"{len(binaries)} test binaries in {minutes:.1f} minutes, {len(runs.failed)} failed")
    for name in runs.failed:
        print(f"failed: {name}")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
