"""Cost in a trainer's process: CPU per sample, and time until the first batch.

    PYTHONPATH=examples:cli/bench/contest .venv/bin/python benches/rivals/client.py [--starts 20]

All threads of the trainer's process count, the daemon's do not. The baseline is what the trainer
spends anyway: importing torch, or making a `bytes` of each sample's view.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import daemons
import machine
import measure
import stage

import forebay

ROUNDS = 5
# Long enough that the kernel's ticks of CPU do not show.
EPOCHS = 20
# Starts of a trainer: enough to see one in twenty that is slow.
STARTS = 20
# A trainer until its first batch; it prints the seconds from the end of torch's import, and those
# from the end of forebay's.
FIRST_BATCH = """
import sys, time, torch
begin = time.monotonic()
import forebay
imported = time.monotonic()
fields = {"image": forebay.Bytes("jpg"), "label": forebay.Bytes("cls")}
loader = forebay.DataLoader(sys.argv[1:], batch_size=256, fields=fields, framework="torch")
next(iter(loader))
now = time.monotonic()
print(now - begin, now - imported)
loader.close()
"""


def cpu() -> float:
    """Return the CPU seconds that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def per_sample(shards: list[str], *, copy: bool) -> float:
    """Return CPU seconds per sample of a loader whose batches are taken and left alone."""
    with forebay.DataLoader(shards, batch_size=measure.BATCH_SIZE, fields=fields(copy)) as loader:
        samples = sum(len(batch["image"]) for batch in loader)
        begin = cpu()
        for _ in range(EPOCHS):
            for _batch in loader:
                pass
        return (cpu() - begin) / (samples * EPOCHS)


def bytes_of_views(shards: list[str]) -> float:
    """Return CPU seconds that `bytes(view)` takes per sample."""
    samples, made = 0, 0.0
    with forebay.DataLoader(shards, batch_size=measure.BATCH_SIZE, fields=fields(False)) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                before = time.thread_time()
                for name in ("image", "label"):
                    # As a trainer has them: all of a batch at once.
                    [bytes(view) for view in batch[name]]
                made += time.thread_time() - before
                samples += len(batch["image"])
    return made / samples


def fields(copy: bool) -> dict[str, forebay.Field]:
    """Return two fields of bytes."""
    return {"image": forebay.Bytes("jpg", copy=copy), "label": forebay.Bytes("cls", copy=copy)}


def first_batch(shards: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds to a process's first batch from each import's end: torch, forebay."""
    command = [sys.executable, "-c", FIRST_BATCH, *shards]
    beyond_torch, beyond_imports = subprocess.check_output(
        command, env=environment, text=True
    ).split()
    return float(beyond_torch), float(beyond_imports)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--out", type=Path, help="folder for client.json")
    arguments = parser.parse_args()
    folder = stage.shards(measure.PHOTOS)
    shards = [str(path) for path in sorted((folder / stage.BUCKET).glob("*.tar"))]
    rounds: list[dict[str, float]] = []
    environment = dict(os.environ)
    with stage.private_cache() as cache, daemons.private_daemon(environment, cache):
        os.environ.update(environment)
        for number in range(arguments.rounds):
            one = {
                "views_us": per_sample(shards, copy=False) * 1e6,
                "copies_us": per_sample(shards, copy=True) * 1e6,
                "bytes_of_views_us": bytes_of_views(shards) * 1e6,
            }
            rounds.append(one)
            print(
                f"  round {number + 1}  views {one['views_us']:.2f} us,"
                f" copies {one['copies_us']:.2f} us,"
                f" bytes(view) {one['bytes_of_views_us']:.2f} us a sample"
            )
        # The first one warms the page cache of the imports.
        starts = [first_batch(shards, environment) for _ in range(arguments.starts + 1)][1:]
    beyond_torch, beyond_imports = (sorted(times) for times in zip(*starts, strict=True))
    median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    document: dict[str, Any] = {
        "machine": machine.describe(stage.RUN),
        "median": median,
        "copies_to_bytes_of_views": median["copies_us"] / median["bytes_of_views_us"],
        "rounds": rounds,
        "first_batch_beyond_torch_seconds": beyond_torch,
        "first_batch_beyond_imports_seconds": beyond_imports,
    }
    slowest = " and ".join(f"{seconds * 1e3:.0f}" for seconds in beyond_imports[-2:])
    print(
        f"  CPU of a sample, two fields: {median['views_us']:.2f} us as views;"
        f" as bytes {document['copies_to_bytes_of_views']:.2f} of bytes(view)\n"
        f"  first batch {statistics.median(beyond_imports) * 1e3:.0f} ms beyond imports,"
        f" {slowest} ms in the slowest of {arguments.starts};"
        f" {statistics.median(beyond_torch) * 1e3:.0f} ms beyond"
        " `import torch`"
    )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "client.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
