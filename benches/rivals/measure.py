"""The harness: the same shards through every contender, in turns, and the ratio of the medians.

    PYTHONPATH=examples:cli/bench/contest .venv/bin/python benches/rivals/measure.py [--mode raw]

Nothing is counted that was not the same work. Contenders must deliver the same samples,
all run on the same CPUs, each in processes of its own, in an order that turns round every round;
the daemon's CPU and memory are Forebay's. Of raw bytes a checksum is taken, by all, two ways:

- `memory`: the data lie in memory, the rivals' in the page cache and Forebay's in a tier of memory;
- `raw`: there are more of them than the memory that any side may use, its page cache included;
  Forebay reads its cache on the disk by O_DIRECT.

Needs root, for that limit. DALI takes part if `--dali` names a Python that has it, SPDL in `images`
if `--spdl` does.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import conversions
import daemons
import disk
import machine
import stage
from contender import Task
from fence import Unfenced, fence
from place import out_of_page_cache
from players import player

CONTEST = Path(__file__).resolve().parents[2] / "cli/bench/contest"
# Members of a photo's sample in these shards.
FIELDS = ["jpg", "cls"]
BATCH_SIZE = 256
PHOTOS = 2048
# Shards go by so quickly that a data set of this many copies is needed to time them: an epoch's
# first batch is waited for as no other. More of them are more than the memory anybody may use.
COPIES = {"memory": 6, "raw": 16, "images": 4}
# Memory limit of all processes of a side together, the page cache included.
LIMIT = {"memory": 8 << 30, "raw": 2 << 30}
# Images' means over random crops of thousands of photos differ by less than this.
MEAN_TOLERANCE = 0.03
MIB = 1 << 20
# Folder of a private daemon, as its status names it.
OF_THIS_MACHINE = re.compile(r"/[^\s\"]*/forebay-run-\w+/")
# Documented memory above slab, frames and batches.
MEMORY_ALLOWANCE = 200 * MIB
# Batches kept ready by default, and those being decoded and in use.
PREFETCH, IN_USE = 4, 2
FLOAT32_IMAGE_BYTES = 3 * 224 * 224 * 4


@dataclass(frozen=True)
class Contender:
    """One way to load."""

    name: str
    kind: str | Path
    configuration: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable

    @property
    def is_forebay(self) -> bool:
        """Return True if a daemon works for it."""
        return self.kind == "forebay"


RAW = [
    Contender("webdataset, no workers", "webdataset", {"workers": 0}),
    Contender("webdataset, 1 worker", "webdataset", {"workers": 1}),
    Contender("webdataset, 2 workers", "webdataset", {"workers": 2}),
    Contender("forebay, views", "forebay", {"bytes": "views"}),
    Contender("forebay, copies", "forebay", {"bytes": "copies"}),
]
# Decoding workers: one per core.
WORKERS = 2
# The trainer's own work, which bounds all others.
BOUND = Contender("the trainer alone", Path(__file__).with_name("through_memory.py"))
CONTENDERS = {
    "memory": [*RAW, BOUND],
    "raw": RAW,
    "images": [
        Contender("webdataset, pillow", "webdataset", {"workers": WORKERS, "decode": "pillow"}),
        Contender(
            "webdataset, torchvision", "webdataset", {"workers": WORKERS, "decode": "torchvision"}
        ),
        Contender("forebay", "forebay"),
    ],
}
# Long enough to time the fastest contender for some seconds.
EPOCHS = {"memory": 10, "raw": 2, "images": 1}
# Configuration of a node's daemon with one tier, in memory.
IN_MEMORY = """
[daemon]
memory = "4GiB"

[[tier]]
name = "ram"
class = "memory"
capacity = "3GiB"
"""


def copies(folder: Path, count: int) -> list[str]:
    """Return `count` copies of each shard of `folder`, under names of their own."""
    place = folder / "copies"
    place.mkdir(exist_ok=True)
    shards = []
    for shard in sorted((folder / stage.BUCKET).glob("*.tar")):
        for number in range(count):
            copy = place / f"{shard.stem}-{number}.tar"
            if not copy.exists() or copy.stat().st_size != shard.stat().st_size:
                copy.write_bytes(shard.read_bytes())
            shards.append(str(copy))
    return shards


def play(
    contender: Contender, mode: str, shards: list[str], cache: Path, before: Callable[[], None]
) -> dict[str, Any]:
    """Run one contender once and return its figures."""
    environment = dict(os.environ)
    if mode == "raw" and not contender.is_forebay:
        # Pages that others read would cost a rival nothing.
        out_of_page_cache(shards)
    task = Task(
        images=mode == "images",
        fields=FIELDS,
        shards=shards,
        batch_size=BATCH_SIZE,
        configuration=contender.configuration,
        source=indexes(contender, shards),
        crc="isal",
        # The rival finds them in memory.
        preread=[] if mode == "raw" or contender.is_forebay else shards,
    )
    with ExitStack() as stack:
        if contender.is_forebay:
            stack.enter_context(
                daemons.node_daemon(environment, IN_MEMORY, before)
                if mode == "memory"
                else daemons.private_daemon(environment, cache)
            )
        one = stack.enter_context(
            player(contender.name, contender.kind, contender.python, task, environment, before)
        )
        result = one.play("throughput", epochs=EPOCHS[mode])
        if contender.is_forebay:
            result["after"]["daemon"] = described(environment)
            check_warm(result, mode)
    return result


def indexes(contender: Contender, shards: list[str]) -> str | None:
    """Return DALI's index files of `shards`, whose making is not timed here."""
    if contender.kind != "dali":
        return None
    made = conversions.convert(
        "dali", contender.python, "", shards, FIELDS, stage.RUN, daemons.FOREBAY
    )
    return made.folder


def described(environment: dict[str, str]) -> dict[str, Any]:
    """Return the daemon's status without this checkout's path."""
    daemon = daemons.status(environment)
    if daemon is None:
        raise RuntimeError("the daemon has ended")
    for tier in daemon["tiers"]:
        # One in memory has none.
        tier.pop("path", None)
    return daemon


def check_warm(result: dict[str, Any], mode: str) -> None:
    """Check that every byte of Forebay's timed epochs came from its cache."""
    before, after = result["before"]["loader"]["bytes"], result["after"]["loader"]["bytes"]
    if after["origin"] != before["origin"]:
        sys.exit("forebay took bytes from the origin in an epoch that should be warm")
    read = after["tier"] - before["tier"]
    if mode != "images" and read < result["digest"]["payload_bytes"] * EPOCHS[mode]:
        sys.exit(f"forebay delivered more than the {read} bytes that it read from its cache")


def check_same_work(rounds: list[dict[str, Any]]) -> None:
    """Check that all contenders delivered the same samples."""
    first = rounds[0]["digest"]
    for result in rounds[1:]:
        digest = result["digest"]
        for name in ("samples", "payload_bytes", "crc_sum", "label_sum"):
            if digest[name] != first[name]:
                sys.exit(f"{result['contender']}: {name} is {digest[name]}, not {first[name]}")
        if abs(digest["image_mean"] - first["image_mean"]) > MEAN_TOLERANCE:
            sys.exit(f"{result['contender']}: its images are not the others' images")


def memory(result: dict[str, Any], imports_bytes: int, mode: str) -> dict[str, Any]:
    """Compare Forebay's peak memory, above its imports, with the documented limit."""
    daemon = result["after"]["daemon"]
    batch = BATCH_SIZE * FLOAT32_IMAGE_BYTES if mode == "images" else 0
    slab, frames = daemon["slab_bytes"], daemon["frames"]["bytes"]
    return {
        "imports_bytes": imports_bytes,
        "peak_rss_client_bytes": result["peak_rss_bytes"][0],
        "peak_rss_daemon_bytes": result["peak_rss_bytes"][1],
        "peak_pss_bytes": result["peak_pss_bytes"],
        "slab_bytes": slab,
        "frames_bytes": frames,
        "promised_bytes": slab + frames + (PREFETCH + IN_USE) * batch + MEMORY_ALLOWANCE,
        # The slab's pages are resident in both processes and counted once, with the daemon's.
        "used_bytes": sum(result["peak_rss_bytes"][:2]) - result["shared_bytes"] - imports_bytes,
    }


@functools.cache
def imports_bytes() -> int:
    """Return the peak memory of a process that only runs the imports of Forebay's contender."""
    code = (
        "import contender, forebay, numpy, torch, os, processes;"
        "print(processes.memory_bytes(os.getpid(), 'status', 'VmHWM'))"
    )
    return int(subprocess.check_output([sys.executable, "-c", code], cwd=CONTEST))


def summary(rounds: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each contender's median, range and CPU."""
    names = dict.fromkeys(result["contender"] for result in rounds)
    table = {}
    for name in names:
        own = [result for result in rounds if result["contender"] == name]
        rates = [result["samples"] / result["seconds"] for result in own]
        epochs = own[0]["samples"] / own[0]["digest"]["samples"]
        payload = own[0]["digest"]["payload_bytes"] * epochs
        table[name] = {
            "samples_per_second": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "bytes_per_second": statistics.median(payload / result["seconds"] for result in own),
            "cpu_ms_per_sample": statistics.median(
                result["cpu_seconds"] * 1e3 / result["samples"] for result in own
            ),
        }
    return table


def measure(
    mode: str,
    contenders: list[Contender],
    shards: list[str],
    rounds: int,
    before: Callable[[], None],
) -> Iterator[dict[str, Any]]:
    """Run every contender of `mode` `rounds` times; after each round, yield the figures so far."""
    results: list[dict[str, Any]] = []
    fio_rates: dict[str, list[float]] = {}
    with stage.private_cache() as cache:
        for number in range(rounds):
            order = contenders if number % 2 == 0 else contenders[::-1]
            for contender in order:
                result = play(contender, mode, shards, cache, before)
                results.append({"round": number, "contender": contender.name, **result})
                rate = result["samples"] / result["seconds"]
                print(f"  round {number + 1}  {contender.name:26} {rate:8,.0f} samples/s")
            if mode == "raw":
                digest = results[-1]["digest"]
                for size in (digest["payload_bytes"] // digest["samples"], MIB):
                    name, rate = disk.fio(cache, size)
                    fio_rates.setdefault(name, []).append(rate)
                    print(f"  round {number + 1}  {name:26} {rate / 1e9:8.3f} GB/s")
            check_same_work(results)
            yield figures(mode, results, fio_rates)


def figures(
    mode: str, results: list[dict[str, Any]], fio_rates: dict[str, list[float]]
) -> dict[str, Any]:
    """Return the figures of the rounds so far."""
    table = summary(results)
    best = {
        rival: max(
            row["samples_per_second"] for name, row in table.items() if name.startswith(rival)
        )
        for rival in dict.fromkeys(name.partition(",")[0] for name in table)
        if rival != "forebay"
    }
    ours = {name: row for name, row in table.items() if name.startswith("forebay")}
    last = [result for result in results if result["contender"].startswith("forebay")][-1]
    return {
        "mode": mode,
        "batch_size": BATCH_SIZE,
        "machine": machine.describe(stage.RUN),
        "table": table,
        "limit_bytes": LIMIT.get(mode),
        # Memory is compared with memory; from the disk, Forebay's O_DIRECT stands beside the
        # rivals' page cache.
        "ratio": {
            name: {rival: row["samples_per_second"] / rate for rival, rate in best.items()}
            for name, row in ours.items()
            if mode == "memory"
        },
        "fio_bytes_per_second": {
            name: statistics.median(rates) for name, rates in fio_rates.items()
        },
        "fio_rounds_bytes_per_second": fio_rates,
        # A tier in memory is not part of the memory limit.
        "memory": None if mode == "memory" else memory(last, imports_bytes(), mode),
        "rounds": results,
    }


def show(document: dict[str, Any]) -> None:
    """Print a document's figures for people."""
    print(f"\n{document['mode']}, batch {document['batch_size']}, medians (lowest to highest)")
    for name, row in document["table"].items():
        print(
            f"  {name:26} {row['samples_per_second']:8,.0f} samples/s"
            f"  ({row['lowest']:,.0f} to {row['highest']:,.0f})"
            + (f"  {row['bytes_per_second'] / 1e9:6.3f} GB/s" if row["bytes_per_second"] else "")
            + f"  CPU {row['cpu_ms_per_sample']:.3f} ms/sample"
        )
    for name, ratios in document["ratio"].items():
        for rival, ratio in ratios.items():
            print(f"  {name} / {rival} at its best: {ratio:.2f}x")
    for fio, rate in document["fio_bytes_per_second"].items():
        for name, row in document["table"].items():
            if not name.startswith("forebay"):
                continue
            share = row["bytes_per_second"] / rate
            print(f"  {name} / {fio} ({rate / 1e9:.3f} GB/s): {share:.0%}")
    if used := document["memory"]:
        print(
            f"  forebay's peak memory above its imports: {used['used_bytes'] / MIB:,.0f} MiB"
            f" of {used['promised_bytes'] / MIB:,.0f} MiB promised"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=("memory", "raw", "images", "all"), default="all")
    parser.add_argument("--photos", type=int, default=PHOTOS)
    parser.add_argument(
        "--dali", metavar="PYTHON", help="a Python that has nvidia-dali, NumPy and isal"
    )
    parser.add_argument(
        "--spdl", metavar="PYTHON", help="a Python that has spdl, NumPy and isal, beside FFmpeg"
    )
    parser.add_argument("--out", type=Path, help="folder for rivals-MODE.json")
    arguments = parser.parse_args()
    folder = stage.shards(arguments.photos)
    for mode in CONTENDERS if arguments.mode == "all" else (arguments.mode,):
        if mode in LIMIT and os.geteuid() != 0:
            print(f"{mode}: not measured: only root can limit memory")
            continue
        if mode == "raw" and shutil.which("fio") is None:
            raise SystemExit("raw reads are compared with fio, which is not installed")
        print(f"{mode}: {arguments.rounds} rounds on CPUs {sorted(os.sched_getaffinity(0))}")
        contenders = list(CONTENDERS[mode])
        if arguments.dali:
            contenders.append(Contender("dali", "dali", {"threads": WORKERS}, arguments.dali))
        if arguments.spdl and mode == "images":
            contenders.append(Contender("spdl", "spdl", {"threads": WORKERS}, arguments.spdl))
        shards = copies(folder, COPIES[mode])
        target = arguments.out and arguments.out / f"rivals-{mode}.json"
        with ExitStack() as stack:
            try:
                before = stack.enter_context(fence(LIMIT[mode])) if mode in LIMIT else lambda: None
            except Unfenced as error:
                raise SystemExit(str(error)) from error
            for document in measure(mode, contenders, shards, arguments.rounds, before):
                if target:
                    # A failure of a later round does not lose this one.
                    target.parent.mkdir(parents=True, exist_ok=True)
                    # No path of this machine is in what is published.
                    text = OF_THIS_MACHINE.sub("", json.dumps(document, indent=1))
                    target.write_text(text + "\n")
        show(document)
        if target:
            print(f"  written to {target}")


if __name__ == "__main__":
    main()
