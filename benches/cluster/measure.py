r"""Four nodes that share their caches, each in a network namespace behind a link of its own.

    sudo .venv/bin/python benches/cluster/measure.py --forebay .venv/bin/forebay \
        --origin target/release/forebay-origin --directory /mnt/nvme

Real daemons, a store behind a limited link, and a token bucket on every link. Bytes are those that
the kernel counted on the links, less the headers of the packets, and are compared with the daemons'
own metrics. Every figure has a control without `[cluster]` in the same run. Needs root.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

NODES = 4
# Rates of the links, in Mbit/s: a node's, and the store's, which all nodes share.
NODE_MBIT, ORIGIN_MBIT = 1000, 400
# Burst of a token bucket: a few of the largest segments.
BURST = 256 * 1024
# A block of addresses reserved for measuring (RFC 2544).
NETWORK = "198.18.78"
BRIDGE = "fb-bridge"
# Ethernet, IPv4 and TCP with timestamps.
HEADERS = 14 + 20 + 32
SAMPLES, SAMPLE = 300, 110_000
PORT, ORIGIN_PORT = 9481, 9000


def run(*command: str) -> None:
    """Run it, or exit with its output."""
    subprocess.run(command, check=True)


class Host:
    """A network namespace with one link to the bridge."""

    def __init__(self, name: str, number: int, mbit: int) -> None:
        """Make the namespace and its link."""
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.link = f"{name}-up"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.inside("ip", "link", "set", "lo", "up")
        rate = ["root", "tbf", "rate", f"{mbit}mbit", "burst", str(BURST), "latency", "50ms"]
        run("tc", "qdisc", "add", "dev", self.link, *rate)
        self.inside("tc", "qdisc", "add", "dev", "eth0", *rate)

    def command(self, *command: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def inside(self, *command: str) -> None:
        """Run a command in the namespace."""
        run(*self.command(*command))

    def sent(self) -> int:
        """Return the payload bytes that the host sent so far."""
        counts = Path("/sys/class/net") / self.link / "statistics"
        packets = int((counts / "rx_packets").read_text())
        return int((counts / "rx_bytes").read_text()) - HEADERS * packets


def clean() -> None:
    """Remove the remains of an earlier run."""
    for name in [f"fb-node{number}" for number in range(NODES)] + ["fb-origin"]:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)


def make_shards(folder: Path, shards: int) -> int:
    """Make shards of samples as large as photos; returns their bytes."""
    folder.mkdir(parents=True)
    dice, total = random.Random(7), 0
    for shard in range(shards):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(SAMPLES):
                member = tarfile.TarInfo(f"{shard:03d}-{sample:05d}.bin")
                member.size = SAMPLE
                tar.addfile(member, io.BytesIO(dice.randbytes(SAMPLE)))
        (folder / f"{shard:03d}.tar").write_bytes(made.getvalue())
        total += len(made.getvalue())
    return total


def make_certificates(folder: Path) -> None:
    """Make an authority, and a certificate for each node."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    authority = ["-subj", "/CN=nodes", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"]
    openssl("req", "-x509", *key, *authority)
    for number in range(NODES):
        name = f"node{number}"
        openssl(
            "req", "-new", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr"
        )
        (folder / "ext").write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext"]
        openssl("x509", "-req", "-in", "csr", *sign, "-days", "2", "-out", f"{name}.pem")


# One epoch; prints samples, seconds and the longest wait for a batch.
PLAY = """
import sys, time, forebay
url, daemon, rank, world, seed = sys.argv[1:]
loader = forebay.DataLoader(url, fields={"raw": forebay.Bytes("bin")}, daemon=daemon, shuffle=True,
    batch_size=16, rank=int(rank), world_size=int(world), seed=int(seed), epoch_samples=%d)
since = last = time.monotonic()
samples = longest = 0
for batch in loader:
    now = time.monotonic()
    if samples:
        longest = max(longest, now - last)
    samples, last = samples + len(batch["raw"]), now
print(samples, time.monotonic() - since, longest)
"""


class Cluster:
    """Daemons of all nodes, with empty caches."""

    def __init__(self, bench: Bench, *, shared: bool, capacity: int) -> None:
        """Start the daemons."""
        self.bench = bench
        self.folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=bench.folder))
        self.daemons = []
        for number, host in enumerate(bench.nodes):
            home = self.folder / f"node{number}"
            home.mkdir()
            text = f"[daemon]\nsocket = '{home}/d.sock'\nmemory = '1GiB'\n"
            text += f"[[tier]]\nname = 'nvme'\npath = '{home}/cache'\ncapacity = {capacity}\n"
            text += f"[[source]]\nmatch = '{bench.store}/'\n"
            if shared:
                pem = bench.folder
                text += f"[cluster]\nname = 'node{number}'\nlisten = '{host.address}:{PORT}'\n"
                text += f"cert = '{pem}/node{number}.pem'\nkey = '{pem}/node{number}.key'\n"
                text += f"ca = '{pem}/ca.pem'\nmembers = {{ file = '{pem}/members' }}\n"
            (home / "forebay.toml").write_text(text)
            command = [bench.forebay, "daemon", "--config", f"{home}/forebay.toml"]
            with (home / "log").open("w") as log:
                daemon = subprocess.Popen(
                    host.command(*command), stderr=log, env={**os.environ, "FOREBAY_LOG": "warn"}
                )
            self.daemons.append(daemon)
        until = time.monotonic() + 60
        sockets = [self.folder / f"node{number}/d.sock" for number in range(NODES)]
        while not all(socket.exists() for socket in sockets) and time.monotonic() < until:
            time.sleep(0.1)

    def jobs(self, what: list[tuple[int, int, int, int]]) -> list[subprocess.Popen[str]]:
        """Start jobs, each given by its node, rank, world and seed."""
        started = []
        samples = self.bench.shards * SAMPLES
        for node, rank, world, seed in what:
            socket = f"unix:{self.folder}/node{node}/d.sock"
            words = [self.bench.urls, socket, str(rank), str(world), str(seed)]
            command = [sys.executable, "-c", PLAY % samples, *words]
            command = self.bench.nodes[node].command(*command)
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started

    def status(self, node: int) -> dict[str, Any]:
        """Return the status of a node's daemon."""
        words = ["status", "--json", "--daemon", f"unix:{self.folder}/node{node}/d.sock"]
        told = subprocess.run(
            [self.bench.forebay, *words], check=True, capture_output=True, text=True
        )
        status: dict[str, Any] = json.loads(told.stdout)
        return status

    def settle(self, nodes: list[int]) -> None:
        """Wait until no shard is on its way in."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            fills = [self.status(node)["fills"] for node in nodes]
            if all(fill["running"] + fill["waiting"] == 0 for fill in fills):
                return
            time.sleep(0.2)

    def stop(self) -> None:
        """End the daemons."""
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()


def finish(jobs: list[subprocess.Popen[str]]) -> list[list[float]]:
    """Wait for jobs; returns samples, seconds and the longest wait of each."""
    ended = []
    for job in jobs:
        told, _ = job.communicate()
        if job.returncode != 0:
            raise SystemExit("a job failed")
        ended.append([float(word) for word in told.split()])
    return ended


class Bench:
    """The network, the store and its shards."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        """Make all of it."""
        self.forebay = str(Path(arguments.forebay).resolve())
        self.folder = folder
        self.shards = arguments.shards
        self.bytes = make_shards(folder / "store" / "data", self.shards)
        make_certificates(folder)
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        numbers = range(NODES)
        self.nodes = [Host(f"fb-node{number}", number + 1, NODE_MBIT) for number in numbers]
        self.origin = Host("fb-origin", 100, ORIGIN_MBIT)
        members = [f"node{n} {host.address}:{PORT}\n" for n, host in enumerate(self.nodes)]
        (folder / "members").write_text("".join(members))
        self.store = f"http://{self.origin.address}:{ORIGIN_PORT}"
        self.urls = f"{self.store}/data/{{000..{self.shards - 1:03d}}}.tar"
        words = ["--dir", f"{folder}/store", "--host", self.origin.address]
        server = self.origin.command(str(Path(arguments.origin).resolve()), *words)
        self.server = subprocess.Popen([*server, "--port", str(ORIGIN_PORT)])

    def counted(self, cluster: Cluster, what: list[tuple[int, int, int, int]]) -> dict[str, float]:
        """Play jobs; returns bytes of the store and between nodes, in sizes of the data set."""
        before = self.origin.sent(), sum(host.sent() for host in self.nodes)
        ended = finish(cluster.jobs(what))
        cluster.settle(sorted({node for node, *_ in what}))
        origin, nodes = self.origin.sent(), sum(host.sent() for host in self.nodes)
        return {
            "origin": (origin - before[0]) / self.bytes,
            "peer": (nodes - before[1]) / self.bytes,
            "seconds": max(seconds for _, seconds, _ in ended),
            "samples": sum(samples for samples, *_ in ended),
        }

    def raw_rate(self) -> float:
        """Return bytes a second of one plain TCP stream between two nodes."""
        code = (
            "import socket,sys\n"
            "s = socket.create_server((sys.argv[1], 7000)); print('up', flush=True)\n"
            "c, _ = s.accept()\n"
            "for _ in range(256): c.sendall(bytes(1 << 20))\n"
            "c.close()"
        )
        sender = self.nodes[1].command(sys.executable, "-c", code, self.nodes[1].address)
        with subprocess.Popen(sender, stdout=subprocess.PIPE, text=True) as sending:
            assert sending.stdout is not None
            sending.stdout.readline()
            code = (
                "import socket,sys,time\n"
                "c = socket.create_connection((sys.argv[1], 7000)); n = 0; t = time.monotonic()\n"
                "while got := len(c.recv(1 << 20)): n += got\n"
                "print(n / (time.monotonic() - t))"
            )
            taker = self.nodes[0].command(sys.executable, "-c", code, self.nodes[1].address)
            told = subprocess.run(taker, check=True, capture_output=True, text=True)
        return float(told.stdout)


def ranks(seed: int) -> list[tuple[int, int, int, int]]:
    """One job with a rank on each node."""
    return [(number, number, NODES, seed) for number in range(NODES)]


def jobs(*seeds: int) -> list[tuple[int, int, int, int]]:
    """A job of its own on each node."""
    return [(number, 0, 1, seed) for number, seed in enumerate(seeds)]


def cold_and_warm(bench: Bench, *, shared: bool) -> dict[str, object]:
    """Measure cold and warm epochs, with caches that hold half of the data each."""
    figures: dict[str, object] = {}
    # A node holds half of the data, and a shard on its way.
    capacity = bench.bytes // 2 + bench.bytes // bench.shards
    cluster = Cluster(bench, shared=shared, capacity=capacity)
    try:
        figures["one job, cold"] = bench.counted(cluster, ranks(1))
        written = sum(cluster.status(node)["cache"]["written_bytes"] for node in range(NODES))
        figures["one job, warm"] = bench.counted(cluster, ranks(2))
        after = sum(cluster.status(node)["cache"]["written_bytes"] for node in range(NODES))
        figures["written, warm"] = (after - written) / bench.bytes
    finally:
        cluster.stop()
    for name, seeds in (("equal orders", (1, 1, 1, 1)), ("different orders", (1, 2, 3, 4))):
        cluster = Cluster(bench, shared=shared, capacity=2 * bench.bytes)
        try:
            figures[f"four jobs, {name}, cold"] = bench.counted(cluster, jobs(*seeds))
        finally:
            cluster.stop()
    return figures


def killed(bench: Bench) -> dict[str, object]:
    """Kill a node by SIGKILL in the middle of a cold epoch of a job on another one."""
    cluster = Cluster(bench, shared=True, capacity=2 * bench.bytes)
    try:
        before = bench.origin.sent()
        playing = cluster.jobs(jobs(1))
        # The middle of the epoch by bytes of the store.
        while bench.origin.sent() - before < bench.bytes // 2 and playing[0].poll() is None:
            time.sleep(0.05)
        daemon = cluster.daemons[1]
        killing = subprocess.run(
            ["pgrep", "-P", str(daemon.pid)], capture_output=True, text=True, check=False
        )
        for pid in [*killing.stdout.split(), str(daemon.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        [(samples, seconds, longest)] = finish(playing)
        origin = (bench.origin.sent() - before) / bench.bytes
        return {"samples": samples, "seconds": seconds, "longest wait": longest, "origin": origin}
    finally:
        cluster.stop()


def peer_rate(bench: Bench) -> dict[str, float]:
    """Measure how fast a node reads shards of the others, beside a plain TCP stream."""
    cluster = Cluster(bench, shared=True, capacity=2 * bench.bytes)
    try:
        bench.counted(cluster, [(1, 0, 1, 1)])
        figures = bench.counted(cluster, [(0, 0, 1, 1)])
        raw = bench.raw_rate()
        rate = figures["peer"] * bench.bytes / figures["seconds"]
        return {"bytes per second": rate, "plain TCP": raw, "ratio": rate / raw}
    finally:
        cluster.stop()


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to measure")
    parser.add_argument("--origin", required=True, help="the test kit's server, forebay-origin")
    parser.add_argument("--shards", type=int, default=32, help="shards of 33 MB")
    parser.add_argument("--directory", default=".", help="a disk for caches and shards")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run as root: network namespaces are made")
    clean()
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=arguments.directory) as name:
        bench = Bench(arguments, Path(name).resolve())
        try:
            figures = {
                "cluster": cold_and_warm(bench, shared=True),
                "control": cold_and_warm(bench, shared=False),
                "killed": killed(bench),
                "peer rate": peer_rate(bench),
            }
        finally:
            bench.server.terminate()
            bench.server.wait()
            clean()
    print(json.dumps(figures, indent=1))
    report = {"machine": machine.describe(Path(arguments.directory)), "data": bench.bytes}
    target = machine.results() / "cluster.json"
    target.write_text(json.dumps(report | figures, indent=1) + "\n")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
