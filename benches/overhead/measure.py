r"""Cost of observation: metrics scraped every second, batches traced, and neither.

    .venv/bin/python benches/overhead/measure.py --forebay .venv/bin/forebay

One daemon, one set of cached shards, and runs of the same job by turns, so that other load on the
machine falls on all of them alike. The job decodes nothing and its steps take no time: only the
daemon and the reading thread work, so a cost cannot hide behind decoding. There are two figures,
samples per second and CPU time per sample of daemon and trainer. Each is a ratio to the unobserved
run of the same turn: the median over the turns, and the quartiles, which show how small a cost the
runs can detect.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402
import photo_sized  # noqa: E402

WATCHED = ("nothing", "metrics", "trace", "both")
# Seconds between two scrapes: fifteen times as often as Prometheus asks by default.
EVERY = 1.0


class Played(NamedTuple):
    """Figures of a run."""

    samples_per_second: float
    cpu_us_per_sample: float


class Scraper(threading.Thread):
    """Scrapes all metrics on the daemon's socket until it is stopped."""

    def __init__(self, path: str) -> None:
        """Take the daemon's socket."""
        super().__init__(daemon=True)
        self.path, self.ended, self.scrapes = path, threading.Event(), 0

    def run(self) -> None:
        """Scrape every second."""
        while not self.ended.wait(EVERY):
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.path)
            connection.request("GET", "/metrics")
            assert len(connection.getresponse().read()) > 1000
            connection.close()
            self.scrapes += 1


def run(forebay: str, folder: Path, arguments: argparse.Namespace, watched: str) -> Played:
    """Play epochs of the warm shards."""
    command = [forebay, "bench", "starvation", photo_sized.urls(folder / "shards")]
    command += ["--raw", "--step", "0", "--batch-size", str(arguments.batch_size)]
    command += ["--epochs", str(arguments.epochs), "--json"]
    command += ["--daemon", f"unix:{folder}/d.sock"]
    if watched in ("trace", "both"):
        command += ["--trace", f"{folder}/trace.json"]
    scraper = Scraper(f"{folder}/d.sock") if watched in ("metrics", "both") else None
    if scraper:
        scraper.start()
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    if scraper:
        scraper.ended.set()
        scraper.join()
        assert scraper.scrapes > 0, "the run is too short to be scraped: more --epochs"
    epochs = json.loads(ended.stdout)["epochs"]
    samples = sum(epoch["samples"] for epoch in epochs)
    wall = sum(epoch["wall_seconds"] for epoch in epochs)
    cpu = sum(epoch["cpu_ms_per_sample"] * epoch["samples"] for epoch in epochs)
    return Played(samples / wall, 1000 * cpu / samples)


def main() -> None:
    """Take turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to measure")
    parser.add_argument("--directory", default=".", help="a disk for shards and cache")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        (folder / "shards").mkdir()
        photo_sized.make(folder / "shards")
        (folder / "forebay.toml").write_text(
            f"[daemon]\nsocket = '{folder}/d.sock'\nmemory = '1GiB'\n"
            f"[[tier]]\nname = 'nvme'\npath = '{folder}/cache'\ncapacity = '2GiB'\n"
            f"[[source]]\nmatch = '{folder}/shards/'\n"
        )
        daemon = subprocess.Popen(
            [arguments.forebay, "daemon", "--config", f"{folder}/forebay.toml"],
            env={**os.environ, "FOREBAY_LOG": "warn"},
        )
        try:
            until = time.monotonic() + 60
            while not (folder / "d.sock").exists() and time.monotonic() < until:
                time.sleep(0.1)
            run(arguments.forebay, folder, arguments, "nothing")
            taken: dict[str, list[Played]] = {watched: [] for watched in WATCHED}
            for turn in range(arguments.rounds):
                for at in range(len(WATCHED)):
                    watched = WATCHED[(turn + at) % len(WATCHED)]
                    taken[watched].append(run(arguments.forebay, folder, arguments, watched))
        finally:
            daemon.terminate()
            daemon.wait()
    settings = ("batch_size", "epochs", "rounds")
    report: dict[str, Any] = {name: getattr(arguments, name) for name in settings}
    report |= {"machine": machine.describe(Path(arguments.directory)), "runs": {}}
    for watched, runs in taken.items():
        print(f"{watched:8}", told(runs, taken["nothing"]))
        report["runs"][watched] = [played._asdict() for played in runs]
    machine.record(report, "overhead.json")


def told(runs: list[Played], alone: list[Played]) -> str:
    """Describe medians and ranges of these runs, and their ratios to the unobserved ones."""
    rates, costs = (
        [[getattr(played, figure) for played in each] for each in (runs, alone)]
        for figure in Played._fields
    )
    return (
        f"{statistics.median(rates[0]):8.0f} samples/s ({min(rates[0]):.0f} to"
        f" {max(rates[0]):.0f}), {ratios(*rates)};  CPU {statistics.median(costs[0]):.1f} us a"
        f" sample, {ratios(*costs)}"
    )


def ratios(ones: list[float], others: list[float]) -> str:
    """Describe the ratio of one to the other, turn by turn: median, and both quartiles."""
    each = [100 * one / other for one, other in zip(ones, others, strict=True)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    return f"{median:.1f} % ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
