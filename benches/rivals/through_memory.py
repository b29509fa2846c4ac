"""No loader: every batch lies in the trainer's memory before the clock runs.

The trainer's own work is then all that takes time. It bounds every loader that works beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

from contender import Loader, Task, serve
from shards import samples
from touch import Batch


class Batches:
    """All batches of an epoch."""

    def __init__(self, task: Task, repeats: int) -> None:
        held = [members for shard in task.shards for _, members in samples(shard)]
        begins = range(0, len(held), task.batch_size)
        batches = [held[begin : begin + task.batch_size] for begin in begins]
        self.batches: list[Batch] = [
            [[members[name] for members in batch] for name in task.fields] for batch in batches
        ]
        self.repeats = repeats

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        for _ in range(self.repeats):
            yield from self.batches


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    return Loader(Batches(task, repeats))


if __name__ == "__main__":
    serve(make)
