"""torch's DataLoader as all contenders have it who stand on it: its settings, and the hand-over.

Its rule: as torch's guide recommends for speed: workers persist, each has some batches ready, and
whole batches cross to the trainer. What it costs to take one over is paid by the trainer, or by a
thread of its process, as torch's own thread for pinned memory pays it where there is a GPU; both
are tried, and what feeds the fastest accelerator counts.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contender import Task

# Batches ready ahead per worker; more did not help. Of many workers each has fewer, down to torch's
# default, or so many float32 images would be more memory than most hosts have.
PREFETCH, PREFETCH_LEAST, PREFETCH_MOST = 4, 2, 16
# Batches that a thread keeps ready beside those of the workers; its end needs two places.
READY = 2
# Who takes a batch over from the workers: the trainer, when it asks for it; a thread that does
# nothing else; or one that gets images as bytes and normalises them as well.
DIRECT, THREAD, THREAD_UINT8 = "direct", "thread", "thread-uint8"

Batch = Any


@dataclass(frozen=True)
class Recipe:
    """What becomes of samples: of a photo, of a batch in a worker, and in the trainer's thread."""

    decode: Callable[[bytes], Any] | None
    collate: Callable[[list[Any]], Batch]
    finish: Callable[[Batch], Batch] | None


def recipe(task: Task) -> Recipe:
    """Return what becomes of the samples that `task` asks for."""
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
    """Return the batches that are ready at most before one is taken."""
    workers: int = configuration["workers"]
    kept = workers * prefetch(workers) if workers else 0
    return kept + (0 if handover(configuration) == DIRECT else READY)


def handover(configuration: dict[str, Any]) -> str:
    """Return who takes batches over."""
    by: str = configuration.get("handover", DIRECT)
    return by


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


class Threaded:
    """Batches that a thread of this process takes from a loader, finishes, and has ready."""

    def __init__(self, batches: Iterable[Batch], finish: Callable[[Batch], Batch]) -> None:
        self.batches, self.finish = batches, finish

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        ready: queue.Queue[list[Batch]] = queue.Queue(READY)
        is_left = threading.Event()
        # One that raises ends with its error, one that ends with nothing.
        ends: list[Exception] = []
        thread = threading.Thread(target=self.take, args=(ready, is_left, ends), daemon=True)
        thread.start()
        try:
            while taken := ready.get():
                # Whoever gets it is the only one to hold it.
                yield taken.pop()
            if ends:
                raise ends[0]
        finally:
            is_left.set()
            # It puts one more batch at most and its last word, for which there is room then.
            while not ready.empty():
                ready.get()
            thread.join()

    def take(
        self, ready: queue.Queue[list[Batch]], is_left: threading.Event, ends: list[Exception]
    ) -> None:
        """Be the thread."""
        try:
            source = iter(self.batches)
            while not is_left.is_set():
                # No name holds a batch that was taken.
                ready.put([self.finish(next(source))])
        except StopIteration:
            pass
        except Exception as error:
            ends.append(error)
        ready.put([])


def handed_over(batches: Iterable[Batch], task: Task, made: Recipe) -> Iterable[Batch]:
    """Return a loader's batches as the trainer gets them."""
    if handover(task.configuration) == DIRECT:
        return batches
    return Threaded(batches, made.finish or (lambda batch: batch))
