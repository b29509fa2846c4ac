"""Each framework's example with two processes: together they read every sample once."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "frameworks"
TIMEOUT_S = 120

# Message of the C++ runtime if the interpreter's end aborts a running thread.
GLOO_ABORTED = "terminate called without an active exception"
# Five shards that no world of two and no batch size divides evenly.
SHARDS, SAMPLES = 5, 101

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def job():
    # Not tmp_path: the path of the daemon's socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        folder = Path(folder)
        samples = folder / "samples"
        samples.mkdir()
        for number in range(SAMPLES):
            (samples / f"{number:05}.cls").write_text(str(number))
        forebay = str(Path(sys.executable).with_name("forebay"))
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        environment = os.environ | {
            "XDG_RUNTIME_DIR": str(runtime),
            "FOREBAY_CACHE": str(folder / "cache"),
            "FOREBAY_CAPACITY": "256MiB",
            "FOREBAY_DAEMON": "embedded",
            "OMP_NUM_THREADS": "1",
            # A rank that crashes prints its stack.
            "PYTHONFAULTHANDLER": "1",
        }
        pack = [forebay, "pack", str(samples), "-o", str(folder / "s-{:02d}.tar")]
        each = str(-(-SAMPLES // SHARDS))
        subprocess.run([*pack, "--samples", each], env=environment, check=True)
        seen = folder / "seen"
        seen.mkdir()
        urls = str(folder / f"s-{{00..{SHARDS - 1:02d}}}.tar")
        arguments = [urls, "--manifest", str(folder / "s.json"), "--seen", str(seen)]
        yield arguments, environment, seen


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_ranks(script, arguments, environment):
    """Run two processes whose environment names their ranks; return their exit codes."""
    environment = environment | {"WORLD_SIZE": "2", "COORDINATOR": f"127.0.0.1:{free_port()}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, *arguments], env=environment | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    return [rank.wait(TIMEOUT_S) for rank in ranks]


def forget(seen):
    """Remove the records of earlier ranks."""
    for before in seen.glob("rank-*"):
        before.unlink()


def run(command, environment, seen):
    """Run a command until it succeeds; repeat it once if torch aborted a finished process.

    Gloo's threads outlive `destroy_process_group`. A thread that still holds a tensor at the
    interpreter's end aborts the process (pytorch/pytorch#179291), with any loader.
    """
    for _ in range(2):
        ended = subprocess.run(
            command, env=environment, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S
        )
        sys.stderr.write(ended.stderr)
        if ended.returncode == 0:
            return
        assert GLOO_ABORTED in ended.stderr, ended.returncode
        forget(seen)
    pytest.fail("torch aborted the command twice")


@pytest.mark.parametrize("name", ["ddp", "accelerated", "lit", "hf_trainer", "hosts", "arrays"])
def test_two_processes_have_every_sample_once(job, name):
    arguments, environment, seen = job
    forget(seen)
    script = str(EXAMPLES / f"{name}.py")
    if name in ("hosts", "arrays"):
        assert by_ranks(script, arguments, environment) == [0, 0]
    else:
        # Lightning starts the second process itself.
        start = [sys.executable] if name == "lit" else TORCHRUN
        command = [*start, script, *arguments]
        run(command, environment, seen)
    keys = [path.read_text().split() for path in sorted(seen.glob("rank-*"))]
    assert len(keys) == 2
    assert sorted(keys[0] + keys[1]) == [f"{number:05}" for number in range(SAMPLES)]
    assert abs(len(keys[0]) - len(keys[1])) <= 1
