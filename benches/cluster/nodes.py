"""Real daemons in namespaces, a store with shards, and jobs that play epochs of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from network import NODE, STORE, Host, make_bridge

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "cli/bench/contest"))
import processes  # noqa: E402

PORT, ORIGIN_PORT = 9481, 9000
# Time for daemons to start, and for fills to end.
PATIENCE = 60


class Job(NamedTuple):
    """A rank of a job, on a node."""

    node: int
    rank: int
    world: int
    seed: int


class Played(NamedTuple):
    """One ended epoch."""

    samples: int
    seconds: float
    longest: float


class Size(NamedTuple):
    """Size of a data set."""

    shards: int
    samples: int
    sample: int


def make_shard(path: Path, shard: int, version: int, size: Size) -> dict[str, int]:
    """Write a shard, whole or not at all; returns the CRC-32 of each key's bytes."""
    made, sums = io.BytesIO(), {}
    dice = random.Random(f"{shard} {version}")
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in range(size.samples):
            key = f"{shard:03d}-{sample:05d}"
            content = dice.randbytes(size.sample)
            member = tarfile.TarInfo(f"{key}.bin")
            member.size = size.sample
            tar.addfile(member, io.BytesIO(content))
            sums[key] = zlib.crc32(content)
    aside = path.with_suffix(".new")
    aside.write_bytes(made.getvalue())
    aside.replace(path)
    return sums


def make_certificates(folder: Path, nodes: int) -> None:
    """Make an authority, and a certificate for each node."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    authority = ["-subj", "/CN=nodes", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"]
    openssl("req", "-x509", *key, *authority)
    for number in range(nodes):
        name = f"node{number}"
        openssl(
            "req", "-new", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr"
        )
        (folder / "ext").write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext"]
        openssl("x509", "-req", "-in", "csr", *sign, "-days", "2", "-out", f"{name}.pem")


class Site:
    """The network, the store and its shards."""

    def __init__(
        self, folder: Path, binaries: tuple[str, str], size: Size, rates: list[int], store: int
    ) -> None:
        """Make all of it: a node for each rate in Mbit/s, and the store's link.

        `binaries` are the command line, and the test kit's server.
        """
        self.forebay, origin = (str(Path(path).resolve()) for path in binaries)
        self.folder, self.size = folder, size
        self.data = folder / "store" / "data"
        self.data.mkdir(parents=True)
        # Version of a sample by the CRC-32 of its bytes, for each key.
        self.versions: dict[str, dict[int, int]] = {}
        for shard in range(size.shards):
            self.replace(shard, 0)
        self.bytes = sum(path.stat().st_size for path in self.data.iterdir())
        make_certificates(folder, len(rates))
        make_bridge()
        self.nodes = [Host(f"{NODE}{n}", n + 1, mbit) for n, mbit in enumerate(rates)]
        self.origin = Host(STORE, 100, store)
        members = [f"node{n} {host.address}:{PORT}\n" for n, host in enumerate(self.nodes)]
        (folder / "members").write_text("".join(members))
        self.store = f"http://{self.origin.address}:{ORIGIN_PORT}"
        self.urls = f"{self.store}/data/{{000..{size.shards - 1:03d}}}.tar"
        words = ["--dir", f"{folder}/store", "--host", self.origin.address]
        server = self.origin.command(origin, *words, "--port", str(ORIGIN_PORT))
        self.server = subprocess.Popen(server)

    def replace(self, shard: int, version: int) -> None:
        """Put another version of a shard into the store."""
        sums = make_shard(self.data / f"{shard:03d}.tar", shard, version, self.size)
        for key, crc in sums.items():
            self.versions.setdefault(key, {})[crc] = version

    def stop(self) -> None:
        """End the store."""
        self.server.terminate()
        self.server.wait()


class Cluster:
    """Daemons of all nodes, with empty caches."""

    def __init__(
        self, site: Site, *, shared: bool, capacity: int, members: str | None = None, more: str = ""
    ) -> None:
        """Start the daemons. `members`: source of the list; `more`: further configuration."""
        self.site = site
        self.folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=site.folder))
        self.daemons: dict[int, subprocess.Popen[bytes]] = {}
        for number, host in enumerate(site.nodes):
            home = self.home(number)
            home.mkdir()
            text = f"[daemon]\nsocket = '{home}/d.sock'\nmemory = '512MiB'\n"
            text += f"[[tier]]\nname = 'nvme'\npath = '{home}/cache'\ncapacity = {capacity}\n"
            text += f"[[source]]\nmatch = '{site.store}/'\n"
            if shared:
                pem = site.folder
                own = f"{{ file = '{pem}/members' }}"
                text += f"[cluster]\nname = 'node{number}'\nlisten = '{host.address}:{PORT}'\n"
                text += f"cert = '{pem}/node{number}.pem'\nkey = '{pem}/node{number}.key'\n"
                text += f"ca = '{pem}/ca.pem'\n"
                text += f"members = {members or own}\n"
            (home / "forebay.toml").write_text(text + more)
            self.start(number)
        self.wait_up(range(len(site.nodes)))

    def home(self, number: int) -> Path:
        """Return the folder of a node."""
        return self.folder / f"node{number}"

    def start(self, number: int) -> None:
        """Start the daemon of a node."""
        home = self.home(number)
        (home / "d.sock").unlink(missing_ok=True)
        command = [self.site.forebay, "daemon", "--config", f"{home}/forebay.toml"]
        with (home / "log").open("a") as log:
            self.daemons[number] = subprocess.Popen(
                self.site.nodes[number].command(*command),
                stderr=log,
                env={**os.environ, "FOREBAY_LOG": "warn"},
            )

    def wait_up(self, numbers: Any) -> None:
        """Wait for the sockets of daemons."""
        until = time.monotonic() + PATIENCE
        while not all((self.home(n) / "d.sock").exists() for n in numbers):
            if time.monotonic() > until:
                raise SystemExit(f"a daemon does not start: see {self.folder}")
            time.sleep(0.1)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a daemon and its readers."""
        daemon = self.daemons[number].pid
        readers = [] if what == signal.SIGTERM else processes.children(daemon)
        for pid in [*readers, daemon]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def play(self, job: Job, record: Path | None = None) -> subprocess.Popen[str]:
        """Start a job."""
        site = self.site
        samples = site.size.shards * site.size.samples
        socket = f"unix:{self.home(job.node)}/d.sock"
        words = [site.urls, socket, str(job.rank), str(job.world), str(job.seed), str(samples)]
        words += [str(record)] if record else []
        command = site.nodes[job.node].command(sys.executable, str(HERE / "play.py"), *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def status(self, node: int) -> dict[str, Any]:
        """Return the status of a node's daemon."""
        words = ["status", "--json", "--daemon", f"unix:{self.home(node)}/d.sock"]
        told = subprocess.run(
            [self.site.forebay, *words], check=True, capture_output=True, text=True
        )
        status: dict[str, Any] = json.loads(told.stdout)
        return status

    def cpu(self, node: int) -> float:
        """Return the CPU seconds of a node's daemon so far."""
        return processes.cpu_seconds([self.daemons[node].pid])

    def settle(self, nodes: list[int]) -> None:
        """Wait until no shard is on its way in."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            fills = [self.status(node)["fills"] for node in nodes]
            if all(fill["running"] + fill["waiting"] + fill["paused"] == 0 for fill in fills):
                return
            time.sleep(0.2)

    def stop(self) -> None:
        """End the daemons. Those of a cluster would serve on for others."""
        for number in self.daemons:
            self.signal(number, signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.wait()


def finish(jobs: list[subprocess.Popen[str]]) -> list[Played]:
    """Wait for jobs, which must succeed."""
    ended = []
    for job in jobs:
        told, _ = job.communicate()
        if job.returncode != 0:
            raise SystemExit(f"a job failed: {told}")
        ended.append(Played(**json.loads(told)))
    return ended
