"""LitData over its own chunks on the local disk.

Its rule: as its guide recommends: data that `optimize` wrote, its own `StreamingDataset` and
`StreamingDataLoader`, persistent workers that collate. It cannot repeat a data set within an epoch;
so its epochs follow each other, of which each one's first batch is waited for.
"""

from __future__ import annotations

from typing import Any

from contender import Loader, Task, serve
from litdata import StreamingDataLoader, StreamingDataset
from torch_pixels import DECODERS, collate, columns
from torch_workers import ahead, settings


class Samples(StreamingDataset):  # type: ignore[misc]
    """Samples by their number, decoded where a worker asks for them."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.source, shuffle=False, drop_last=False)
        # They were written in the order of their names.
        self.places = [sorted(task.fields).index(name) for name in task.fields]
        # What crosses between processes cannot be a view of a mapped file.
        self.take = bytes if task.configuration["workers"] else memoryview
        self.decode = DECODERS[task.configuration["decode"]] if task.images else None

    def __getitem__(self, index: Any) -> Any:
        """Read one sample."""
        sample = super().__getitem__(index)
        members = tuple(sample[place] for place in self.places)
        if self.decode is None:
            return tuple(map(self.take, members))
        return self.decode(members[0]), int(members[1])


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    return Loader(
        StreamingDataLoader(
            Samples(task),
            batch_size=task.batch_size,
            collate_fn=collate if task.images else columns,
            **settings(task.configuration),
        ),
        ahead=ahead(task.configuration),
    )


if __name__ == "__main__":
    serve(make)
