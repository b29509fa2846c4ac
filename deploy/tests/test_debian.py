"""The Debian package on a machine without systemd as its first process: installed, run, upgraded,
removed, purged.

systemctl is a recorder there, since nothing would answer the real one: what the package asks of it
is what these tests can say about it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from bare_machine import Machine

# Answers as systemctl does about a unit that is enabled, makes the link of one that it is told to
# enable, and notes what it was asked.
RECORDER = """#!/bin/sh
echo "$*" >>/tmp/asked
wants=/etc/systemd/system/multi-user.target.wants
case "$*" in
*is-enabled*) echo enabled ;;
*LoadState*) echo LoadState=loaded ;;
*preset*forebayd.service*) mkdir -p $wants && ln -sf /lib/systemd/system/forebayd.service $wants ;;
esac
"""

# Starts the daemon as the unit does and takes its notices, as the service manager does.
SERVICE = """
import json, os, socket, subprocess
if os.path.exists("/run/notify"):
    os.unlink("/run/notify")
notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notices.bind("/run/notify")
os.chmod("/run/notify", 0o777)
notices.settimeout(60)
os.makedirs("/run/forebay", exist_ok=True)
subprocess.run(["chown", "forebay:forebay", "/run/forebay"], check=True)
daemon = subprocess.Popen(
    ["/usr/bin/forebayd", "--config", "/etc/forebay/forebay.toml"],
    user="forebay", group="forebay", extra_groups=[], env={"NOTIFY_SOCKET": "/run/notify"},
)
while b"READY=1" not in notices.recv(4096):
    pass
asked = ["forebay", "status", "--json", "--daemon", "unix:/run/forebay/forebayd.sock"]
status = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
daemon.terminate()
print(json.dumps({"status": json.loads(status), "code": daemon.wait(60)}))
"""

CONFIG = "etc/forebay/forebay.toml"
UNIT = "etc/systemd/system/multi-user.target.wants/forebayd.service"


@pytest.fixture
def machine(debian: Path, tmp_path: Path) -> Machine:
    """Return a machine whose systemctl is a recorder."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    machine = Machine(debian, tmp_path / "machine")
    machine.run("mkdir -p /run/systemd/system /packages")
    recorder = machine.root / "usr/bin/systemctl"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    return machine


def newer(package: Path, folder: Path) -> Path:
    """Return the same package as a later release with another default configuration."""
    tree, built = folder / "tree", folder / "newer.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    version = ["Version: 99.0-1" if line.startswith("Version:") else line for line in lines]
    control.write_text("\n".join(version) + "\n")
    config = tree / CONFIG
    config.write_text(config.read_text() + "\n# A comment of the later release.\n")
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, built]
    subprocess.run(command, check=True, capture_output=True)
    return built


def asked(machine: Machine) -> list[str]:
    """Return what systemctl was asked since the last call, without its options."""
    notes = machine.root / "tmp/asked"
    lines = notes.read_text().splitlines() if notes.exists() else []
    notes.unlink(missing_ok=True)
    words = [[word for word in line.split() if not word.startswith("-")] for line in lines]
    return [" ".join(line) for line in words]


def test_package_lives_and_goes(machine, package, tmp_path):
    machine.run(f"dpkg --install {machine.put(package, '/packages')}")
    assert "start forebayd.service" in asked(machine)
    assert machine.has(UNIT)
    owners = machine.run(f"stat -c '%U:%G %a' /etc/forebay /{CONFIG} /var/cache/forebay").stdout
    assert owners.split("\n")[:3] == ["root:forebay 750", "root:forebay 640", "forebay:forebay 750"]
    machine.run(f"forebay config check /{CONFIG} && test -e /usr/share/man/man1/forebay.1.gz")
    assert "forebay" in (machine.root / "usr/share/bash-completion/completions/forebay").read_text()

    # It runs as the unit runs it, on the configuration that it came with.
    (machine.root / "service.py").write_text(SERVICE)
    served = json.loads(machine.run("python3 /service.py").stdout)
    assert served["code"] == 0
    assert [tier["name"] for tier in served["status"]["tiers"]] == ["disk"]

    # An upgrade restarts it once, and keeps the administrator's configuration.
    config = machine.root / CONFIG
    config.write_text(config.read_text().replace("50GiB", "5GiB"))
    later = machine.put(newer(package, tmp_path), "/packages")
    machine.run(f"dpkg --install --force-confold {later}")
    units = [line for line in asked(machine) if "forebayd.service" in line]
    assert [line for line in units if "start" in line or "stop" in line] == [
        "restart forebayd.service"
    ]
    assert "5GiB" in config.read_text()
    assert json.loads(machine.run("python3 /service.py").stdout)["code"] == 0

    machine.run("dpkg --remove forebay")
    assert "stop forebayd.service" in asked(machine)
    assert not machine.has("usr/bin/forebay")
    assert machine.has(CONFIG)

    # A purge removes the state, and the cache only when told.
    machine.run("dpkg --purge forebay")
    gone = ["etc/forebay", "var/lib/forebay", "var/log/forebay", UNIT]
    assert [path for path in gone if machine.has(path)] == []
    assert machine.has("var/cache/forebay/forebay.json") or any(
        (machine.root / "var/cache/forebay").iterdir()
    )
    machine.run(f"dpkg --install /packages/{package.name}")
    machine.run("dpkg --purge forebay", {"FOREBAY_PURGE_CACHE": "yes"})
    assert not machine.has("var/cache/forebay")


def test_package_needs_no_newer_glibc_than_it_says(package, tmp_path):
    said = subprocess.run(
        ["dpkg-deb", "--field", package, "Depends"], check=True, capture_output=True, text=True
    ).stdout
    assert "libc6 (>= 2.28)" in said
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    told = subprocess.run(
        ["objdump", "-T", tmp_path / "usr/bin/forebay"], check=True, capture_output=True, text=True
    ).stdout
    versions = {
        tuple(int(part) for part in word.strip("()").removeprefix("GLIBC_").split("."))
        for word in told.split()
        if word.strip("()").startswith("GLIBC_2")
    }
    assert max(versions) <= (2, 28)
