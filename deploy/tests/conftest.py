"""Tools that tests of deploy/ run: those of `make setup-deploy`, and Forebay's own command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
MACHINE = os.uname().machine
# Machines that packages are made for, as Debian calls them.
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def tool(requirement: str, path: str) -> Path:
    """Return a tool of this checkout; without it the test is skipped by name."""
    found = TOOLS / path
    if not found.exists():
        pytest.skip(f"needs {requirement}: make setup-deploy")
    return found


@pytest.fixture(scope="session")
def helm() -> Path:
    """Return helm itself."""
    return tool("helm", "helm/helm")


@pytest.fixture(scope="session")
def schemas() -> Path:
    """Return a Python that has the schemas of Kubernetes and a parser of HCL."""
    return tool("schemas", "schemas/bin/python")


@pytest.fixture(scope="session")
def default_profile() -> Path:
    """Return the default seccomp profile of container runtimes."""
    return tool("seccomp", "seccomp/seccomp.json")


@pytest.fixture(scope="session")
def runc() -> Path:
    """Return the program that starts containers."""
    return tool("runc", "runc/runc")


@pytest.fixture(scope="session")
def forebay() -> str:
    """Return Forebay's command."""
    beside = Path(sys.executable).with_name("forebay")
    found = str(beside) if beside.exists() else shutil.which("forebay")
    if found is None:
        pytest.skip("needs forebay: make setup")
    return found


@pytest.fixture(scope="session")
def debian() -> Path:
    """Return a folder with the base of Debian 12 and Python, and nothing else."""
    return prepared("debian")


@pytest.fixture(scope="session")
def package() -> Path:
    """Return the Debian package of this checkout for this machine."""
    return built(f"forebay_*_{DEBIAN_NAMES[MACHINE]}.deb", "make deb")


@pytest.fixture(scope="session")
def wheel() -> Path:
    """Return the wheel of this checkout for this machine."""
    return built(f"forebay-*-manylinux_2_28_{MACHINE}.whl", "make wheel")


def prepared(path: str) -> Path:
    """Return what only `make package-test` prepares, as it is large."""
    found = TOOLS / path
    if not found.exists():
        pytest.skip("needs packages: make package-test")
    return found


def built(pattern: str, command: str) -> Path:
    """Return the newest file in dist/ of a name like that."""
    found = sorted((ROOT / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip(f"needs packages: {command}")
    return found[-1]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a self-signed certificate of the name `gpu-1`, as a Secret has it."""
    folder = tmp_path_factory.mktemp("authority")
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"]
    # Of the kind that the chart asks cert-manager for.
    command += ["-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-subj", "/CN=gpu-1", "-addext", "subjectAltName=DNS:gpu-1"]
    command += ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "tls.key").chmod(0o600)
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    return folder
