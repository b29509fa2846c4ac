"""The example from end to end, and that it leaves nothing behind, however it ends."""

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
    return subprocess.Popen(
        [sys.executable, "-u", EXAMPLES / "run.py", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_behind(environment):
    """Processes that run in `environment`, and what is left in its temporary folder."""
    mark = f"TMPDIR={environment['TMPDIR']}".encode()
    # torch keeps a cache of its own there; what it leaves is not ours to sweep.
    found = [name for name in os.listdir(environment["TMPDIR"]) if "torch" not in name]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # A process that has ended, but whose parent has not asked yet, has no environment.
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_it_trains_cold_and_warm_and_reports(environment):
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


def test_an_error_ends_everything_and_is_told(environment):
    run = start(environment, "--photos", str(PHOTOS), "--samples", "-1")
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode != 0
    assert "epoch_samples" in output
    assert left_behind(environment) == []


def test_shards_that_are_not_there_are_named(environment):
    run = start(environment, "/nonexistent/train-{000000..000001}.tar")
    output, _ = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode != 0
    # Which of the two is needed first is the shuffle's choice.
    assert "NotFound" in output
    assert "/nonexistent/train-00000" in output
    assert left_behind(environment) == []


def test_ctrl_c_ends_everything(environment):
    run = start(environment, "--photos", str(PHOTOS))
    for line in run.stdout:
        if line.startswith("training on"):
            break
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 128 + signal.SIGINT
    assert left_behind(environment) == []
