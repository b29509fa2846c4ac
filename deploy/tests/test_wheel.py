"""The wheel on a machine without tools: what it needs, and what its user sees first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Whatever the machine, it hangs if it runs longer; benches/install measures how long it takes.
TIMEOUT_S = 900
# Batch of the README's lines.
BATCH = "(256, 3, 224, 224) (256,)"


def check(wheel: Path, glibc: str) -> tuple[int, str]:
    """Return the code of the check of a wheel, and what it said."""
    python = ROOT / ".tools/portable/bin/python"
    if not python.exists():
        pytest.skip("needs packages: make wheel")
    command = [python, ROOT / "scripts/check_wheel.py", wheel, "--glibc", glibc]
    told = subprocess.run(command, capture_output=True, text=True)
    return told.returncode, told.stdout + told.stderr


def test_wheel_is_as_its_name_promises(wheel):
    code, told = check(wheel, "2.28")
    assert code == 0, told


def test_check_finds_what_a_name_does_not_keep(tmp_path):
    """A program of this system is newer than the name says, and wants libraries of its own."""
    wheel = tmp_path / "forebay-0.1.0-cp310-abi3-manylinux_2_5_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write("/bin/ls", "forebay/_native.abi3.so")
    code, told = check(wheel, "2.5")
    assert code == 1
    assert "needs glibc 2." in told
    assert "needs libselinux.so.1" in told


def test_user_without_tools_gets_a_batch_and_a_demo(wheel, debian):
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    script = ROOT / "benches/install/first_batch.py"
    command = [sys.executable, script, wheel, "--base", debian, "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert told.returncode == 0, told.stdout + told.stderr
    (figures,) = json.loads(told.stdout)["rounds"]
    assert figures["batch"] == f"numpy {BATCH}"
