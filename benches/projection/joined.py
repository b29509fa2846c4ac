r"""Samples a second of two joined sets of shards, beside one set that has both members.

    .venv/bin/python benches/projection/joined.py --disk /mnt/nvme

Photos in one set, captions in another, and both in a third; all in the node's cache. Loaders take
turns within one process, shuffled and in the order of the shards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "parts"), str(HERE.parent / "rivals")]
import machine  # noqa: E402
from projection_data import KIB, SEED, add  # noqa: E402

SHARDS, SAMPLES, BATCH = 8, 500, 64
CAPTION = KIB
# Bytes of a photo: of a small one, for which the cost of a sample counts, and of a usual one.
PHOTOS = {"small photos": 8 * KIB, "photos": 100 * KIB}
ROUNDS, EPOCHS = 9, 4
# Share of one set's rate that a join is to reach.
WANTED = 0.90


def write(folder: Path, photo: int) -> dict[str, list[str]]:
    """Write the three sets; returns their shards."""
    kinds = {"both": ("jpg", "txt"), "photos": ("jpg",), "captions": ("txt",)}
    sizes = {"jpg": photo, "txt": CAPTION}
    shards: dict[str, list[str]] = {kind: [] for kind in kinds}
    for kind, members in kinds.items():
        (folder / kind).mkdir(parents=True)
        for shard in range(SHARDS):
            path = folder / kind / f"{shard:03}.tar"
            shards[kind].append(str(path))
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                    for member in members:
                        add(tar, f"{number:06}.{member}", os.urandom(sizes[member]))
    return shards


def loaders(shards: dict[str, list[str]], shuffle: bool) -> dict[str, Any]:
    """Return the loader of one set, and that of the join."""
    import forebay

    options: dict[str, Any] = {
        "batch_size": BATCH,
        "shuffle": shuffle,
        "seed": SEED,
        "fields": {name: forebay.Bytes(name) for name in ("jpg", "txt")},
        "framework": "numpy",
    }
    join = forebay.Join([shards["photos"], shards["captions"]], on="key")
    return {
        "one": forebay.DataLoader(shards["both"], **options),
        "join": forebay.DataLoader(join, **options),
    }


def rate(loader: Any) -> float:
    """Play epochs; return samples a second."""
    count, since = 0, time.perf_counter()
    for _ in range(EPOCHS):
        for batch in loader:
            count += sum(len(row) > 0 for row in batch["jpg"])
            assert all(len(row) == CAPTION for row in batch["txt"])
    return count / (time.perf_counter() - since)


def measure(folder: Path) -> dict[str, Any]:
    """Return the rates of all rows."""
    rows: dict[str, Any] = {}
    for name, photo in PHOTOS.items():
        shards = write(folder / name.replace(" ", "-"), photo)
        for shuffle in (True, False):
            made = loaders(shards, shuffle)
            rates: dict[str, list[float]] = {kind: [] for kind in made}
            for round_ in range(ROUNDS + 1):
                # Neither is always the first; the first round fills the cache.
                for kind in sorted(made, reverse=bool(round_ % 2)):
                    played = rate(made[kind])
                    rates[kind] += [round(played, 1)] if round_ > 0 else []
            for loader in made.values():
                loader.close()
            pairs = zip(rates["join"], rates["one"], strict=True)
            share = statistics.median(join / one for join, one in pairs)
            row = f"{name}, {'shuffled' if shuffle else 'in order'}"
            rows[row] = {"join_per_one": round(share, 3), "samples_per_s": rates}
            print(f"{row:26} {share:.3f} of one set's rate, wanted {WANTED}", flush=True)
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--disk", default=".", help="a folder on a disk for data and cache")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="joined-", dir=arguments.disk) as name:
        root = Path(name).resolve()
        os.environ |= {"FOREBAY_CACHE": str(root / "cache"), "XDG_RUNTIME_DIR": name}
        os.environ["FOREBAY_IDLE"] = "1"
        report = {"machine": machine.describe(root), "rows": measure(root)}
    machine.record(report, "joined.json")


if __name__ == "__main__":
    main()
