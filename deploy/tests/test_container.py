"""The container image: built without a network, then run by Podman and runc as other runtimes do.

io_uring is forbidden by the runtime's own seccomp profile and allowed by Forebay's; two containers
that share a folder are a daemon and its trainer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
PROFILE = ROOT / "deploy/seccomp/forebay.json"
BASE, IMAGE = "localhost/base", "localhost/forebay"
SOCKET = "unix:/run/forebay/forebayd.sock"
# The Helm chart's `user.uid`.
USER = 64980
PHOTOS, BATCH = 128, 32

Run = Callable[..., "subprocess.CompletedProcess[str]"]


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


@pytest.fixture
def shared(tmp_path: Path, forebay: str) -> Path:
    """Return a folder with `run` for the socket and `data` with a shard of photos."""
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", USER, USER)
    subprocess.run(
        [forebay, "demo", "--shards-only", tmp_path / "data", "--photos", str(PHOTOS)],
        check=True,
        capture_output=True,
    )
    (tmp_path / "data").chmod(0o755)
    # Folders of pytest are private; containers see only what is mounted.
    return tmp_path


def container(podman: list[str], shared: Path, *options: str) -> list[str]:
    """Return the command that runs the image with the shared folders and few limits."""
    limits = ["--ulimit", "nofile=1024:20000", "--ulimit", "nproc=1000:1000"]
    folders = ["--volume", f"{shared}/run:/run/forebay", "--volume", f"{shared}/data:/data:ro"]
    return [*podman, "run", "--rm", "--network", "none", *limits, *folders, *options, IMAGE]


def profiled(podman: list[str], shared: Path, verb: list[str], *options: str) -> Any:
    """Return the JSON that a verb of `forebay` printed in a container."""
    command = container(podman, shared, "--entrypoint", "forebay", *options)
    ended = subprocess.run([*command, *verb, "--json"], capture_output=True, text=True)
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


@contextmanager
def serving(podman: list[str], shared: Path, *options: str) -> Iterator[None]:
    """Run a daemon's container until the block is left."""
    command = container(podman, shared, "--name", "forebayd", *options)
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert daemon.stdout is not None
    said = []
    for line in daemon.stdout:
        said.append(line)
        if "listening" in line:
            break
    else:
        pytest.fail("".join(said))
    try:
        yield
    finally:
        subprocess.run([*podman, "stop", "--time", "20", "forebayd"], capture_output=True)
        daemon.communicate(timeout=60)
    # SIGTERM drains it.
    assert daemon.returncode == 0


def test_containerfile_passes_hadolint():
    command = [program("hadolint"), str(CONTAINERFILE)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_image_runs_without_root(podman, image):
    asked = [*podman, "inspect", image, "--format", "{{json .Config}}"]
    config = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["forebayd"]


@pytest.mark.parametrize(
    ("options", "verdict", "engine"),
    [
        # The runtime's own profile: io_uring is forbidden, and the daemon serves all the same.
        ([], "warn", "threads"),
        (["--security-opt", f"seccomp={PROFILE}", "--ulimit", "memlock=-1:-1"], "ok", "ring"),
    ],
    ids=["default-profile", "forebay-profile"],
)
def test_trainer_in_another_container_gets_batches(podman, image, shared, options, verdict, engine):
    doctor = profiled(podman, shared, ["doctor", "--config", "/etc/forebay/forebay.toml"], *options)
    found = {check["check"]: check["verdict"] for check in doctor["checks"]}
    assert found["io_uring"] == verdict
    with serving(podman, shared, *options):
        asked = ["--daemon", SOCKET]
        served = profiled(podman, shared, ["status", *asked], *options)
        assert served["tiers"][0]["engine"]["kind"] == engine
        verb = ["bench", "starvation", "/data/train-*.tar", "--raw", "--epochs", "1", *asked]
        verb += ["--profile", "custom", "--batch-size", str(BATCH), "--step", "0"]
        (epoch,) = profiled(podman, shared, verb, *options)["epochs"]
        # The first step fills the pipeline and is not counted.
        assert epoch["samples"] == PHOTOS - BATCH
