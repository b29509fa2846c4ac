r"""Padding, balance and rate of batches by tokens, beside torch's loader with batches by count.

    .venv/bin/python benches/tokens/measure.py --directory /mnt/nvme

Documents have log-normal lengths, as text does. Forebay pads or packs 65,536 tokens for each of
eight ranks; torch's loader pads batches of as many samples as have 65,536 tokens on average. A step
takes as long as its fullest rank, so the share of the ranks' time that goes into tokens is all
tokens divided by the ranks times the sum of the fullest rank of each step.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import forebay
from forebay import _native
from forebay._launch import command

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

BUDGET = 65_536
WORLD = 8
SHARDS = 32
# Half of the documents are below a thousand tokens; one in forty has more than seven times as many.
MEDIAN, SIGMA, LONGEST = 1000, 1.0, 32_768
SEED = 1
# Workers of torch's loader: the cores of a small machine.
WORKERS = 2
# The first epoch fills the cache and is not timed.
ROUNDS = 3

# Of one step, tokens and cells (tokens with padding) of each rank.
Step = list[tuple[int, int]]


def lengths(documents: int) -> list[int]:
    """Return log-normal lengths in tokens."""
    dice = random.Random(SEED)
    mu = np.log(MEDIAN)
    return [min(LONGEST, max(1, round(dice.lognormvariate(mu, SIGMA)))) for _ in range(documents)]


def make_shards(folder: Path, tokens: list[int]) -> list[str]:
    """Write documents of uint16 tokens, an equal number in each shard."""
    each = -(-len(tokens) // SHARDS)
    urls = []
    for shard in range(SHARDS):
        path = folder / f"{shard:03d}.tar"
        with tarfile.open(path, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for number, length in enumerate(tokens[shard * each : (shard + 1) * each]):
                member = tarfile.TarInfo(f"{shard:03d}-{number:06d}.bin")
                member.size = 2 * length
                data = np.arange(length, dtype="uint16").tobytes()
                tar.addfile(member, io.BytesIO(data))
        urls.append(str(path))
    return urls


def loader(urls: list[str], manifest: Path, rank: int, pack: bool) -> forebay.DataLoader:
    """Return the loader of a rank."""
    return forebay.DataLoader(
        urls,
        fields={"tokens": forebay.Npy("bin", dtype="uint16", shape=(-1,))},
        batch_by=forebay.Tokens("tokens", budget=BUDGET),
        pack=pack,
        shuffle=True,
        seed=SEED,
        manifest=manifest,
        rank=rank,
        world_size=WORLD,
        framework="torch",
        device="cpu",
    )


def sizes(batches: Iterator[Any]) -> Iterator[tuple[int, int]]:
    """Yield tokens and cells of each batch."""
    for batch in batches:
        valid = batch["__valid__"]
        tokens = int(batch["tokens_len"][valid].sum())
        yield tokens, batch["tokens"].numel()


def forebay_steps(urls: list[str], manifest: Path, pack: bool) -> tuple[list[Step], list[float]]:
    """Return the steps of all ranks, and rank 0's tokens a second in each timed epoch."""
    ranks = []
    for rank in range(WORLD):
        with loader(urls, manifest, rank, pack) as part:
            ranks.append(list(sizes(iter(part))))
    rates = []
    with loader(urls, manifest, 0, pack) as part:
        for epoch in range(ROUNDS + 1):
            part.set_epoch(epoch)
            since = time.perf_counter()
            tokens = sum(tokens for tokens, _ in sizes(iter(part)))
            rates.append(tokens / (time.perf_counter() - since))
    return [list(step) for step in zip(*ranks, strict=True)], rates[1:]


class Documents(torch.utils.data.Dataset[torch.Tensor]):
    """The same documents in memory: torch's loader reads no store, and no tar."""

    def __init__(self, tokens: list[int]) -> None:
        self._arrays = [
            torch.from_numpy(np.arange(n, dtype="uint16").view("int16")) for n in tokens
        ]

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._arrays[number]


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return rows padded to the longest, and their tokens."""
    made = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return made, sum(len(row) for row in rows)


def torch_steps(tokens: list[int]) -> tuple[list[Step], list[float]]:
    """Return the steps of torch's loader with batches by count, and rank 0's tokens a second."""
    data, count = Documents(tokens), round(BUDGET / statistics.mean(tokens))
    ranks, rates = [], []
    for rank in range(WORLD):
        sampler: Any = torch.utils.data.DistributedSampler(data, WORLD, rank, seed=SEED)
        part = torch.utils.data.DataLoader(
            data, count, sampler=sampler, collate_fn=padded, num_workers=WORKERS
        )
        rounds = ROUNDS if rank == 0 else 1
        for _ in range(rounds):
            since = time.perf_counter()
            batches = [(real, made.numel()) for made, real in part]
            rate = sum(real for real, _ in batches) / (time.perf_counter() - since)
            rates += [rate] if rank == 0 else []
        ranks.append(batches)
    return [list(step) for step in zip(*ranks, strict=True)], rates


def figures(steps: list[Step], rates: list[float]) -> dict[str, float]:
    """Return what the steps say about padding and balance."""
    real = sum(tokens for step in steps for tokens, _ in step)
    cells = sum(cells for step in steps for _, cells in step)
    fullest = sum(max(cells for _, cells in step) for step in steps)
    # The last step may have fewer batches than ranks.
    spread = [max(c for _, c in step) / min(c for _, c in step) - 1 for step in steps[:-1]]
    totals = [sum(tokens for tokens, _ in rank) for rank in zip(*steps, strict=True)]
    return {
        "steps": len(steps),
        "padding_percent": round(100 * (1 - real / cells), 2),
        "budget_filled_percent": round(100 * cells / (len(steps) * WORLD * BUDGET), 2),
        "median_spread_percent": round(100 * statistics.median(spread), 2),
        "steps_beyond_5_percent": sum(each > 0.05 for each in spread),
        "spread_of_ranks_totals_percent": round(100 * (max(totals) / min(totals) - 1), 2),
        "largest_batch_cells": max(cells for step in steps for _, cells in step),
        "ranks_time_in_tokens_percent": round(100 * real / (WORLD * fullest), 2),
        "rank_0_million_tokens_per_s": round(statistics.median(rates) / 1e6, 2),
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=80_000)
    parser.add_argument("--directory", default=".", help="a disk for cache and shards")
    arguments = parser.parse_args()
    tokens = lengths(arguments.documents)
    with tempfile.TemporaryDirectory(prefix="tokens-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        os.environ.setdefault("FOREBAY_CACHE", str(folder / "cache"))
        urls = make_shards(folder, tokens)
        manifest = folder / "m.json"
        words = ["index", *urls, "-o", str(manifest), "--members"]
        if _native.main(words, command()) != 0:
            raise SystemExit("the shards could not be indexed")
        found = {
            "forebay packed": figures(*forebay_steps(urls, manifest, pack=True)),
            "forebay padded": figures(*forebay_steps(urls, manifest, pack=False)),
            "torch by count": figures(*torch_steps(tokens)),
        }
    report = {
        "machine": machine.describe(Path(arguments.directory)),
        "documents": len(tokens),
        "tokens": sum(tokens),
        "budget": BUDGET,
        "world_size": WORLD,
        "figures": found,
    }
    print(json.dumps(found, indent=1))
    machine.record(report, "tokens.json")


if __name__ == "__main__":
    main()
