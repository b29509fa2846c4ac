"""torch's DataLoader over files: the tars' members, unpacked, as ImageFolder's users have them.

As torch's guide recommends: a map-style data set, samples decoded and collated inside
persistent workers, nothing shuffled, as nobody here does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contender import Loader, Task, serve
from handover import handed_over
from to_files import listed
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from torch_workers import Recipe, recipe, settings


class Files(Dataset[Any]):
    """Samples by their number, each a file for each field."""

    def __init__(self, task: Task, repeats: int, made: Recipe) -> None:
        assert task.source is not None
        self.folder, self.fields = task.source, task.fields
        self.keys = listed(Path(task.source))
        self.repeats = repeats
        self.decode = made.decode

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        return len(self.keys) * self.repeats

    def __getitem__(self, number: int) -> Any:
        """Read one sample."""
        key = self.keys[number % len(self.keys)]
        members = []
        for extension in self.fields:
            with open(f"{self.folder}/{key}.{extension}", "rb", buffering=0) as file:
                members.append(file.read())
        if self.decode is None:
            return tuple(members)
        return self.decode(members[0]), int(members[1])


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    made = recipe(task)
    files = Files(task, repeats, made)
    loader = DataLoader(
        files,
        batch_size=task.batch_size,
        sampler=SequentialSampler(files),
        collate_fn=made.collate,
        **settings(task),
    )
    return Loader(handed_over(loader, task.configuration, made.finish))


if __name__ == "__main__":
    serve(make)
