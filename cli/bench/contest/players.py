"""A contender at work: a process that plays on request and answers.

A contender reports all the time. One that is silent for minutes, or that ends before it has
answered, has failed, and its last message says why. No process outlives its `with` block. A
termination signal is handled only where the code waits: an exception raised anywhere else could
arrive where Python swallows it, or while a process is being ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contender import Task, script

# Imports, a loader's start and its first batch may take long on a busy machine; this is a hang.
SILENCE_S = 300.0
# A process that was told to end has so many seconds for it.
END_S = 30.0
# Each signal to end is a byte to be read here, its number.
ENDING: list[int] = []


class Failed(Exception):
    """A contender that did not play to the end."""


class Player:
    """A contender's process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], replies: int) -> None:
        self.name, self.process, self.replies = name, process, replies
        self.heard = b""

    def tell(self, line: dict[str, Any]) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(line).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self.obituary()) from None

    def play(self, name: str, **how: Any) -> dict[str, Any]:
        """Run a play and return its figures."""
        self.tell({"play": name, **how})
        while True:
            line = self.line()
            try:
                words = json.loads(line)
            except json.JSONDecodeError:
                raise Failed(f"{self.name} sent an unreadable reply: {line[:80]!r}") from None
            if "failed" in words:
                raise Failed(f"{self.name}: {words['failed']}")
            if "reply" in words:
                reply: dict[str, Any] = words["reply"]
                return reply

    def line(self) -> bytes:
        """Wait for its next line."""
        while b"\n" not in self.heard:
            if not until(self.replies, SILENCE_S):
                raise Failed(f"{self.name} was silent for {SILENCE_S:.0f} s")
            more = os.read(self.replies, 1 << 16)
            if not more:
                raise Failed(self.obituary())
            self.heard += more
        line, _, self.heard = self.heard.partition(b"\n")
        return line

    def obituary(self) -> str:
        """Describe the process's end."""
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its output but still runs"
        if code == -signal.SIGKILL:
            return f"{self.name} was killed, most likely out of memory (see memory_bytes)"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"{self.name} ended {how}; see its messages above"


def until(file: int, seconds: float) -> bool:
    """Wait until `file` is readable, and return True if it is; raises `SystemExit` on a signal."""
    ready = select.select([file, *ENDING], [], [], seconds)[0]
    for line in ready:
        if line in ENDING:
            sys.exit(128 + os.read(line, 1)[0])
    return bool(ready)


@contextmanager
def player(
    name: str,
    kind: str | Path,
    python: str,
    task: Task,
    environment: dict[str, str],
    before: Callable[[], None],
) -> Iterator[Player]:
    """Start a contender; `before` is called in its process before it begins.

    `kind` names one of the contest's, or is a script of another's.
    """
    program = kind if isinstance(kind, Path) else script(kind)
    replies, line = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                [python, program, str(line)],
                stdin=subprocess.PIPE,
                # Libraries print; what they say goes where errors go.
                stdout=2,
                env=environment,
                preexec_fn=before,
                pass_fds=[line],
                start_new_session=True,
            )
        finally:
            os.close(line)
        try:
            one = Player(name, process, replies)
            one.tell(asdict(task))
            yield one
        except BaseException:
            # The answer is no longer of use.
            kill(process)
            raise
        finally:
            end(process)
    finally:
        os.close(replies)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    # Workers that outlived it.
    kill(process)
    process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a session leader and every process of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def convert(
    name: str, python: str, request: dict[str, Any], environment: dict[str, str], seconds: float
) -> None:
    """Run a conversion to its end, within `seconds`."""
    with tempfile.TemporaryFile() as asked:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        # A shell's background jobs ignore SIGINT, by which a conversion is ended below.
        process = subprocess.Popen(
            ["env", "--default-signal=INT", python, Path(__file__).with_name(f"to_{name}.py")],
            stdin=asked,
            stdout=2,
            env=environment,
            start_new_session=True,
        )
    ended = os.pidfd_open(process.pid)
    try:
        if not until(ended, seconds):
            raise Failed(f"the conversion for {name} took more than {seconds:.0f} s")
    finally:
        os.close(ended)
        # A terminated process ends what it started, a daemon for example.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        end(process)
    if process.returncode != 0:
        raise Failed(
            f"the conversion for {name} failed with exit code {process.returncode};"
            " see its messages above"
        )
