"""Worker and rank of this process, and its random draws.

A draw is a function of seed, epoch, place and purpose. Nothing else is random here.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

from forebay import ranks
from forebay.errors import Invalid

# Rank of the parent process: a spawned worker of torch's loader has no process group to ask.
_of_parent: ranks.Place | None = None


@dataclass(frozen=True)
class Worker:
    """One reader among those that share an epoch."""

    rank: int
    world_size: int
    number: int
    workers: int
    # torch's draw for this iteration of its loader; 0 outside of its workers.
    base_seed: int


@dataclass(frozen=True)
class Epoch:
    """One pass over the shards, as one worker plays it."""

    worker: Worker
    seed: int
    # torch's draw replaces the epoch's number if a worker does not know it.
    base_seed: int
    number: int
    repetition: int

    def draws(self, purpose: str, seed: int | None = None) -> random.Random:
        """Return a generator for one purpose in this epoch."""
        key = (
            self.seed if seed is None else seed,
            self.base_seed,
            self.number,
            self.repetition,
            self.worker.rank,
            self.worker.number,
            purpose,
        )
        return random.Random("/".join(map(str, key)))


def worker(group: Any = None) -> Worker:
    """Find this process's place: its rank as `forebay.DataLoader` finds it, its worker by
    ``WORKER`` and ``NUM_WORKERS`` or as torch's loader numbers it.

    Parameters
    ----------
    group : optional
        The process group of ``torch.distributed`` to count in, in place of all ranks.
    """
    info = ranks.torch_worker()
    number, workers = (0, 1) if info is None else (info.id, info.num_workers)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        number, workers = _variable("WORKER"), _variable("NUM_WORKERS")
        if not 0 <= number < workers:
            raise Invalid(
                f"WORKER={number} is not below NUM_WORKERS={workers}; workers count from 0"
            )
    place = rank(group)
    base = 0 if info is None else info.seed - info.id
    return Worker(place.rank, place.world_size, number, workers, base)


def rank(group: Any = None) -> ranks.Place:
    """Return the rank that this process is, or works for."""
    if group is not None:
        import torch.distributed as distributed

        return ranks.Place(
            distributed.get_rank(group), distributed.get_world_size(group), "a process group"
        )
    place = ranks.resolve(None, None)
    if place.world_size == 1 and _of_parent is not None and ranks.torch_worker() is not None:
        return _of_parent
    return place


def told_by_parent(place: ranks.Place | None) -> None:
    """Record the rank of the process that a data set came from."""
    global _of_parent
    if place is not None:
        _of_parent = place


def _variable(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise Invalid(f"{name} is {os.environ[name]!r}, not a number; unset it") from None
