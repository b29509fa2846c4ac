r"""Two jobs, a cache of half their data, a link of half their demand: utilisation and cost by
policy.

    python3 benches/link/delay_line.py --rtt-ms 5 --mbit 278 -- \
        .venv/bin/python benches/foresight/measure.py --daemon .venv/bin/forebay

All runs are the same jobs over the same shards on the same link, one after the other: a node daemon
with each eviction policy in turn, and released WebDataset with its shard cache, which the jobs
share and which evicts the shard fetched longest ago. A trainer's step is a pause, so that only data
decides. Bytes are those that the server sent. The first epochs fill the cache and do not count. The
daemon's predicted evictions are recorded then, and compared at the end with its actual ones. The
link needs root.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

# The data: a shard is a small part of the cache, and an epoch takes seconds.
SHARDS, SAMPLES, SAMPLE = 96, 16, 256 << 10
# Batch size and seconds of a step: a batch is a shard's worth.
BATCH, STEP = 16, 0.125
JOBS = 2
# The first fill the cache; the others count.
WARM, COUNTED = 2, 4
# TCP's payload in a packet of 1500 bytes, with time stamps.
PAYLOAD = 1448 / 1500
PORT = 8098
POLICIES = ("clairvoyant", "static", "sieve", "lru")
WEBDATASET = "webdataset-lru"


def make(folder: Path) -> int:
    """Make the shards; return the bytes of all."""
    total = 0
    for number in range(SHARDS):
        path = folder / f"{number:06d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(SAMPLES):
                member = tarfile.TarInfo(f"{number:06d}{sample:06d}.bin")
                member.size = SAMPLE
                tar.addfile(member, io.BytesIO(os.urandom(SAMPLE)))
        total += path.stat().st_size
    return total


class Server:
    """Nginx at the far end of the link, and the bytes it sent."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Start it."""
        namespace, address = (
            os.environ["FOREBAY_LINK_NAMESPACE"],
            os.environ["FOREBAY_LINK_ADDRESS"],
        )
        self.log = root / "access.log"
        self.url = f"http://{address}:{PORT}"
        configuration = root / "nginx.conf"
        configuration.write_text(
            f"daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;\n"
            "events { worker_connections 256; }\n"
            "http { log_format bytes '$body_bytes_sent'; sendfile on;\n"
            f"  access_log {self.log} bytes;\n"
            f"  server {{ listen {address}:{PORT}; root {folder}; }} }}\n"
        )
        command = ["ip", "netns", "exec", namespace, "nginx", "-c", str(configuration)]
        self.process = subprocess.Popen(command)

    def sent(self) -> int:
        """Return the bytes of all bodies so far."""
        return sum(map(int, self.log.read_text().split())) if self.log.exists() else 0

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def batches(loader: str, arguments: argparse.Namespace, epoch: int) -> Any:
    """Return an iterable of an epoch's batches."""
    urls = f"{arguments.url}/{{000000..{SHARDS - 1:06d}}}.tar"
    if loader == "forebay":
        import forebay

        if not hasattr(batches, "loader"):
            batches.loader = forebay.DataLoader(  # type: ignore[attr-defined]
                urls,
                batch_size=BATCH,
                shuffle=True,
                window=1,
                lanes=1,
                seed=arguments.seed,
                manifest=arguments.manifest,
                daemon=f"unix:{arguments.socket}",
                job=f"job-{arguments.seed}",
                rank=0,
                world_size=1,
                framework="numpy",
            )
        return batches.loader  # type: ignore[attr-defined]
    import random

    import webdataset

    class Strict(webdataset.cache.LRUCleanup):  # type: ignore[misc]
        """WebDataset's cache looks at its folder's size every half minute: too seldom for this
        measurement.
        """

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **{**more, "interval": None})

    webdataset.cache.LRUCleanup = Strict
    shards = list(webdataset.shardlists.expand_urls(urls))
    random.Random(arguments.seed * 1000 + epoch).shuffle(shards)
    samples = webdataset.WebDataset(
        shards,
        shardshuffle=False,
        cache_dir=arguments.cache,
        cache_size=arguments.capacity,
        empty_check=False,
    )
    return webdataset.WebLoader(
        samples.to_tuple("bin").batched(BATCH), batch_size=None, num_workers=1, prefetch_factor=4
    )


def train(arguments: argparse.Namespace) -> None:
    """Run one job: print a line at the end of each epoch, with the time and the steps."""
    for epoch in range(WARM + COUNTED):
        steps = 0
        for _ in batches(arguments.loader, arguments, epoch):
            time.sleep(STEP)
            steps += 1
        print(json.dumps({"at": time.monotonic(), "steps": steps}), flush=True)


def jobs(
    server: Server, options: list[str], record: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Run the jobs side by side; return their utilisation and the bytes over the link."""
    command = [sys.executable, __file__, "train", "--url", server.url, *options]
    started = [
        subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(JOBS)
    ]
    try:
        return heard(server, started, record)
    finally:
        for job in started:
            # No effect on a job that has ended.
            job.kill()
            job.wait()


def heard(
    server: Server, started: list[subprocess.Popen[str]], record: Callable[[str], None] | None
) -> dict[str, Any]:
    """Follow the jobs epoch by epoch until they end."""
    marks: list[list[dict[str, float]]] = [[] for _ in started]
    sent = None
    busy = []
    # Lines come epoch by epoch, from all jobs at about the same time.
    for epoch in range(WARM + COUNTED):
        for job, mark in zip(started, marks, strict=True):
            assert job.stdout is not None
            line = job.stdout.readline()
            if not line:
                raise SystemExit("a job failed; see its messages above")
            mark.append(json.loads(line))
        if epoch == WARM - 1:
            sent = server.sent()
            if record is not None:
                record("earlier.json")
        if epoch == WARM + COUNTED - 2 and record is not None:
            record("later.json")
    after = server.sent()
    assert sent is not None
    for job, mark in zip(started, marks, strict=True):
        if job.wait() != 0:
            raise SystemExit("a job failed")
        steps = sum(line["steps"] for line in mark[WARM:])
        busy.append(steps * STEP / (mark[-1]["at"] - mark[WARM - 1]["at"]))
    read = JOBS * COUNTED * SHARDS * SAMPLES * SAMPLE
    return {
        "au_ideal": busy,
        "origin_bytes": after - sent,
        "read_bytes": read,
        "origin_per_read": (after - sent) / read,
    }


def by_forebay(
    policy: str, arguments: argparse.Namespace, server: Server, root: Path, capacity: int
) -> dict[str, Any]:
    """Run the jobs on a node daemon with the eviction policy `policy`."""
    cache, socket = root / policy, root / f"{policy}.sock"
    configuration = root / f"{policy}.toml"
    configuration.write_text(
        f'[daemon]\nsocket = "{socket}"\nmemory = "2GiB"\n'
        f'[[tier]]\nname = "nvme"\npath = "{cache}"\ncapacity = {capacity}\n'
        f'[[source]]\nmatch = "{server.url}/"\n'
        f'[[dataset]]\nname = "all"\nmatch = "{server.url}/**"\nevict = "{policy}"\n'
    )
    log = (root / f"{policy}.log").open("w")
    daemon = subprocess.Popen([arguments.daemon, "daemon", "--config", configuration], stderr=log)
    try:
        while not socket.exists():
            if daemon.poll() is not None:
                raise SystemExit(f"the daemon ended: see {log.name}")
            time.sleep(0.05)
        options = [
            "--loader",
            "forebay",
            "--socket",
            str(socket),
            "--manifest",
            str(root / "manifest.json"),
        ]

        def record(name: str) -> None:
            command = [arguments.daemon, "policy", "record", str(root / name), "--rounds", "5"]
            told = subprocess.run(
                [*command, "--daemon", f"unix:{socket}"],
                capture_output=True,
                text=True,
                check=False,
            )
            if told.returncode != 0:
                print(told.stderr)

        figures = jobs(server, options, record if policy == "clairvoyant" else None)
        if policy == "clairvoyant":
            earlier, later = str(root / "earlier.json"), str(root / "later.json")
            simulate = [arguments.daemon, "policy", "simulate", earlier, "--against", later]
            told = subprocess.run([*simulate, "--json"], capture_output=True, text=True, check=True)
            held = json.loads(told.stdout)
            figures["agreement"] = held["agreement"]
            clairvoyant = next(x for x in held["policies"] if x["policy"] == "clairvoyant")
            figures["simulated_from_there"] = clairvoyant["busy"]
        told = subprocess.run(
            [arguments.daemon, "status", "--json", "--daemon", f"unix:{socket}"],
            capture_output=True,
            text=True,
            check=False,
        )
        figures["daemon_says"] = (
            json.loads(told.stdout)["cache"] if told.returncode == 0 else told.stderr
        )
        return figures
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        shutil.rmtree(cache, ignore_errors=True)


def by_webdataset(server: Server, root: Path, capacity: int) -> dict[str, Any]:
    """Run the jobs on WebDataset with a cache folder that they share."""
    cache = root / "webdataset"
    cache.mkdir()
    try:
        return jobs(
            server, ["--loader", "webdataset", "--cache", str(cache), "--capacity", str(capacity)]
        )
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def simulated(
    arguments: argparse.Namespace, capacity: int, total: int, link: float
) -> list[dict[str, Any]]:
    """Play the same jobs on the simulator."""
    shard = total // SHARDS
    command = [
        arguments.daemon,
        "policy",
        "simulate",
        "--json",
        "--data",
        str(shard * SHARDS),
        "--shard",
        str(shard),
        "--cache",
        str(capacity),
        "--bandwidth",
        f"{int(link * 8)}bit/s",
        "--jobs",
        str(JOBS),
        "--rate",
        f"{int(shard * SAMPLES / BATCH / STEP * BATCH / SAMPLES)}B/s",
        "--epochs",
        str(WARM + COUNTED),
        "--window",
        "1",
        "--lanes",
        "1",
        "--sample",
        str(shard // SAMPLES),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    policies: list[dict[str, Any]] = json.loads(told.stdout)["policies"]
    return policies


def measure(arguments: argparse.Namespace) -> None:
    """Run everything, and write the figures."""
    root = Path(tempfile.mkdtemp(prefix="foresight-", dir=arguments.disk))
    shards = root / "shards"
    shards.mkdir()
    server = None
    try:
        total = make(shards)
        capacity = total // 2
        link = float(os.environ["FOREBAY_LINK_MBIT"]) * 1e6 / 8 * PAYLOAD
        demand = JOBS * BATCH * SAMPLE / STEP
        rates = f"{link / 1e6:.1f} MB/s of {demand / 1e6:.1f} MB/s"
        print(f"{total / 1e6:.0f} MB in {SHARDS} shards; the link brings {rates}")
        server = Server(root, shards)
        names = [f"{server.url}/{number:06d}.tar" for number in range(SHARDS)]
        time.sleep(1)
        # A daemon of its own, which knows nothing of an earlier measurement's shards.
        own = {
            "FOREBAY_DAEMON": "embedded",
            "FOREBAY_CACHE": str(root / "index"),
            "FOREBAY_IDLE": "1",
        }
        environment = {**os.environ, **own, "XDG_RUNTIME_DIR": str(root)}
        subprocess.run(
            [arguments.daemon, "index", *names, "-o", str(root / "manifest.json")],
            check=True,
            env=environment,
        )
        runs: dict[str, Any] = {}
        for policy in [*arguments.policies, *([WEBDATASET] if arguments.webdataset else [])]:
            began = time.monotonic()
            if policy == WEBDATASET:
                runs[policy] = by_webdataset(server, root, capacity)
            else:
                runs[policy] = by_forebay(policy, arguments, server, root, capacity)
            told = runs[policy]
            busy = " ".join(f"{share:.3f}" for share in told["au_ideal"])
            print(
                f"{policy:16} AU_ideal {busy}  origin {told['origin_bytes'] / 1e6:7.0f} MB, "
                f"{told['origin_per_read']:.3f} of what was read "
                f"({time.monotonic() - began:.0f} s) {told.get('agreement', '')}",
                flush=True,
            )
        simulations = simulated(arguments, capacity, total, link)
        figures = {
            "shards": SHARDS,
            "bytes": total,
            "capacity": capacity,
            "link_bytes_per_second": link,
            "demand_bytes_per_second": demand,
            "epochs": COUNTED,
            "runs": runs,
            "simulated": simulations,
        }
        for one in simulations:
            print("simulated", one)
        document = {"machine": machine.describe(root), **figures}
        (machine.results() / "foresight.json").write_text(json.dumps(document, indent=1) + "\n")
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", nargs="?", choices=("measure", "train"), default="measure")
    parser.add_argument("--daemon", default="forebay", help="the program under test")
    parser.add_argument(
        "--disk", default=str(HERE.parent.parent / "target"), help="a folder on a disk"
    )
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--no-webdataset", dest="webdataset", action="store_false")
    for name in ("--loader", "--url", "--socket", "--manifest", "--cache"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--seed", "--capacity"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.verb == "train":
        train(arguments)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
