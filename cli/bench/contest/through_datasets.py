"""Hugging Face's datasets over its own Arrow files on the local disk, streamed.

As its guide recommends for speed: an `IterableDataset` over mapped Arrow files, with at least one
shard for each worker of torch's DataLoader, which decode and collate.
"""

from __future__ import annotations

from typing import Any

from contender import Loader, Task, serve
from datasets import concatenate_datasets, load_from_disk
from handover import handed_over
from torch.utils.data import DataLoader
from torch_workers import Recipe, recipe, settings


class Collate:
    """Decodes and batches samples, where a worker has a batch of them."""

    def __init__(self, fields: list[str], made: Recipe) -> None:
        self.fields, self.made = fields, made

    def __call__(self, samples: list[dict[str, bytes]]) -> Any:
        """Put a batch together."""
        members = [tuple(sample[extension] for extension in self.fields) for sample in samples]
        if (decode := self.made.decode) is None:
            return self.made.collate(members)
        return self.made.collate([(decode(photo), int(label)) for photo, label in members])


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    assert task.source is not None
    made = recipe(task)
    # Nothing is copied: each refers to the same files.
    mapped = concatenate_datasets([load_from_disk(f"{task.source}/arrow")] * repeats)
    samples = mapped.to_iterable_dataset(num_shards=max(1, task.configuration["workers"]))
    loader = DataLoader(
        samples,
        batch_size=task.batch_size,
        collate_fn=Collate(task.fields, made),
        **settings(task),
    )
    return Loader(handed_over(loader, task.configuration, made.finish))


if __name__ == "__main__":
    serve(make)
