"""Mosaic Streaming over its own format, MDS, on the local disk.

As its guide recommends: a `StreamingDataset` that knows the batch size, its own
`StreamingDataLoader`, uncompressed shards without a remote, persistent workers that collate.
"""

from __future__ import annotations

from typing import Any

from contender import Loader, Task, serve
from handover import handed_over
from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch_workers import Recipe, recipe, settings


class Samples(StreamingDataset):  # type: ignore[misc]
    """Samples by their number, decoded where a worker asks for them."""

    def __init__(self, task: Task, repeats: int, made: Recipe) -> None:
        stream = Stream(local=task.source, repeat=repeats)
        super().__init__(streams=[stream], batch_size=task.batch_size, shuffle=False)
        self.fields = task.fields
        self.decode = made.decode

    def __getitem__(self, number: int) -> Any:
        """Read one sample."""
        sample = super().__getitem__(number)
        members = tuple(sample[extension] for extension in self.fields)
        if self.decode is None:
            return members
        return self.decode(members[0]), int(members[1])


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    # Files of a killed process would be mistaken for this one's.
    clean_stale_shared_memory()
    made = recipe(task)
    loader = StreamingDataLoader(
        Samples(task, repeats, made),
        batch_size=task.batch_size,
        collate_fn=made.collate,
        **settings(task),
    )
    return Loader(handed_over(loader, task.configuration, made.finish))


if __name__ == "__main__":
    serve(make)
