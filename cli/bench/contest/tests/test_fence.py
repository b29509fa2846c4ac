"""The memory limit: it holds, it includes swap, and its absence is reported."""

import io
import os
import subprocess
import sys

import fence
import main
import pytest
from fence import Unfenced, Version

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder that looks like the file system of cgroup version 2."""
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    version = Version(tmp_path, "memory.max", "memory.swap.max", is_both=False)
    monkeypatch.setattr(fence, "VERSIONS", (version,))
    return tmp_path


def swap(monkeypatch, tmp_path, kib):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1024 kB\nSwapTotal: {kib} kB\n")
    monkeypatch.setattr(fence, "MEMINFO", meminfo)


def test_process_beyond_the_limit_is_killed():
    try:
        limited = fence.fence(LIMIT)
        before = limited.__enter__()
    except Unfenced as error:
        pytest.skip(f"needs memory-limit: {error}")
    try:
        # The child touches twice the limit.
        code = f"b = bytearray({2 * LIMIT}); b[::4096] = b'x' * len(b[::4096]); print('there')"
        run = subprocess.run(
            [sys.executable, "-c", code], preexec_fn=before, capture_output=True, check=False
        )
        assert (run.returncode, run.stdout) == (-9, b"")
        (group,) = [
            version.root / f"{fence.NAME}-{os.getpid()}"
            for version in fence.VERSIONS
            if (version.root / f"{fence.NAME}-{os.getpid()}").exists()
        ]
        for name, most in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", LIMIT)):
            if (group / name).exists():
                assert int((group / name).read_text()) == most
    finally:
        limited.__exit__(None, None, None)
    assert not group.exists()


def test_missing_memory_controller_is_reported_with_advice(root):
    (root / "cgroup.subtree_control").write_text("cpu\n")
    with pytest.raises(Unfenced, match=r"echo \+memory > .*cgroup.subtree_control"):
        fence.make(LIMIT)
    (root / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(Unfenced, match="has no memory controller"):
        fence.make(LIMIT)
    assert not list(root.glob(f"{fence.NAME}*"))


def test_unlimited_swap_is_reported_with_advice(root, monkeypatch, tmp_path):
    swap(monkeypatch, tmp_path, 4)
    group = root / f"{fence.NAME}-{os.getpid()}"
    # The folder is no real cgroup, so `rmdir` would fail on its files; the test records the call.
    monkeypatch.setattr(fence.Path, "rmdir", lambda folder: left.append(folder))
    left = []
    with pytest.raises(Unfenced, match="swapoff"):
        fence.make(LIMIT)
    assert left == [group]


def test_machine_without_swap_needs_no_swap_limit(root, monkeypatch, tmp_path):
    swap(monkeypatch, tmp_path, 0)
    group = fence.make(LIMIT)
    assert (group / "memory.max").read_text() == str(LIMIT)
    assert not (group / "memory.swap.max").exists()


def test_unwritable_cgroup_is_reported_with_advice(root, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fence.Path, "mkdir", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unfenced, match="run as root"):
        fence.make(LIMIT)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Unfenced, match="writable"):
        fence.make(LIMIT)


def test_contest_ends_if_memory_cannot_be_limited(root, tmp_path, shards):
    (root / "cgroup.subtree_control").write_text("")
    asked = {
        "shards": shards,
        "images": False,
        "batch_size": 8,
        "step_seconds": 0.01,
        "work": str(tmp_path / "work"),
        "memory_bytes": LIMIT,
    }
    out = io.StringIO()
    with pytest.raises(Unfenced, match="memory cannot be limited"):
        main.play(asked, out)
    # The contest ran nothing, so it reports nothing.
    assert out.getvalue() == ""
