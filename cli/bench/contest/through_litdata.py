"""LitData over its own chunks on the local disk.

As its guide recommends: data that `optimize` wrote, its own `StreamingDataset` and
`StreamingDataLoader`, persistent workers that collate. It has no word for playing a data set again
within an epoch; so the chunks are listed again, under further names of the same files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import conversions
from contender import Loader, Task, serve
from handover import handed_over
from litdata import StreamingDataLoader, StreamingDataset
from torch_workers import Recipe, recipe, settings

INDEX = "index.json"


def repeated(source: Path, repeats: int) -> Path:
    """Return a folder that has the chunks of `source` so many times."""

    def write(target: Path) -> None:
        index = json.loads((source / INDEX).read_text())
        chunks = []
        for number in range(repeats):
            for chunk in index["chunks"]:
                name = f"{number}-{chunk['filename']}"
                os.link(source / chunk["filename"], target / name)
                chunks.append({**chunk, "filename": name})
        (target / INDEX).write_text(json.dumps({**index, "chunks": chunks}))

    return conversions.repeated(source, repeats, write)


class Samples(StreamingDataset):  # type: ignore[misc]
    """Samples by their number, decoded where a worker asks for them."""

    def __init__(self, task: Task, repeats: int, made: Recipe) -> None:
        assert task.source is not None
        folder = repeated(Path(task.source), repeats)
        super().__init__(str(folder), shuffle=False, drop_last=False)
        # They were written in the order of their names.
        self.places = [sorted(task.fields).index(name) for name in task.fields]
        # A view of a mapped file cannot cross between processes.
        self.take = bytes if task.configuration["workers"] else memoryview
        self.decode = made.decode

    def __getitem__(self, index: Any) -> Any:
        """Read one sample."""
        sample = super().__getitem__(index)
        members = tuple(sample[place] for place in self.places)
        if self.decode is None:
            return tuple(map(self.take, members))
        return self.decode(members[0]), int(members[1])


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
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
