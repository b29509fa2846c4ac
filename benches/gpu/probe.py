"""Questions to a real GPU and its nvJPEG, E1 to E11, each answered by a few lines.

    python benches/gpu/probe.py --json probe.json
    python benches/gpu/probe.py E3 E5 --seconds 60

Every experiment runs in a process of its own under its own limit, so that a crash, a hang or a
broken context ends it alone. The figures are written after each. The order is that of worth: what
was never answered comes first, and all limits fit the time. What was answered and takes long is
asked by name alone. Without a GPU nothing is asked, and the script says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = [HERE / "parts", ROOT / "examples", ROOT / "cli/bench/contest"]
sys.path[:0] = map(str, FOLDERS)

# Seconds for all of it: a visit to a GPU lasts minutes, and tests and figures want most of them.
SECONDS = 100.0
# Seconds of them for photos and daemon, before the first question and after the last.
PREPARING = 5
# An experiment, its function and its limit in seconds: that of an H100 or H200 and half as much.
EXPERIMENTS = (
    ("E9", "probe_loaders.capture", 11),
    ("E10", "probe_loaders.jax", 13),
    ("E11", "probe_loaders.opening", 15),
    ("E6", "probe_limits.outside", 7),
    ("E1", "probe_machine.registration", 6),
    ("E2", "probe_machine.backends", 7),
    ("E3", "probe_order.inputs", 6),
    ("E4", "probe_order.outputs", 6),
    ("E7", "probe_limits.headers", 4),
    ("E5 loops", "probe_speed.loops", 9),
    ("E5 threads", "probe_speed.teams", 6),
    # The last: no file should stop an engine for good, but here are files made to try.
    ("E8", "probe_limits.torn", 5),
)
# Experiments whose answers stand, for releases that may change them.
ANSWERED = (
    ("E5 calls", "probe_speed.waits", 12),
    ("E5 torchvision", "probe_speed.torchvision", 20),
)
# Distinct photos; loops repeat them.
PHOTOS = 128
PIECE = 1 << 16


def main() -> int:
    """Ask, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("experiments", nargs="*", help="E1, E2, …, or one of several: 'E5 loops'")
    parser.add_argument("--json", type=Path, help="file for the lines and their figures")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for all of it")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        return answer(arguments.ask, arguments.photos)
    import cuda_driver
    import own_daemon

    known = {part for name, _, _ in (*EXPERIMENTS, *ANSWERED) for part in (name, name.split()[0])}
    if unknown := set(arguments.experiments) - known:
        parser.error(f"{sorted(unknown)} are none of {sorted(known)}")
    if not Path("/dev/nvidiactl").exists():
        try:
            cuda_driver.load()
        except cuda_driver.DriverError as error:
            print(f"probe: {error}; nothing was asked", flush=True)
            return 0
    named = set(arguments.experiments)
    chosen = [
        one
        for one in ((*EXPERIMENTS, *ANSWERED) if named else EXPERIMENTS)
        if not named or named & {one[0], one[0].split()[0]}
    ]
    with contextlib.ExitStack() as kept:
        # A driver whose last user leaves is started anew by the next.
        with contextlib.suppress(OSError):
            kept.callback(os.close, os.open("/dev/nvidia0", os.O_RDWR))
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="forebay-probe-")))
        environment = kept.enter_context(own_daemon.environment())
        ask_all(chosen, folder / "photos", environment, arguments.json, arguments.seconds)
    return 0


def ask_all(
    chosen: list[tuple[str, str, int]],
    photos: Path,
    environment: dict[str, str],
    target: Path | None,
    seconds: float,
) -> None:
    """Ask one after the other within the time for all."""
    import make_photos

    begin = time.monotonic()
    for _ in make_photos.make(photos, PHOTOS):
        pass
    kept: dict[str, Any] = {}
    for name, function, limit in chosen:
        left = seconds - (time.monotonic() - begin)
        if left < 1:
            lines = [{"text": f"not asked: {seconds:.0f} s are over"}]
            print(f"{name}: {lines[0]['text']}", flush=True)
            kept[name] = {"lines": lines}
        else:
            command = [sys.executable, "-u", __file__, "--ask", function, "--photos", str(photos)]
            kept[name] = ask(name, command, environment, min(left, limit))
        if target:
            target.write_text(json.dumps(kept, indent=1) + "\n")


def ask(name: str, command: list[str], environment: dict[str, str], limit: float) -> dict[str, Any]:
    """Run one experiment, print its lines as they come, and return them."""
    begin = time.monotonic()
    lines: list[dict[str, Any]] = []
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A group of its own, which is ended as a whole.
        start_new_session=True,
    )
    for text in told(child, begin + limit):
        try:
            line = json.loads(text)
            line["text"] = str(line["text"])
        except (ValueError, TypeError, KeyError):
            line = {"text": text, "is_noise": True}
        lines.append(line)
        print(f"{name}: {line['text']}", flush=True)
    code = child.wait()
    seconds = round(time.monotonic() - begin, 1)
    if code:
        why = f"ended after {seconds} s with code {code}"
        lines.append({"text": why})
        print(f"{name}: {why}", flush=True)
    return {"seconds": seconds, "code": code, "lines": lines}


def told(child: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Yield the lines of a process until it ends; at the deadline its group is killed."""
    assert child.stdout is not None
    rest = b""
    with child.stdout, selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(child.stdout.fileno(), PIECE)
            if not piece:
                break
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole if line.strip())
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            yield "killed at its limit"
    if rest.strip():
        yield rest.decode(errors="replace")


def answer(function: str, photos: Path) -> int:
    """Print an experiment's lines as JSON; a failure is the last of them."""
    from probe_lines import Line, failure

    def say(line: Line) -> None:
        print(json.dumps({"text": line.text, "figures": line.figures}), flush=True)

    module, name = function.split(".")
    try:
        for line in getattr(importlib.import_module(module), name)(photos):
            say(line)
    except Exception as error:
        say(Line(f"failed: {failure(error)}", {"failed": failure(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
