"""Forebay.

Defaults. What is set is what the task asks for, nothing is tuned to the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
from contender import Loader, Task, serve
from pixels import MEAN, SIZE, STD
from to_forebay import MANIFEST
from touch import Batch

import forebay


class Columns:
    """A loader's batches as columns, the form the harness expects."""

    def __init__(self, loader: forebay.DataLoader, names: list[str]) -> None:
        self.loader, self.names = loader, names

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch; nothing is kept of a batch that was taken."""
        return map(self.columns, self.loader)

    def columns(self, batch: dict[str, Any]) -> Batch:
        """Return a batch's columns in their order."""
        return [batch[name] for name in self.names]


def fields(task: Task) -> dict[str, forebay.Field]:
    """Return the fields that `task` asks for."""
    if not task.images:
        copy = task.configuration["bytes"] == "copies"
        return {name: forebay.Bytes(name, copy=copy) for name in task.fields}
    photo, label = task.fields
    image = forebay.Image(
        photo, size=SIZE, crop="random", flip=True, dtype="float32", mean=MEAN, std=STD
    )
    return {photo: image, label: forebay.Int(label)}


def helpers(loader: forebay.DataLoader) -> list[int]:
    """Return the daemon, its processes and this one's."""
    daemon = loader.stats()["daemon_pid"]
    served = [] if daemon is None else [daemon, *processes.children(daemon)]
    return list(dict.fromkeys([*served, *processes.children()]))


def counts(loader: forebay.DataLoader) -> dict[str, Any]:
    """Return what `loader` counted."""
    return {"loader": loader.stats()}


def manifest(task: Task) -> Path | None:
    """Return the file that tells the shards' sample counts, which repeating them needs."""
    return None if task.source is None else Path(task.source) / MANIFEST


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    urls = [Path(shard).absolute().as_uri() for shard in task.shards]
    repeated = [forebay.Stream(urls, repeat=repeats, manifest=manifest(task))]
    loader = forebay.DataLoader(
        repeated if repeats > 1 else urls,
        batch_size=task.batch_size,
        fields=fields(task),
        framework="torch",
    )
    return Loader(
        Columns(loader, task.fields),
        helpers=lambda: helpers(loader),
        counts=lambda: counts(loader),
        close=loader.close,
    )


if __name__ == "__main__":
    serve(make)
