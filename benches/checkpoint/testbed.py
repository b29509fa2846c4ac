"""Testbed of a row: a folder on the disk that is measured, a node's daemon, an S3 store.

The store is the test kit's server. It keeps its objects in memory, so that the disk under the
daemon's tier serves nobody else.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import daemons
import processes
from settings import Programs, Settings

BUCKET = "bench"
# Folder beside it, for checkpoints whose upload is not measured.
PATHS = "paths"
KEYS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_REGION": "us-east-1",
}
# File system in memory.
MEMORY = Path("/dev/shm")
# Memory of the daemon: 64 MiB for each of eight ranks, 64 MiB of uploads, and frames of fills.
DAEMON_MEMORY = "2GiB"


@dataclass
class Node:
    """A node's daemon, and the environment that leads jobs to it and to the store."""

    environment: dict[str, str]
    pid: int

    def cpu(self) -> float:
        """Return the CPU seconds of the daemon so far, its reader processes included."""
        return processes.cpu_seconds([self.pid, *processes.children(self.pid)])


@dataclass
class Store:
    """An S3 store."""

    name: str
    # Endpoint and credentials.
    environment: dict[str, str]
    # Folder in memory for its buckets.
    folder: Path

    def url(self, name: str) -> str:
        """Return the URL of a checkpoint."""
        return f"s3://{BUCKET}/{name}"

    def path(self, name: str) -> str:
        """Return the path of a checkpoint in memory: a store that takes no CPU of its own."""
        return str(self.folder / PATHS / name)

    def forget(self, name: str) -> None:
        """Free the memory of a checkpoint that nobody needs any more."""
        if not name:
            return
        for place in (self.folder / BUCKET / name, self.folder / PATHS / name):
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)


@contextmanager
def store(
    programs: Programs, inside: tuple[str, ...] = (), host: str = "127.0.0.1"
) -> Iterator[Store]:
    """Run the test kit's S3 server on `host`; `inside` is the command that enters a namespace."""
    with tempfile.TemporaryDirectory(prefix="store-", dir=MEMORY) as name:
        folder = Path(name)
        for part in (BUCKET, PATHS):
            (folder / part).mkdir()
        keys = ["--access-key", KEYS["AWS_ACCESS_KEY_ID"]]
        keys += ["--secret-key", KEYS["AWS_SECRET_ACCESS_KEY"]]
        command: list[str | Path] = [*inside, programs.origin, "--dir", folder, "--host", host]
        server = subprocess.Popen(
            [*command, "--until-eof", *keys],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            first_line = server.stdout.readline()
            if not first_line.startswith("listening on "):
                raise SystemExit("the S3 server did not start")
            endpoint = first_line.removeprefix("listening on ").strip()
            yield Store("s3s", {**KEYS, "AWS_ENDPOINT_URL": endpoint}, folder)
        finally:
            server.terminate()
            server.wait()


@contextmanager
def node(settings: Settings, store: Store, rule: str = "") -> Iterator[Node]:
    """Run a node's daemon with an empty tier; `rule` adds to its ``[[checkpoint]]``."""
    with tempfile.TemporaryDirectory(prefix="tier-", dir=settings.directory) as tier:
        endpoint = store.environment["AWS_ENDPOINT_URL"]
        config = f"[daemon]\nmemory = '{DAEMON_MEMORY}'\n"
        config += f"[[tier]]\nname = 'disk'\npath = '{tier}/cache'\ncapacity = '16GiB'\n"
        # A node's daemon connects to its own machine only where a rule names it.
        config += f"[[source]]\nmatch = 's3://{BUCKET}/'\nendpoint = '{endpoint}'\n"
        config += f"[[source]]\nmatch = '{settings.directory}/'\n"
        config += f"[[checkpoint]]\nmatch = 's3://{BUCKET}/**'\n{rule}\n"
        paths = store.folder / PATHS
        config += f"[[source]]\nmatch = '{paths}/'\n"
        config += f"[[checkpoint]]\nmatch = '{paths}/**'\n"
        own = {**settings.environment, **store.environment}
        with daemons.node_daemon(own, config, forebay=settings.programs.forebay):
            status = daemons.status(own, settings.programs.forebay)
            assert status is not None
            yield Node(own, int(status["pid"]))
