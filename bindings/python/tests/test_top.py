"""`forebay top` in a terminal: it shows jobs, fits the window, and restores the terminal.

While the daemon does not answer, `forebay top` keeps the last state on screen and tries again.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
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
DOWN, PAGE_UP, LAST = b"\x1b[B", b"\x1b[5~", b"\x1b[F"
FOREBAY = Path(sys.executable).with_name("forebay")
# Each frame ends with a hidden cursor.
FRAME_END = b"\x1b[?25l"
CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])")


class Terminal:
    """A terminal in which `forebay top` runs."""

    def __init__(self, height: int, width: int) -> None:
        self.ours, self.theirs = os.openpty()
        self.resize(height, width)
        self.modes = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.frames = b""
        self.cells: dict[tuple[int, int], str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *arguments: str) -> None:
        """Start `forebay top`, which needs a daemon to look at."""
        # The process must lead a session on this terminal to receive size changes. `setsid` sees to
        # that, because JAX, once imported, warns of `preexec_fn`.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", FOREBAY, "top", *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )

    def resize(self, height: int, width: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self, deadline: float) -> None:
        """Read the next output."""
        left = deadline - time.monotonic()
        assert select.select([self.ours], [], [], max(0.0, left))[0], self.seen[-2000:]
        more = os.read(self.ours, 1 << 16)
        self.seen += more
        self.frames += more

    def draw(self, frame: str) -> None:
        """Apply a frame, which holds only the cells that changed."""
        row = column = 0
        for parameters, command, text in CONTROL.findall(frame):
            if command == "H":
                row, column = (int(one or 1) - 1 for one in (parameters or "1;1").split(";"))
            elif command == "J":
                self.cells.clear()
            elif text:
                self.cells[row, column] = text
                column += 1

    def lines(self) -> list[str]:
        """Return the lines of the screen, without empty lines at the end."""
        height = max((row for row, _ in self.cells), default=-1) + 1
        width = max((column for _, column in self.cells), default=-1) + 1
        rows = [[self.cells.get((row, at), " ") for at in range(width)] for row in range(height)]
        return "\n".join("".join(row).rstrip() for row in rows).rstrip("\n").split("\n")

    def screen(self, wanted: str) -> list[str]:
        """Wait for a new frame that shows `wanted`, and return its lines."""
        deadline = time.monotonic() + GONE_WITHIN
        while True:
            while FRAME_END in self.frames:
                frame, self.frames = self.frames.split(FRAME_END, 1)
                self.draw(frame.decode())
                lines = self.lines()
                if wanted in "\n".join(lines):
                    self.seen = self.frames
                    return lines
            self.read(deadline)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self.ours, key)

    def end(self, key: bytes | signal.Signals) -> int:
        """Press a key or send a signal, wait for the end, and return the exit code."""
        assert self.process is not None
        if isinstance(key, signal.Signals):
            self.process.send_signal(key)
        else:
            self.press(key)
        deadline = time.monotonic() + GONE_WITHIN
        while b"\x1b[?1049l" not in self.seen:
            self.read(deadline)
        return self.process.wait(GONE_WITHIN)

    def close(self) -> None:
        """Kill the process, and close both ends of the terminal."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of 24 lines and 80 columns."""
    terminal = Terminal(24, 80)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("key", [b"q", b"\x03", signal.SIGTERM, signal.SIGHUP])
def test_top_shows_a_job_in_any_window_size(
    terminal: Terminal, shards: list[str], key: bytes | signal.Signals
) -> None:
    """The screen shows the job's name and fits the window; each key or signal ends with code 0."""
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
    # The cursor and the terminal's modes are restored.
    assert b"\x1b[?25h" in terminal.seen
    assert termios.tcgetattr(terminal.theirs) == terminal.modes


def test_keys_scroll_to_hidden_lines(terminal: Terminal, shards: list[str]) -> None:
    """Ranks of a job share one line; in a small window arrow and page keys scroll at once."""
    both = [DataLoader(shards, batch_size=4, job=JOB) for _ in range(2)]
    with both[0], both[1]:
        for rank in both:
            next(iter(rank))
        # The long interval leaves all redraws to keys.
        terminal.run("--interval", "3600")
        whole = terminal.screen("RANKS")
        (row,) = [line for line in whole if line.startswith(JOB[:10])]
        assert "2" in row.split(), row
        height = 4
        assert len(whole) > height
        terminal.resize(height, 80)

        def seen(key: bytes, first: int) -> list[str]:
            if key:
                terminal.press(key)
            word = f"lines {first} to {first + height - 2} of {len(whole)}"
            lines = terminal.screen(word)
            assert len(lines) == height
            return lines[:-1]

        assert seen(b"", 1) == whole[:3]
        assert seen(DOWN, 2) == whole[1:4]
        assert seen(LAST, len(whole) - 2) == whole[-3:]
        assert seen(PAGE_UP, len(whole) - 5) == whole[-6:-3]
    assert terminal.end(b"q") == 0


def test_top_shows_a_restarted_daemon(terminal: Terminal, tmp_path: Path) -> None:
    """Without an answer the screen keeps the last state and says so; a new daemon is shown."""
    address = f"unix:{tmp_path}/d.sock"

    def daemon() -> subprocess.Popen[str]:
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "forebay.toml").write_text(
            f"""
            [daemon]
            socket = "{tmp_path}/d.sock"
            memory = "256MiB"
            [[tier]]
            name = "nvme"
            path = "{tmp_path}/cache"
            capacity = "64MiB"
            """
        )
        command = [FOREBAY, "daemon", "--config", tmp_path / "forebay.toml"]
        started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert started.stderr is not None
        for line in started.stderr:
            if "listening" in line:
                break
        return started

    first = daemon()
    terminal.run("--daemon", address)
    assert any("nvme" in line for line in terminal.screen("No job is connected."))
    first.kill()
    first.communicate()
    lines = terminal.screen("The daemon does not answer; this is its last state. Trying again.")
    assert any("nvme" in line for line in lines), "the last known state is gone"
    second = daemon()
    lines = terminal.screen("No job is connected.")
    while any("does not answer" in line for line in lines):
        lines = terminal.screen("No job is connected.")
    # Keys work while the daemon hangs.
    second.send_signal(signal.SIGSTOP)
    assert terminal.end(b"q") == 0
    assert termios.tcgetattr(terminal.theirs) == terminal.modes
    second.kill()
    second.communicate()
