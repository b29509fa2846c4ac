"""Handover of batches from loader to trainer: on request, or by a thread.

The trainer pays for the handover, or a thread of its process does, as torch's own thread for pinned
memory does where there is a GPU. Both are tried, and the one that feeds the fastest accelerator
counts.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Name among a contender's settings.
HANDOVER = "handover"
# The trainer takes a batch when it asks for it; a thread takes it ahead; or a thread takes images
# as bytes and normalises them as well.
DIRECT, THREAD, THREAD_UINT8 = "direct", "thread", "thread-uint8"
# Batches that a thread keeps ready beside those that are made ahead; its end needs two places.
READY = 2

Batch = Any


def taken_by(configuration: dict[str, Any]) -> str:
    """Return the kind of handover."""
    by: str = configuration.get(HANDOVER, DIRECT)
    return by


def taken_ahead(configuration: dict[str, Any]) -> int:
    """Return the most batches taken over before one is asked for."""
    return 0 if taken_by(configuration) == DIRECT else READY


def handed_over(
    batches: Iterable[Batch],
    configuration: dict[str, Any],
    finish: Callable[[Batch], Batch] | None = None,
) -> Iterable[Batch]:
    """Return a loader's batches as the trainer gets them; a thread runs `finish` on each."""
    if taken_by(configuration) == DIRECT:
        return batches
    return Threaded(batches, finish or (lambda batch: batch))


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
                # The consumer is the only one to hold it.
                yield taken.pop()
            if ends:
                raise ends[0]
        finally:
            is_left.set()
            # The thread puts at most one more batch and its end marker, for which there is room
            # then.
            while not ready.empty():
                ready.get()
            thread.join()

    def take(
        self, ready: queue.Queue[list[Batch]], is_left: threading.Event, ends: list[Exception]
    ) -> None:
        """Run the thread."""
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
