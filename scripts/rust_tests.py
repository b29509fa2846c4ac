#!/usr/bin/env python3
"""Runs the Rust tests of the workspace, some suites at a time, each in a process of its own.

A suite is a test binary, or one file of a binary that has many: a folder of `tests/tests/` is one
binary, as linking each file by itself takes minutes and gigabytes. Output appears as a whole when a
suite has ended; a passed suite prints one line. Each failure is printed in full, every other suite
still runs, and the exit code is 1 at the end.
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
# Most of the tests wait for servers and timers: three suites keep two cores busy.
AT_ONCE = 3
# A suite's daemons have a gigabyte of frames and slabs each, and some suites start four.
BYTES_EACH = 4 << 30
# Suites that measure waiting or throughput, or whose limits on a silent disk end soon: beside
# others they would measure those.
ALONE = {
    "tests/benchmarks: reports",
    "tests/benchmarks: starvation",
    "tests/cache: devices",
    "tests/emulator: loader",
    "tests/jobs: causes",
    "tests/jobs: clairvoyance",
    "tests/jobs: costs",
    "tests/jobs: stress",
    "tests/jobs: trace",
}
# The crate whose binaries hold a suite in each module.
GROUPED = ROOT / "tests"


@dataclasses.dataclass
class Suite:
    """Tests that one process runs: all of a binary, or those of one of its modules."""

    name: str
    path: str
    folder: Path
    # Names of the tests, for the binary to pick; empty: all.
    tests: list[str]


def modules(path: str, folder: Path) -> dict[str, list[str]]:
    """Returns the names of a binary's tests, by module."""
    command = [path, "--list", "--format", "terse"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    tests: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name = line.removesuffix(": test")
        tests.setdefault(name.split("::")[0], []).append(name)
    return tests


def build(cargo: list[str]) -> list[Suite]:
    """Builds the tests; cargo writes its own progress and errors to standard error."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *cargo]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    suites = []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"]:
            continue
        if message["executable"] is not None:
            folder = Path(message["manifest_path"]).parent
            target, path = message["target"]["name"], message["executable"]
            place = folder.relative_to(ROOT)
            if folder == GROUPED and message["target"]["kind"] == ["test"]:
                for module, tests in modules(path, folder).items():
                    suites.append(Suite(f"{place}/{target}: {module}", path, folder, tests))
            else:
                suites.append(Suite(f"{place}: {target}", path, folder, []))
    return suites


def run(suite: Suite) -> tuple[int, str, float]:
    """Runs one suite; returns its exit code, its output and its seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [suite.path, *(["--exact", *suite.tests] if suite.tests else [])],
        cwd=suite.folder,
        env={**os.environ, "CARGO_MANIFEST_DIR": str(suite.folder)},
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

    def add(self, suite: Suite) -> None:
        """Runs a suite and prints what came of it."""
        code, output, seconds = run(suite)
        with self.lock:
            self.times[suite.name] = seconds
            if code == 0:
                passed = sum(line.endswith(" ... ok") for line in output.splitlines())
                print(f"ok      {seconds:6.1f} s  {suite.name} ({passed} tests)", flush=True)
            else:
                self.failed.append(suite.name)
                print(
                    f"FAILED  {seconds:6.1f} s  {suite.name} (exit code {code})\n{output}",
                    flush=True,
                )

    def add_all(self, suites: list[Suite], at_once: int) -> None:
        """Runs suites, `at_once` at a time, in order."""
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(self.add, suite) for suite in suites]:
                done.result()


def fitting() -> int:
    """Returns the number of suites that memory has room for, at least one."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) << 10
    return max(1, min(AT_ONCE, available // BYTES_EACH))


def main() -> int:
    """Builds and runs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-once", type=int, default=fitting(), help="suites at a time")
    parser.add_argument("cargo", nargs="*", help="arguments of cargo test, after --")
    arguments = parser.parse_args()
    suites = build(arguments.cargo)
    # The longest first, by the last run: none is left over at the end.
    before = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    suites.sort(key=lambda suite: -before.get(suite.name, 60.0))
    began, runs = time.monotonic(), Runs()
    unknown = ALONE - {suite.name for suite in suites}
    if unknown and "--test" not in arguments.cargo:
        sys.exit(f"no suite has this name of ALONE: {', '.join(sorted(unknown))}")
    alone = [suite for suite in suites if suite.name in ALONE]
    runs.add_all([suite for suite in suites if suite not in alone], arguments.at_once)
    runs.add_all(alone, 1)
    TIMES.write_text(json.dumps({**before, **runs.times}, indent=1))
    minutes = (time.monotonic() - began) / 60
    print(f"{len(suites)} suites in {minutes:.1f} minutes, {len(runs.failed)} failed")
    for name in runs.failed:
        print(f"failed: {name}")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
