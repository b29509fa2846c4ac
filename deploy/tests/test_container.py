"""The container image: linted, built without a network, and what it says of itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
BASE, IMAGE = "localhost/base", "localhost/forebay"
# The Helm chart's `user.uid`.
USER = 64980


def program(name: str) -> str:
    """Return a program; without it the test is skipped by name."""
    beside = ROOT / ".tools/packages/bin" / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip("needs packages: make package-test")
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the options of a store of images of its own; it is removed at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    folder = tmp_path_factory.mktemp("store")
    return ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "overlay"]


@pytest.fixture(scope="module")
def podman(store: list[str]) -> Iterator[list[str]]:
    """Return the command of Podman with runc, which needs no control groups to be delegated."""
    command = [program("podman"), *store, "--runtime", program("runc")]
    command += ["--cgroup-manager", "cgroupfs"]
    yield command
    subprocess.run([*command, "rm", "--all", "--force", "--time", "0"], capture_output=True)
    subprocess.run([*command, "system", "reset", "--force"], capture_output=True)


@pytest.fixture(scope="module")
def image(store: list[str], podman: list[str], debian: Path, package: Path) -> str:
    """Return the image, whose build reached no network."""
    buildah = [program("buildah"), *store]

    def run(*arguments: str) -> str:
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        ended = subprocess.run(
            [*buildah, *arguments], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.strip()

    base = run("from", "scratch")
    run("add", "--quiet", base, str(debian), "/")
    run("commit", "--quiet", base, BASE)
    run("rm", base)
    named = [f"BASE={BASE}", f"PACKAGE=dist/{package.name}"]
    options = [word for pair in named for word in ("--build-arg", pair)]
    options += ["--pull-never", "--network", "none", "--tag", IMAGE]
    run("build", *options, "--file", str(CONTAINERFILE), str(ROOT))
    return IMAGE


def test_containerfile_passes_hadolint():
    command = [program("hadolint"), str(CONTAINERFILE)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_image_runs_without_root(podman, image):
    asked = [*podman, "inspect", image, "--format", "{{json .Config}}"]
    config = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["forebayd"]
