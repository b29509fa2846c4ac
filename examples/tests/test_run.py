"""The example `run.py` from end to end; it leaves no process and no file behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent
TIMEOUT_S = 300
# One shard, two batches.
PHOTOS = 256


@pytest.fixture
def environment():
    # Not tmp_path: the path of the daemon's socket may have 107 bytes at most.
    folder = tempfile.mkdtemp(prefix="fb-")
    yield {**os.environ, "TMPDIR": folder}
    shutil.rmtree(folder)


def start(environment, *arguments):
    # Handles SIGINT as in a terminal: a shell's background jobs ignore it, and so would this.
    terminal = ["env", "--default-signal=INT"]
    return subprocess.Popen(
        [*terminal, sys.executable, "-u", EXAMPLES / "run.py", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(environment):
    """Return the processes that run in `environment`, and the files in its temporary folder."""
    mark = f"TMPDIR={environment['TMPDIR']}".encode()
    # torch keeps its own cache there, which the example does not remove.
    found = [name for name in os.listdir(environment["TMPDIR"]) if "torch" not in name]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie process has no environment.
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_example_trains_cold_and_warm_and_reports(environment):
    run = start(environment, "--photos", str(PHOTOS))
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, output
    report = output.partition("starvation report")[2]
    cold, warm = report.split("epoch 1 (warm)")
    assert "epoch 0 (cold)" in cold
    for epoch in (cold, warm):
        assert "compute share" in epoch
        assert "waited for" in epoch
    assert "taken while their shard still arrived 0.000 GB" in warm
    assert left_behind(environment) == []


def test_error_is_reported_and_leaves_nothing_behind(environment):
    run = start(environment, "--photos", str(PHOTOS), "--samples", "-1")
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode != 0
    assert "epoch_samples" in output
    assert left_behind(environment) == []


def test_missing_shards_are_named_in_the_error(environment):
    run = start(environment, "/nonexistent/train-{000000..000001}.tar")
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode != 0
    # The shuffle decides which of the two shards is needed first.
    assert "NotFound" in output
    assert "/nonexistent/train-00000" in output
    assert left_behind(environment) == []


def test_ctrl_c_leaves_nothing_behind(environment):
    run = start(environment, "--photos", str(PHOTOS))
    for line in run.stdout:
        if line.startswith("training on"):
            break
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 128 + signal.SIGINT
    assert left_behind(environment) == []
