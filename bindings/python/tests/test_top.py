"""`forebay top` in a terminal: it shows what runs, keeps to the window, and leaves it as it was."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import GONE_WITHIN
from forebay import DataLoader

JOB = "pretraining-of-a-model-with-a-long-name"
HOME_KEY = b"\x1b[H"
STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of some size, for `forebay top`."""

    def __init__(self, height: int, width: int) -> None:
        self.ours, self.theirs = os.openpty()
        self.resize(height, width)
        self.modes = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run it, which needs a daemon to look at."""
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("forebay"), "top"],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )

    def resize(self, height: int, width: int) -> None:
        """Give the window another size."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self, deadline: float) -> None:
        """Read what comes next."""
        left = deadline - time.monotonic()
        assert select.select([self.ours], [], [], max(0.0, left))[0], self.seen[-2000:]
        self.seen += os.read(self.ours, 1 << 16)

    def screen(self, wanted: str) -> list[str]:
        """Wait for a whole screen with `wanted` in it, and return its lines."""
        deadline = time.monotonic() + GONE_WITHIN
        while True:
            # What is behind the last beginning may not be whole.
            for screen in self.seen.split(HOME_KEY)[1:-1]:
                if wanted.encode() in screen:
                    self.seen = b""
                    plain = STYLES.sub(b"", screen).decode()
                    return plain.replace("\r", "").split("\n")
            self.read(deadline)

    def end(self, key: bytes) -> int:
        """Press `key` and return the exit code."""
        os.write(self.ours, key)
        deadline = time.monotonic() + GONE_WITHIN
        while b"\x1b[?1049l" not in self.seen:
            self.read(deadline)
        assert self.process is not None
        return self.process.wait(GONE_WITHIN)

    def close(self) -> None:
        """Let go of it, and of who has it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of the usual size."""
    terminal = Terminal(24, 80)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_job_is_seen_in_any_window(terminal: Terminal, shards: list[str], key: bytes) -> None:
    """The job's name and a key's effect; no line is longer than the window is wide."""
    with DataLoader(shards, batch_size=4, job=JOB) as loader:
        batches = iter(loader)
        next(batches)
        terminal.run()
        lines = terminal.screen(JOB[:10])
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        terminal.resize(6, 40)
        while len(lines) > 6:
            lines = terminal.screen("forebay")
        assert max(map(len, lines)) <= 40
        del batches
    assert terminal.end(key) == 0
    # Its cursor is back, and so are its modes.
    assert b"\x1b[?25h" in terminal.seen
    assert termios.tcgetattr(terminal.theirs) == terminal.modes
