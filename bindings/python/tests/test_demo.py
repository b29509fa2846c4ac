"""`forebay demo`, as a new user runs it: it shows a cold and a warm epoch, and leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

TIMEOUT_S = 120
# The fewest that it takes: two steps of 32 photos in an epoch.
PHOTOS = 64
INTERRUPTED = 130
MODULE = "import sys; from forebay._cli import main; main()"


@pytest.fixture
def environment():
    # Not tmp_path: the path of the daemon's socket may have 107 bytes at most.
    folder = tempfile.mkdtemp(prefix="fb-")
    yield {**os.environ, "TMPDIR": folder}
    shutil.rmtree(folder)


def start(environment, *arguments):
    # Handles SIGINT as in a terminal: a shell's background jobs ignore it, and so would this.
    command = ["env", "--default-signal=INT", sys.executable, "-c", MODULE, "demo", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def left_behind(environment):
    """Return the processes that run in `environment`, and the files in its temporary folder."""
    mark = f"TMPDIR={environment['TMPDIR']}".encode()
    found = os.listdir(environment["TMPDIR"])
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie process has no environment.
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_demo_shows_a_cold_and_a_warm_epoch(environment):
    demo = start(environment, "--photos", str(PHOTOS), "--json")
    output, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, errors
    report = json.loads(output)
    # 640 photos/s at most: a slower machine's accelerator is slower.
    assert report["step_seconds"] >= 0.05
    cold, warm = report["epochs"]
    assert (cold["temperature"], warm["temperature"]) == ("cold", "warm")
    # About 85 kB a photo, fetched once.
    assert 60_000 < cold["fetched_bytes"] / PHOTOS < 110_000
    assert warm["fetched_bytes"] == 0
    assert left_behind(environment) == []


def test_interrupted_demo_leaves_nothing(environment):
    demo = start(environment, "--photos", str(PHOTOS))
    # The line before the epochs: by now the server serves.
    assert "train-{000000..000000}.tar" in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == INTERRUPTED, errors
    assert left_behind(environment) == []


def test_shards_alone_stay_where_they_are_wanted(environment, tmp_path):
    wanted = tmp_path / "photos"
    arguments = ["--photos", str(PHOTOS), "--shards-only", str(wanted)]
    demo = start(environment, *arguments)
    _, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, errors
    assert os.listdir(wanted) == ["train-000000.tar"]
    with tarfile.open(wanted / "train-000000.tar") as tar:
        names = tar.getnames()
    assert len(names) == 2 * PHOTOS
    assert {name.partition(".")[2] for name in names} == {"jpg", "cls"}
    assert os.listdir(tmp_path) == ["photos"]
    # A folder that is there is nobody's to overwrite.
    again = start(environment, *arguments)
    _, errors = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 1
    assert left_behind(environment) == []
