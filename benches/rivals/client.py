"""What a trainer's process itself spends: CPU per sample, and time until its first batch.

    PYTHONPATH=examples .venv/bin/python benches/rivals/client.py [--rounds 5]

Its rule: what the trainer's process spends, all of its threads counted, and not the daemon's; and
against what it would spend anyway: importing torch, or making a `bytes` of each sample's view.
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

import machine
import measure
import stage

import forebay

ROUNDS = 5
# Long enough that the kernel's ticks of CPU do not show.
EPOCHS = 20
# A trainer that plays until its first batch, and the same without a loader.
IMPORT = "import torch"
FIRST_BATCH = """
import torch, forebay, sys
fields = {"image": forebay.Bytes("jpg"), "label": forebay.Bytes("cls")}
with forebay.DataLoader(sys.argv[1:], batch_size=256, fields=fields) as loader:
    next(iter(loader))
"""


def cpu() -> float:
    """Return the CPU seconds that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def per_sample(shards: list[str], *, copy: bool, into_bytes: bool) -> tuple[float, float]:
    """Return CPU seconds per sample of a loader, and of making `bytes` of its views."""
    fields = {"image": forebay.Bytes("jpg", copy=copy), "label": forebay.Bytes("cls", copy=copy)}
    made = 0.0
    with forebay.DataLoader(shards, batch_size=measure.BATCH_SIZE, fields=fields) as loader:
        samples = sum(len(batch["image"]) for batch in loader)
        begin = cpu()
        for _ in range(EPOCHS):
            for batch in loader:
                if into_bytes:
                    before = time.thread_time()
                    for name in ("image", "label"):
                        # As a trainer has them: all of a batch at once.
                        [bytes(view) for view in batch[name]]
                    made += time.thread_time() - before
        spent = cpu() - begin - made
    return spent / (samples * EPOCHS), made / (samples * EPOCHS)


def seconds(code: str, shards: list[str], environment: dict[str, str]) -> float:
    """Return how long a process takes that runs `code`."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", code, *shards], env=environment, check=True)
    return time.monotonic() - begin


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="folder for client.json")
    arguments = parser.parse_args()
    folder = stage.shards(measure.PHOTOS)
    shards = [str(path) for path in sorted((folder / stage.BUCKET).glob("*.tar"))]
    rounds: list[dict[str, float]] = []
    environment = dict(os.environ)
    with stage.private_cache() as cache, stage.private_daemon(environment, cache):
        os.environ.update(environment)
        for number in range(arguments.rounds):
            views, made = per_sample(shards, copy=False, into_bytes=True)
            copies, _ = per_sample(shards, copy=True, into_bytes=False)
            alone = seconds(IMPORT, [], environment)
            first = seconds(FIRST_BATCH, shards, environment)
            rounds.append(
                {
                    "views_us": views * 1e6,
                    "copies_us": copies * 1e6,
                    "bytes_of_views_us": made * 1e6,
                    "import_torch_seconds": alone,
                    "first_batch_seconds": first,
                }
            )
            print(
                f"  round {number + 1}  views {views * 1e6:.2f} us, copies {copies * 1e6:.2f} us,"
                f" bytes(view) {made * 1e6:.2f} us a sample;"
                f" first batch {first:.3f} s, import torch {alone:.3f} s"
            )
    median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    document: dict[str, Any] = {
        "machine": machine.describe(stage.RUN),
        "median": median,
        "copies_to_bytes_of_views": median["copies_us"] / median["bytes_of_views_us"],
        "first_batch_beyond_import_seconds": statistics.median(
            one["first_batch_seconds"] - one["import_torch_seconds"] for one in rounds
        ),
        "rounds": rounds,
    }
    print(
        f"  CPU of a sample, two fields: {median['views_us']:.2f} us as views;"
        f" as bytes {document['copies_to_bytes_of_views']:.2f} of bytes(view)\n"
        f"  first batch {document['first_batch_beyond_import_seconds'] * 1e3:.0f} ms beyond"
        " `import torch`"
    )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "client.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
