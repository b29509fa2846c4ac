"""Forebay on the rivals' task.

Its rule: defaults. What is set is what the task asks for, nothing is tuned to this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stage
from contender import MEAN, SIZE, STD, Batch, Task, run

import forebay


class Pairs:
    """A loader's batches as pairs of image and label, the form the harness expects."""

    def __init__(self, loader: forebay.DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        for batch in self.loader:
            yield batch["image"], batch["label"]


def fields(task: Task) -> dict[str, forebay.Field]:
    """Return the fields that `task` asks for."""
    if task.mode == "raw":
        copy = task.variant == "copies"
        return {
            "image": forebay.Bytes("jpg", copy=copy),
            "label": forebay.Bytes("cls", copy=copy),
        }
    image = forebay.Image(
        "jpg", size=SIZE, crop="random", flip=True, dtype="float32", mean=MEAN, std=STD
    )
    return {"image": image, "label": forebay.Int("cls")}


def counts(loader: forebay.DataLoader) -> dict[str, Any]:
    """Return what `loader` and its daemon counted, free of this checkout's whereabouts."""
    daemon = stage.status(dict(os.environ))
    if daemon is None:
        raise RuntimeError("the daemon is gone")
    for tier in daemon["tiers"]:
        # One in memory has none.
        tier.pop("path", None)
    return {"loader": loader.stats(), "daemon": daemon}


if __name__ == "__main__":
    given = Task.from_command_line()
    shards = [Path(shard).absolute().as_uri() for shard in given.shards]
    loader = forebay.DataLoader(
        shards, batch_size=given.batch_size, fields=fields(given), framework="torch"
    )
    with loader as opened:
        run(
            given,
            Pairs(opened),
            lambda: [opened.stats()["daemon_pid"]],
            lambda: counts(opened),
        )
