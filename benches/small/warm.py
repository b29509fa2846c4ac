r"""Rate at which `forebay dataset warm` brings small shards from nginx into the cache.

    .venv/bin/python benches/small/warm.py --forebay target/release/forebay --directory /mnt/nvme

Each shard is a file of 2 KiB: a round trip, two synced files and a shared sync of their folder.
Measure a build with full optimisation: most of the time is the daemon's.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
sys.path.insert(0, str(HERE.parents[1] / "cli/bench/contest"))
import machine  # noqa: E402
import nginx  # noqa: E402
import processes  # noqa: E402

PORT = 9912
# A member's header and data, and the end of the archive.
SHARD = 2048
# ext4 searches past inodes that were freed within the last minutes, which takes longer than all
# else: caches of earlier rounds stay until the end.
ROUNDS = 3
# Time for the daemon to start.
PATIENCE = 30


def make_shards(folder: Path, shards: int) -> None:
    """Make shards of one sample."""
    folder.mkdir(parents=True)
    dice = random.Random(1)
    for number in range(shards):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            member = tarfile.TarInfo(f"{number:06d}.txt")
            member.size = 300
            tar.addfile(member, io.BytesIO(dice.randbytes(300)))
        (folder / f"{number:06d}.tar").write_bytes(made.getvalue()[:SHARD].ljust(SHARD, b"\0"))


def warm(forebay: str, folder: Path, shards: int) -> dict[str, float]:
    """Warm an empty cache; returns shards a second, and the daemon's CPU seconds for each."""
    home = Path(tempfile.mkdtemp(prefix="cache-", dir=folder))
    (home / "forebay.toml").write_text(
        f"[daemon]\nsocket = '{home}/d.sock'\nmemory = '1GiB'\n"
        f"[[tier]]\nname = 'nvme'\npath = '{home}/cache'\ncapacity = '1GiB'\n"
        f"[[source]]\nmatch = 'http://127.0.0.1:{PORT}/'\n"
    )
    daemon = subprocess.Popen(
        [forebay, "daemon", "--config", f"{home}/forebay.toml"],
        env={**os.environ, "FOREBAY_LOG": "warn"},
    )
    try:
        until = time.monotonic() + PATIENCE
        while not (home / "d.sock").exists() and time.monotonic() < until:
            time.sleep(0.05)
        urls = f"http://127.0.0.1:{PORT}/data/{{000000..{shards - 1:06d}}}.tar"
        words = ["dataset", "warm", urls, "--wait", "--daemon", f"unix:{home}/d.sock"]
        since = time.monotonic()
        subprocess.run([forebay, *words], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - since
        cpu = processes.cpu_seconds([daemon.pid])
        return {"shards per second": shards / seconds, "CPU ms per shard": cpu / shards * 1000}
    finally:
        daemon.terminate()
        daemon.wait()


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to measure")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--directory", default=".", help="a disk for cache and shards")
    arguments = parser.parse_args()
    forebay = str(Path(arguments.forebay).resolve())
    with tempfile.TemporaryDirectory(prefix="small-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        make_shards(folder / "store" / "data", arguments.shards)
        server = nginx.serve(folder, f"127.0.0.1:{PORT}")
        try:
            rounds = [warm(forebay, folder, arguments.shards) for _ in range(ROUNDS)]
        finally:
            server.terminate()
            server.wait()
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    figures = {"shards": arguments.shards, "bytes each": SHARD, "rounds": rounds, "median": median}
    print(json.dumps(figures, indent=1))
    report = {"machine": machine.describe(Path(arguments.directory))}
    machine.record(report | figures, "small_shards.json")


if __name__ == "__main__":
    main()
