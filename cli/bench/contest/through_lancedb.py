"""LanceDB's streaming data set over a table on the local disk.

As its guide recommends: `StreamingDataset` with a split for each worker, whose threads decode what
others read, and its own `StreamingDataLoader`. It has no word for playing a table again within an
epoch; so a table is made that has the same fragments several times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conversions
import lance
import lancedb
import pyarrow as pa
from contender import Loader, Task, serve
from handover import handed_over
from lancedb.streaming import StreamingDataLoader, StreamingDataset
from to_lancedb import TABLE
from torch_workers import Recipe, recipe, settings
from touch import Batch

# Decoded reads that a split has ready: by default all of its samples may be, which no memory holds.
READY = 4


def repeated(source: Path, repeats: int) -> Path:
    """Return a folder with the table of `source` so many times."""

    def write(target: Path) -> None:
        folder, files = f"{TABLE}.lance", Path(f"{TABLE}.lance", "data")
        once = lance.dataset(source / folder)
        (target / files).mkdir(parents=True)
        for file in (source / files).iterdir():
            os.link(file, target / files / file.name)
        fragments = [fragment.metadata for fragment in once.get_fragments()] * repeats
        overwrite = lance.LanceOperation.Overwrite(once.schema, fragments)
        lance.LanceDataset.commit(target / folder, overwrite)

    return conversions.repeated(source, repeats, write)


class Rows:
    """Makes samples of the rows of a read, and decodes them."""

    def __init__(self, fields: list[str], made: Recipe) -> None:
        self.fields, self.decode = fields, made.decode

    def __call__(self, rows: pa.RecordBatch) -> list[Any]:
        """Return a sample for each row."""
        columns = [rows.column(extension).to_pylist() for extension in self.fields]
        members = list(zip(*columns, strict=True))
        if (decode := self.decode) is None:
            return members
        return [(decode(photo), int(label)) for photo, label in members]


class Batches:
    """Batches of LanceDB in the form that the harness expects: each epoch has its own data set."""

    def __init__(self, task: Task, repeats: int, made: Recipe) -> None:
        assert task.source is not None
        self.table = lancedb.connect(repeated(Path(task.source), repeats)).open_table(TABLE)
        self.task, self.made, self.epoch = task, made, 0
        self.splits = max(1, task.configuration["workers"])
        if (rows := self.table.count_rows()) % self.splits:
            # It would drop those that are left over.
            raise ValueError(f"{rows} rows cannot be split among {self.splits} workers")
        # The decoding threads of all workers together are as many as the cores.
        self.threads = max(1, len(os.sched_getaffinity(0)) // self.splits)
        # It rejects workers that persist, and advises against forked ones.
        self.options = {**settings(task), "persistent_workers": False}
        if task.configuration["workers"]:
            self.options["multiprocessing_context"] = "forkserver"

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        samples = StreamingDataset(
            self.table,
            num_splits=self.splits,
            shuffle=False,
            epoch=self.epoch,
            columns=self.task.fields,
            transform=Rows(self.task.fields, self.made),
            transform_parallelism=self.threads,
            transform_queue_depth=READY,
        )
        self.epoch += 1
        size, collate = self.task.batch_size, self.made.collate
        return iter(StreamingDataLoader(samples, size, collate_fn=collate, **self.options))


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    made = recipe(task)
    batches = Batches(task, repeats, made)
    return Loader(handed_over(batches, task.configuration, made.finish))


if __name__ == "__main__":
    serve(make)
