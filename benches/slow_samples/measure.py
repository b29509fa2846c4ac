r"""Accelerator time that slow samples cost.

    .venv/bin/python benches/slow_samples/measure.py

A tenth of the samples costs ten times as much as the others, against the same work spread evenly.
The work is decoding of JPEGs, a `map` that waits in thread workers, and one that computes in worker
processes. Each is first played as fast as it goes with the even work; the emulated accelerator then
takes a batch in a twentieth more than that. The figure is the share of an epoch in which it works:
the uneven work's in per cent of the even one's.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

import forebay

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

SAMPLES, BATCH, SHARDS = 960, 16, 8
# Work of a fast sample and of a slow one, in units; every tenth is slow.
FAST, SLOW = 1, 10
EVEN = (9 * FAST + SLOW) / 10
# Seconds of a unit: a call of a service, and a short computation.
WAIT, COMPUTE = 0.002, 0.001
# Pixels of a unit: a thumbnail. Ten of them are a small photo.
PIXELS = 160 * 160
# An accelerator that is just slower than the loader shows every stall.
HEADROOM = 1.05
# Batches of an epoch but the first, whose wait is no part of the loop's speed.
STEPS = SAMPLES // BATCH - 1


def wait(units: bytes) -> int:
    """Wait as long as a sample's units say."""
    time.sleep(float(units) * WAIT)
    return 1


def compute(units: bytes) -> int:
    """Keep a core busy for as long as a sample's units say."""
    until = time.process_time() + float(units) * COMPUTE
    while time.process_time() < until:
        pass
    return 1


def jpeg(units: float) -> bytes:
    """Encode a noisy image of so many units."""
    side = round((units * PIXELS) ** 0.5)
    pixels = numpy.random.default_rng(7).integers(0, 256, (side // 8, side // 8, 3), numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write(folder: Path, *, is_even: bool) -> str:
    """Write shards; returns their pattern."""
    folder.mkdir()
    dice = random.Random(7)
    images = {units: jpeg(units) for units in (FAST, SLOW, EVEN)}
    slow = set(dice.sample(range(SAMPLES), SAMPLES // 10))
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard, SAMPLES, SHARDS):
                units: float = EVEN if is_even else SLOW if number in slow else FAST
                for name, data in (("jpg", images[units]), ("units", str(units).encode())):
                    member = tarfile.TarInfo(f"{number:05}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return f"{folder}/{{0..{SHARDS - 1}}}.tar"


def works(workers: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of a loader for each kind of work."""
    image = forebay.Image("jpg", size=64, dtype="uint8")
    waits, computes = forebay.Bytes("units", map=wait), forebay.Bytes("units", map=compute)
    processes = {"workers": workers, "worker_type": "process"}
    return {
        "decode": {"fields": {"image": image}},
        "map in threads": {"fields": {"units": waits}, "workers": workers},
        "map in processes": {"fields": {"units": computes}} | processes,
    }


@contextmanager
def playing(urls: str, options: dict[str, Any]) -> Iterator[Callable[[float], float]]:
    """Yield a function that plays an epoch with so long steps, and returns its seconds."""
    settings: dict[str, Any] = {
        "batch_size": BATCH,
        "framework": "numpy",
        "shuffle": True,
        "window": SHARDS,
    }
    with forebay.DataLoader(urls, **settings, **options) as loader:

        def play(step: float) -> float:
            batches = iter(loader)
            next(batches)
            since = time.perf_counter()
            for _ in batches:
                time.sleep(step)
            return time.perf_counter() - since

        yield play


def duration(urls: str, options: dict[str, Any], step: float) -> float:
    """Seconds of a warm epoch with so long steps."""
    with playing(urls, options) as play:
        play(0)
        return play(step)


def main() -> None:
    """Measure each kind of work, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", default=".", help="a disk for shards and cache")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--dry-run", action="store_true", help="write no figures")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="slow-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        (folder / "run").mkdir(mode=0o700)
        os.environ |= {
            "XDG_RUNTIME_DIR": f"{folder}/run",
            "FOREBAY_CACHE": f"{folder}/cache",
            "FOREBAY_CAPACITY": "1GiB",
            "FOREBAY_DAEMON": "embedded",
            "FOREBAY_IDLE": "1",
        }
        spread = {
            "even": write(folder / "even", is_even=True),
            "uneven": write(folder / "uneven", is_even=False),
        }
        for work, options in works(arguments.workers).items():
            fastest = [duration(spread["even"], options, 0) for _ in range(3)]
            step = HEADROOM * statistics.median(fastest) / STEPS
            shares: dict[str, list[float]] = {"even": [], "uneven": []}
            for _ in range(arguments.rounds):
                for kind, urls in spread.items():
                    shares[kind].append(STEPS * step / duration(urls, options, step))
            both = zip(shares["uneven"], shares["even"], strict=True)
            low, median, high = statistics.quantiles(
                [100 * uneven / even for uneven, even in both], n=4, method="inclusive"
            )
            report[work] = {"step_seconds": step, "accelerator_share": shares} | {
                "per_cent_of_even": {"low": low, "median": median, "high": high}
            }
            even, uneven = (statistics.median(shares[kind]) for kind in ("even", "uneven"))
            print(f"{work}: accelerator busy {100 * even:.1f} % evenly, {100 * uneven:.1f} % with")
            print(f"  slow samples: {median:.1f} % of it ({low:.1f} to {high:.1f})")
    if not arguments.dry_run:
        about: dict[str, Any] = {"machine": machine.describe(Path(arguments.directory))}
        about |= {"rounds": arguments.rounds, "workers": arguments.workers, "batch": BATCH}
        machine.record(about | {"works": report}, "slow_samples.json")


if __name__ == "__main__":
    main()
