"""Settings of torch's DataLoader, shared by all contenders built on it.

They follow torch's guide for speed: workers persist, each has some batches ready, and whole batches
cross to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from handover import Batch, taken_ahead

if TYPE_CHECKING:
    from contender import Task

# Batches ready ahead per worker; more did not help. Of many workers each has fewer, down to torch's
# default, or so many float32 images would be more memory than most hosts have.
PREFETCH, PREFETCH_LEAST, PREFETCH_MOST = 4, 2, 16


@dataclass(frozen=True)
class Recipe:
    """Transforms of a photo, of a batch in a worker, and of a batch in the trainer's thread."""

    decode: Callable[[bytes], Any] | None
    collate: Callable[[list[Any]], Batch]
    finish: Callable[[Batch], Batch] | None


def recipe(task: Task) -> Recipe:
    """Return the transforms that `task` asks for."""
    if not task.images:
        return Recipe(None, columns, None)
    # It takes seconds to import, and bytes do without.
    import torch_pixels

    return torch_pixels.recipe(task)


def columns(samples: list[tuple[bytes, ...]]) -> list[list[bytes]]:
    """Turn a batch of samples of bytes into one column for each field."""
    return [list(column) for column in zip(*samples, strict=True)]


def prefetch(workers: int) -> int:
    """Return the batches that each of so many workers has ready."""
    return min(PREFETCH, max(PREFETCH_LEAST, PREFETCH_MOST // workers))


def ahead(configuration: dict[str, Any]) -> int:
    """Return the most batches that are ready before one is taken."""
    workers: int = configuration["workers"]
    kept = workers * prefetch(workers) if workers else 0
    return kept + taken_ahead(configuration)


def settings(task: Task) -> dict[str, Any]:
    """Return the arguments that say how many workers there are and how they work."""
    workers: int = task.configuration["workers"]
    return {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "prefetch_factor": prefetch(workers) if workers else None,
        # From where a GPU reads by itself, while others work.
        "pin_memory": task.model is not None,
    }
