r"""Four nodes that share their caches, each in a network namespace behind a link of its own.

    sudo .venv/bin/python benches/cluster/figures.py --forebay .venv/bin/forebay \
        --origin target/release/forebay-origin --directory /mnt/nvme

Real daemons, a store behind a limited link, and a token bucket on every link. Bytes are those that
the kernel counted on the links, less the headers of the packets, and are compared with the daemons'
own metrics. Every figure has a control without `[cluster]` in the same run. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from network import alone
from nodes import Cluster, Job, Site, Size, finish

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402
import nginx  # noqa: E402

NODES = 4
# Rates of the links, in Mbit/s: a node's, and the store's, which all nodes share.
NODE_MBIT, ORIGIN_MBIT = 1000, 400
# Samples as large as photos.
SAMPLES, SAMPLE = 300, 110_000
# Time for which a stopped node, a cut link or a lost Redis stays so, in seconds.
PAUSE = 20
REDIS_PORT = 6379


def counted(cluster: Cluster, what: list[Job]) -> dict[str, float]:
    """Play jobs; returns bytes of the store and between nodes, in sizes of the data set."""
    site = cluster.site
    before = site.origin.sent(), sum(host.sent() for host in site.nodes)
    ended = finish([cluster.play(job) for job in what])
    cluster.settle(sorted({job.node for job in what}))
    origin, nodes = site.origin.sent(), sum(host.sent() for host in site.nodes)
    return {
        "origin": (origin - before[0]) / site.bytes,
        "peer": (nodes - before[1]) / site.bytes,
        "seconds": max(played.seconds for played in ended),
        "samples": sum(played.samples for played in ended),
    }


def raw_rate(site: Site) -> float:
    """Return bytes a second of one plain TCP stream between two nodes."""
    code = (
        "import socket,sys\n"
        "s = socket.create_server((sys.argv[1], 7000)); print('up', flush=True)\n"
        "c, _ = s.accept()\n"
        "for _ in range(256): c.sendall(bytes(1 << 20))\n"
        "c.close()"
    )
    sender = site.nodes[1].command(sys.executable, "-c", code, site.nodes[1].address)
    with subprocess.Popen(sender, stdout=subprocess.PIPE, text=True) as sending:
        assert sending.stdout is not None
        sending.stdout.readline()
        code = (
            "import socket,sys,time\n"
            "c = socket.create_connection((sys.argv[1], 7000)); n = 0; t = time.monotonic()\n"
            "while got := len(c.recv(1 << 20)): n += got\n"
            "print(n / (time.monotonic() - t))"
        )
        taker = site.nodes[0].command(sys.executable, "-c", code, site.nodes[1].address)
        told = subprocess.run(taker, check=True, capture_output=True, text=True)
    return float(told.stdout)


def ranks(seed: int) -> list[Job]:
    """One job with a rank on each node."""
    return [Job(number, number, NODES, seed) for number in range(NODES)]


def jobs(*seeds: int) -> list[Job]:
    """A job of its own on each node."""
    return [Job(number, 0, 1, seed) for number, seed in enumerate(seeds)]


def cold_and_warm(site: Site, *, shared: bool) -> dict[str, object]:
    """Measure cold and warm epochs, with caches that hold half of the data each."""
    figures: dict[str, object] = {}
    # A node holds half of the data, and a shard on its way.
    capacity = site.bytes // 2 + site.bytes // site.size.shards
    cluster = Cluster(site, shared=shared, capacity=capacity)
    try:
        figures["one job, cold"] = counted(cluster, ranks(1))
        written = sum(cluster.status(node)["cache"]["written_bytes"] for node in range(NODES))
        figures["one job, warm"] = counted(cluster, ranks(2))
        after = sum(cluster.status(node)["cache"]["written_bytes"] for node in range(NODES))
        figures["written, warm"] = (after - written) / site.bytes
    finally:
        cluster.stop()
    for name, seeds in (("equal orders", (1, 1, 1, 1)), ("different orders", (1, 2, 3, 4))):
        cluster = Cluster(site, shared=shared, capacity=2 * site.bytes)
        try:
            figures[f"four jobs, {name}, cold"] = counted(cluster, jobs(*seeds))
        finally:
            cluster.stop()
    return figures


def slices(site: Site) -> dict[str, float]:
    """Measure 64 ranks that each read a slice of their own, 16 on a node, warm.

    A node needs (N - 1) / N of its ranks' samples from others.
    """
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    try:
        counted(cluster, ranks(1))
        world = [Job(rank % NODES, rank, 64, 2) for rank in range(64)]
        total = {"origin": 0.0, "peer": 0.0, "samples": 0.0}
        # As many processes at once as two cores bear.
        for first in range(0, len(world), 8):
            part = counted(cluster, world[first : first + 8])
            total = {name: total[name] + part[name] for name in total}
        useful = (NODES - 1) / NODES
        return {**total, "useful": useful, "ratio": total["peer"] / useful}
    finally:
        cluster.stop()


def struck(
    site: Site, strike: Callable[[Cluster], None], mend: Callable[[Cluster], None] | None = None
) -> dict[str, object]:
    """Measure a cold epoch of a job on node 0, struck in its middle by bytes of the store."""
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    try:
        before = site.origin.sent()
        playing = cluster.play(Job(0, 0, 1, 1))
        while site.origin.sent() - before < site.bytes // 2 and playing.poll() is None:
            time.sleep(0.05)
        strike(cluster)
        [played] = finish([playing])
        if mend:
            mend(cluster)
        origin = (site.origin.sent() - before) / site.bytes
        return {**played._asdict(), "origin": origin}
    finally:
        cluster.stop()


def failures(site: Site) -> dict[str, object]:
    """Measure a node that is killed or stops, and a link that is cut."""
    return {
        "SIGKILL": struck(site, lambda cluster: cluster.signal(1, signal.SIGKILL)),
        "SIGSTOP": struck(
            site,
            lambda cluster: cluster.signal(1, signal.SIGSTOP),
            lambda cluster: cluster.signal(1, signal.SIGCONT),
        ),
        "link down": struck(site, lambda _: site.nodes[1].cut(), lambda _: site.nodes[1].mend()),
    }


def second_copies(site: Site) -> dict[str, object]:
    """Measure an epoch after the loss of a node, where each shard has two copies."""
    more = f"[[dataset]]\nname = 'photos'\nmatch = '{site.store}/**'\ncopies = 2\n"
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes, more=more)
    try:
        cold = counted(cluster, ranks(1))
        cluster.settle(list(range(NODES)))
        cluster.signal(3, signal.SIGKILL)
        lost = counted(cluster, [Job(number, number, 3, 2) for number in range(3)])
        return {"cold": cold, "one node lost": lost}
    finally:
        cluster.stop()


def split(site: Site) -> dict[str, object]:
    """Measure a cold epoch of two jobs while nodes 0 and 1 do not reach 2 and 3, then whole."""
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    sides = [(here, there) for here in site.nodes[:2] for there in site.nodes[2:]]
    try:
        for here, there in sides:
            here.part_from(there)
        try:
            apart = counted(cluster, [Job(0, 0, 1, 1), Job(2, 0, 1, 1)])
        finally:
            for here, there in sides:
                here.rejoin(there)
        # Nodes are left alone for half a minute at the most.
        time.sleep(30)
        return {"split": apart, "healed": counted(cluster, ranks(2))}
    finally:
        cluster.stop()


def lost_redis(site: Site) -> dict[str, object]:
    """Measure an epoch while the Redis that keeps the list is away, and the list afterwards."""
    host = site.origin
    command = ["redis-server", "--bind", host.address, "--port", str(REDIS_PORT), "--save", ""]
    command += ["--protected-mode", "no", "--loglevel", "warning"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(host.command(*command))

    def listed(cluster: Cluster, node: int) -> int:
        return len(cluster.status(node)["cluster"]["members"])

    redis = start()
    members = f"{{ redis = 'redis://{host.address}:{REDIS_PORT}' }}"
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes, members=members)
    try:
        until = time.monotonic() + PAUSE
        while any(listed(cluster, node) < NODES for node in range(NODES)):
            if time.monotonic() > until:
                raise SystemExit("the nodes do not find each other")
            time.sleep(0.2)
        redis.kill()
        redis.wait()
        time.sleep(PAUSE)
        away = counted(cluster, ranks(1))
        kept = [listed(cluster, node) for node in range(NODES)]
        redis = start()
        time.sleep(PAUSE)
        back = [listed(cluster, node) for node in range(NODES)]
        return {"away": away, "members while away": kept, "members once back": back}
    finally:
        cluster.stop()
        redis.kill()
        redis.wait()


def upgraded(site: Site) -> dict[str, object]:
    """Measure a job on node 0 while the other nodes are stopped and started, one by one."""
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    try:
        before = site.origin.sent()
        playing = cluster.play(Job(0, 0, 1, 1))
        for number in range(1, NODES):
            cluster.signal(number, signal.SIGTERM)
            cluster.daemons[number].wait()
            cluster.start(number)
            cluster.wait_up([number])
        [played] = finish([playing])
        return {**played._asdict(), "origin": (site.origin.sent() - before) / site.bytes}
    finally:
        cluster.stop()


def askers(site: Site) -> dict[str, float]:
    """Measure one node, then three at once, that read all data from node 0's cache."""
    members = site.folder / "members"
    text = members.read_text()
    # Node 0 owns all; the others ask.
    members.write_text(text.splitlines()[0] + "\n")
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    try:
        counted(cluster, [Job(0, 0, 1, 1)])
        members.write_text(text)
        return {
            "one": counted(cluster, [Job(1, 0, 1, 2)])["seconds"],
            "three": counted(cluster, [Job(n, 0, 1, 2) for n in (1, 2, 3)])["seconds"],
        }
    finally:
        members.write_text(text)
        cluster.stop()


def peer_rate(site: Site) -> dict[str, float]:
    """Measure how fast a node reads shards of the others, beside a plain TCP stream."""
    cluster = Cluster(site, shared=True, capacity=2 * site.bytes)
    try:
        counted(cluster, [Job(1, 0, 1, 1)])
        cluster.settle(list(range(NODES)))
        spent = [cluster.cpu(node) for node in range(NODES)]
        figures = counted(cluster, [Job(0, 0, 1, 1)])
        spent = [cluster.cpu(node) - before for node, before in enumerate(spent)]
        raw = raw_rate(site)
        moved = figures["peer"] * site.bytes
        rate = moved / figures["seconds"]
        return {
            "bytes per second": rate,
            "plain TCP": raw,
            "ratio": rate / raw,
            "CPU of owners, s/GB": sum(spent[1:]) / moved * 1e9,
            "CPU of the asker, s/GB": spent[0] / moved * 1e9,
            **served_by_nginx(site),
        }
    finally:
        cluster.stop()


def served_by_nginx(site: Site) -> dict[str, float]:
    """Measure the CPU of nginx and of curl for the same shards over TLS."""
    host, folder = site.nodes[1], site.folder
    tls = f"ssl_certificate {folder}/node1.pem; ssl_certificate_key {folder}/node1.key;"
    listen, inside = f"{host.address}:9443 ssl", tuple(host.command())
    server = nginx.serve(folder, listen, inside=inside, more=f"{tls} ssl_protocols TLSv1.3;")
    time.sleep(1)
    urls = []
    for shard in range(site.size.shards):
        urls += ["-o", "/dev/null", f"https://{host.address}:9443/data/{shard:03d}.tar"]
    try:
        before = os.times()
        subprocess.run(site.nodes[0].command("curl", "-sSfk", *urls), check=True)
        after = os.times()
    finally:
        server.terminate()
        server.wait()
    asked = after.children_user + after.children_system
    asked -= before.children_user + before.children_system
    ended = os.times()
    served = ended.children_user + ended.children_system
    served -= after.children_user + after.children_system
    return {
        "CPU of nginx, s/GB": served / site.bytes * 1e9,
        "CPU of curl, s/GB": asked / site.bytes * 1e9,
    }


CASES: dict[str, Callable[[Site], object]] = {
    "cluster": lambda site: cold_and_warm(site, shared=True),
    "control": lambda site: cold_and_warm(site, shared=False),
    "slices of 64 ranks": slices,
    "failures": failures,
    "copies = 2": second_copies,
    "netsplit": split,
    "redis away": lost_redis,
    "rolling upgrade": upgraded,
    "askers of one node": askers,
    "peer rate": peer_rate,
}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to measure")
    parser.add_argument("--origin", required=True, help="the test kit's server, forebay-origin")
    parser.add_argument("--shards", type=int, default=32, help="shards of 33 MB")
    parser.add_argument("--directory", default=".", help="a disk for caches and shards")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="CASE")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run as root: network namespaces are made")
    target = machine.results() / "cluster.json"
    figures: dict[str, object] = json.loads(target.read_text()) if target.exists() else {}
    figures["machine"] = machine.describe(Path(arguments.directory))
    folder = tempfile.TemporaryDirectory(prefix="nodes-", dir=arguments.directory)
    with alone(NODES), folder as name:
        binaries = (arguments.forebay, arguments.origin)
        size = Size(arguments.shards, SAMPLES, SAMPLE)
        site = Site(Path(name).resolve(), binaries, size, [NODE_MBIT] * NODES, ORIGIN_MBIT)
        figures["data"] = site.bytes
        try:
            for case in arguments.only:
                figures[case] = CASES[case](site)
                print(json.dumps({case: figures[case]}, indent=1), flush=True)
                target.write_text(json.dumps(figures, indent=1) + "\n")
        finally:
            site.stop()
    print(f"written to {target}")


if __name__ == "__main__":
    main()
