"""The limit on memory: it holds, swap does not soften it, and one not to be had is told."""

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
    """A folder that looks like the second version's file system."""
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


def test_what_is_beyond_the_limit_is_killed():
    try:
        limited = fence.fence(LIMIT)
        before = limited.__enter__()
    except Unfenced as error:
        pytest.skip(f"needs memory-limit: {error}")
    try:
        # It touches twice as much.
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


def test_a_controller_that_is_not_passed_on_is_told(root):
    (root / "cgroup.subtree_control").write_text("cpu\n")
    with pytest.raises(Unfenced, match=r"echo \+memory > .*cgroup.subtree_control"):
        fence.make(LIMIT)
    (root / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(Unfenced, match="has no memory controller"):
        fence.make(LIMIT)
    assert not list(root.glob(f"{fence.NAME}*"))


def test_swap_that_cannot_be_limited_is_told(root, monkeypatch, tmp_path):
    swap(monkeypatch, tmp_path, 4)
    group = root / f"{fence.NAME}-{os.getpid()}"
    # No kernel fills this folder, so what is written stays; nothing is left behind either way.
    monkeypatch.setattr(fence.Path, "rmdir", lambda folder: left.append(folder))
    left = []
    with pytest.raises(Unfenced, match="swapoff"):
        fence.make(LIMIT)
    assert left == [group]


def test_without_swap_there_is_none_to_limit(root, monkeypatch, tmp_path):
    swap(monkeypatch, tmp_path, 0)
    group = fence.make(LIMIT)
    assert (group / "memory.max").read_text() == str(LIMIT)
    assert not (group / "memory.swap.max").exists()


def test_a_file_system_that_cannot_be_written_is_told(root, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fence.Path, "mkdir", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unfenced, match="run as root"):
        fence.make(LIMIT)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Unfenced, match="writable"):
        fence.make(LIMIT)


def test_a_limit_that_cannot_be_set_ends_the_contest(root, tmp_path, shards):
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
    # Nothing was played, so there is nothing to tell.
    assert out.getvalue() == ""
