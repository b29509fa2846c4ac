"""Units of systemd, as its own tools judge them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent / "systemd"
UNIT = UNITS / "forebayd.service"

# Highest exposure of the daemon: 0 is a unit that can do nothing, 10 one that can do everything.
EXPOSURE = 2.0

# First release that knows `notify-reload`. Older ones warn and take the next best.
NOTIFY_RELOAD = 253


@pytest.fixture(scope="module")
def release() -> int:
    """Return the release of systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd: apt-get install systemd")
    told = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True)
    found = re.search(r"systemd (\d+)", told.stdout)
    assert found is not None
    return int(found[1])


def test_unit_is_understood(release, tmp_path):
    # The command is installed elsewhere on this machine.
    unit = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert "ExecStart=/usr/bin/forebay daemon" in text
    unit.write_text(text.replace("/usr/bin/forebay", "/bin/true"))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    lines = [line for line in told.stderr.splitlines() if unit.name in line]
    if release < NOTIFY_RELOAD:
        lines = [line for line in lines if "notify-reload" not in line]
    assert lines == []


def test_daemon_has_few_rights(release):
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level.*: ([\d.]+)", told.stdout)
    assert found is not None, told.stdout
    assert float(found[1]) <= EXPOSURE, told.stdout


def test_ring_is_allowed(release):
    """The filter lets io_uring through, which container runtimes forbid."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", "@system-service", "@aio"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "@aio" in told.stdout
    assert "io_uring_enter" in told.stdout
    assert "SystemCallFilter=@system-service" in UNIT.read_text()


def test_user_and_folders_are_made(release, tmp_path):
    (tmp_path / "etc").mkdir()
    for tool, name, made in [
        ("systemd-sysusers", "forebayd.sysusers.conf", "etc/passwd"),
        ("systemd-tmpfiles", "forebayd.tmpfiles.conf", "etc/forebay"),
    ]:
        if shutil.which(tool) is None:
            pytest.skip("needs systemd: apt-get install systemd")
        arguments = ["--create"] if tool == "systemd-tmpfiles" else []
        told = subprocess.run(
            [tool, *arguments, f"--root={tmp_path}", str(UNITS / name)],
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stderr
        assert (tmp_path / made).exists()
    assert "forebay" in (tmp_path / "etc/passwd").read_text()
