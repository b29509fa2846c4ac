"""The seccomp profile, beside the default of container runtimes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
