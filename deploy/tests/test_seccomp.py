"""The seccomp profile, beside the default of container runtimes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "deploy/seccomp/forebay.json"
RING = {"io_uring_enter", "io_uring_register", "io_uring_setup"}

# Machines that Forebay is built for, as the default profile calls them.
NAMES = {"amd64", "x86", "x32", "arm64", "arm"}

# Keys of the format that containerd and CRI-O read. containerd ignores others, conditions as well.
TOP = {"defaultAction", "defaultErrnoRet", "architectures", "syscalls"}
RULE = {"names", "action", "errnoRet", "args"}


def allowed(profile: dict[str, Any]) -> set[str]:
    """Return the calls that a profile allows whatever their arguments."""
    rules = profile["syscalls"]
    return {
        name
        for rule in rules
        if rule["action"] == "SCMP_ACT_ALLOW"
        and not rule.get("args")
        # Rights that the daemon's container does not have.
        and not (rule.get("includes") or {}).get("caps")
        and set((rule.get("includes") or {}).get("arches", NAMES)) & NAMES
        for name in rule["names"]
    }


def test_profile_has_no_conditions():
    profile = json.loads(PROFILE.read_text())
    assert set(profile) == TOP
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    for rule in profile["syscalls"]:
        assert set(rule) <= RULE
        assert rule["action"] in ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO")


def test_profile_adds_the_calls_of_io_uring_alone(default_profile):
    profile, default = json.loads(PROFILE.read_text()), json.loads(default_profile.read_text())
    # Docker allowed io_uring before its release 25.
    assert allowed(profile) ^ (allowed(default) - RING) == RING
    *rules, last = profile["syscalls"]
    assert last == {"names": sorted(RING), "action": "SCMP_ACT_ALLOW"}
    for rule in default["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in RING]
    theirs = [{key: rule.get(key) or None for key in RULE} for rule in default["syscalls"]]
    for rule in rules:
        assert {key: rule.get(key) or None for key in RULE} in theirs


def test_profile_is_made_from_the_default(default_profile):
    script = ROOT / "scripts/seccomp.py"
    command = [sys.executable, script, "--check", default_profile]
    assert subprocess.run(command).returncode == 0, f"again with: {script} DEFAULT"


def test_profile_gives_no_rights_of_capabilities():
    """Calls that the default allows to holders of a capability stay forbidden."""
    assert allowed(json.loads(PROFILE.read_text())).isdisjoint(
        {"bpf", "mount", "init_module", "perf_event_open", "chroot", "acct"}
    )


# Asks for a ring, which is system call 425 on every machine, and for a user namespace, which
# attackers like.
PROBE = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
def ask(*call):
    return "allowed" if libc.syscall(*call) >= 0 else errno.errorcode[ctypes.get_errno()]
ring = ask(425, 4, ctypes.create_string_buffer(120))
space = "allowed" if libc.unshare(0x10000000) == 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps([ring, space]))
"""


def ask(runc: Path, folder: Path, profile: dict[str, Any]) -> list[str]:
    """Return the answers to the probe in a container of this machine's files, without rights."""
    (folder / "root").mkdir(parents=True)
    none: dict[str, list[str]] = {kind: [] for kind in ("bounding", "effective", "permitted")}
    process = {
        "user": {"uid": 0, "gid": 0},
        "args": [sys.executable, "-c", PROBE],
        "env": [f"PATH={os.environ['PATH']}"],
        "cwd": "/",
        "noNewPrivileges": True,
        "capabilities": none,
    }
    config = {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(folder / "root"), "readonly": True},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "seccomp": profile},
    }
    (folder / "config.json").write_text(json.dumps(config))
    # A container's root must be a mount, here of the machine's own root, and a /dev to write to.
    script = "mount --bind / root && mount -t tmpfs none root/dev && mknod root/dev/null c 1 3 && "
    script += f"exec {runc} --root {folder}/state run probe"
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=folder, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    found: list[str] = json.loads(told.stdout)
    return found


def test_runc_lets_a_ring_through_and_no_more(runc, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    profile = json.loads(PROFILE.read_text())
    default = {**profile, "syscalls": profile["syscalls"][:-1]}
    assert ask(runc, tmp_path / "default", default) == ["EPERM", "EPERM"]
    assert ask(runc, tmp_path / "forebay", profile) == ["allowed", "EPERM"]
