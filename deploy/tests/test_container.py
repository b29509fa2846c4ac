"""The container image: linted, built without a network, run by Podman and runc.

The runtime's own seccomp profile forbids io_uring, Forebay's allows it: the daemon serves under
both. Daemon and trainer are two containers of other users that share the folder of the socket.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
PROFILE = ROOT / "deploy/seccomp/forebay.json"
BASE, IMAGE = "localhost/base", "localhost/forebay"
# The Helm chart's `user.uid`.
USER = 64980
# The trainer's: no user of the image, in the daemon's group. Benchmarks ask for what admins see.
TRAINER = f"1000:{USER}"
SOCKET = "unix:/run/forebay/forebayd.sock"
# Photos of the shard: the fewest that `forebay demo` makes, which are two batches.
PHOTOS, BATCH = 64, 32
# A container that runs longer hangs.
TIMEOUT_S = 120

# A node's configuration for a store at one address.
CONFIG = """
[daemon]
admin_group = "forebay"
memory = "1GiB"
[[tier]]
name = "disk"
path = "/var/cache/forebay"
capacity = "1GiB"
[[source]]
match = "{store}/"
"""


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


def container(podman: list[str], *options: str) -> list[str]:
    """Return the command that runs the image, whose own files nobody can change."""
    limits = ["--ulimit", "nofile=1024:20000", "--ulimit", "nproc=1000:1000"]
    return [*podman, "run", "--rm", "--read-only", *limits, *options, IMAGE]


def told(podman: list[str], verb: list[str], *options: str) -> Any:
    """Return the JSON that a verb of `forebay` prints in a container without a network."""
    command = container(podman, "--network", "none", "--entrypoint", "forebay", *options)
    ended = subprocess.run(
        [*command, *verb, "--json"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def origin(
    podman: list[str], image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the URL of a web server of this machine that has a shard of photos."""
    folder = tmp_path_factory.mktemp("origin")
    os.chown(folder, USER, USER)
    make = ["--entrypoint", "forebay", "--volume", f"{folder}:/out", "--network", "none"]
    command = [*container(podman, *make), "demo", "--shards-only", "/out/photos"]
    command += ["--photos", str(PHOTOS)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert made.returncode == 0, made.stderr
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder / "photos"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def serving(podman: list[str], *options: str) -> Iterator[None]:
    """Run a daemon's container until the block is left."""
    command = container(podman, "--name", "forebayd", *options)
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
        rest, _ = daemon.communicate(timeout=TIMEOUT_S)
    # SIGTERM drains it.
    assert daemon.returncode == 0, "".join(said) + rest


@pytest.mark.parametrize(
    ("options", "verdict", "engine"),
    [([], "warn", "threads"), (["--security-opt", f"seccomp={PROFILE}"], "ok", "ring")],
    ids=["default-profile", "forebay-profile"],
)
def test_trainer_of_another_container_gets_a_batch(
    podman, image, origin, tmp_path, options, verdict, engine
):
    doctor = told(podman, ["doctor", "--config", "/etc/forebay/forebay.toml"], *options)
    found = {check["check"]: check["verdict"] for check in doctor["checks"]}
    assert found["io_uring"] == verdict
    assert found["direct_io"] == "ok"

    config, run = tmp_path / "forebay.toml", tmp_path / "run"
    config.write_text(CONFIG.format(store=origin))
    run.mkdir()
    os.chown(run, USER, USER)
    shared = ["--volume", f"{run}:/run/forebay"]
    its_own = ["--network", "host", "--volume", f"{config}:/etc/forebay/forebay.toml:ro"]
    with serving(podman, *shared, *its_own, *options):
        status = told(podman, ["status", "--daemon", SOCKET], *shared, *options)
        # A name, or a name with the reason.
        assert engine in status["tiers"][0]["engine"]["kind"]
        # The trainer has neither the network nor any other folder of the daemon's.
        verb = ["bench", "starvation", f"{origin}/train-000000.tar", "--daemon", SOCKET]
        verb += ["--profile", "custom", "--batch-size", str(BATCH), "--step", "0", "--epochs", "2"]
        other = ["--user", TRAINER, "--read-only-tmpfs=false"]
        played = told(podman, verb, *shared, *other, *options)
        # The first step of an epoch fills the pipeline, and is not counted.
        assert [epoch["samples"] for epoch in played["epochs"]] == [PHOTOS - BATCH] * 2
        assert [epoch["temperature"] for epoch in played["epochs"]] == ["cold", "warm"]
