"""Write deploy/seccomp/forebay.json from the default profile of container runtimes.

Rule: the default, as a container without capabilities gets it, and the calls of io_uring; no more.
The default says "this rule, if the container has that capability". containerd, which reads
profiles in the format of the OCI, ignores such conditions and would apply every rule. So they are
decided here. Releases of Docker before 25 allowed io_uring by default; the others forbid it.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).resolve().parents[1] / "deploy/seccomp/forebay.json"

# The three calls of io_uring: all that the daemon needs and runtimes forbid.
RING = ["io_uring_enter", "io_uring_register", "io_uring_setup"]

# Machines that Forebay is built for, with the modes in which they run older programs.
ARCHITECTURES = [
    "SCMP_ARCH_X86_64",
    "SCMP_ARCH_X86",
    "SCMP_ARCH_X32",
    "SCMP_ARCH_AARCH64",
    "SCMP_ARCH_ARM",
]
# The same, as the default profile calls them.
NAMES = {"amd64", "x86", "x32", "arm64", "arm"}

# Fields of a rule in the format of the OCI.
FIELDS = ("names", "action", "errnoRet", "args")


def applies(rule: dict[str, Any]) -> bool:
    """Return if a rule holds for a container without capabilities on one of the machines.

    A `minKernel` counts as met: it is 4.8, and the daemon wants 6.1.
    """
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if includes.get("caps") or set(excludes.get("arches", [])) & NAMES:
        return False
    arches = includes.get("arches")
    return arches is None or bool(set(arches) & NAMES)


def resolve(default: dict[str, Any]) -> dict[str, Any]:
    """Return the default profile without its conditions, and without io_uring."""
    rules = []
    for rule in filter(applies, default["syscalls"]):
        kept = {name: rule[name] for name in FIELDS if rule.get(name) not in (None, [])}
        kept["names"] = [name for name in rule["names"] if name not in RING]
        rules.append(kept)
    return {
        "defaultAction": default["defaultAction"],
        "defaultErrnoRet": default.get("defaultErrnoRet", errno.EPERM),
        "architectures": ARCHITECTURES,
        "syscalls": rules,
    }


def with_ring(profile: dict[str, Any]) -> dict[str, Any]:
    """Return a profile that allows io_uring as well."""
    ring = {"names": RING, "action": "SCMP_ACT_ALLOW"}
    return {**profile, "syscalls": [*profile["syscalls"], ring]}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("default", type=Path, help="profiles/seccomp/default.json of moby 20.10.24")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    profile = with_ring(resolve(json.loads(arguments.default.read_text())))
    text = json.dumps(profile, indent=2) + "\n"
    if arguments.check:
        return int(PROFILE.read_text() != text)
    PROFILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
