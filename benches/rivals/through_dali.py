"""NVIDIA DALI on the rivals' task: its reader of WebDataset's shards, on the CPU.

Its rule: as its guide recommends: index files, whole batches read ahead, as many threads as there
are cores. It needs none of Forebay's environment but NumPy and isal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contender import Batch, Task, run
from nvidia.dali import fn, pipeline_def

THREADS = 2
# Batches read ahead; more did not help.
PREFETCH = 4
# The command installed beside this Python.
WDS2IDX = Path(sys.executable).with_name("wds2idx")


class Shards:
    """DALI's batches as pairs of image and label, the form the harness expects."""

    def __init__(self, task: Task, indexes: list[str]) -> None:
        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=task.batch_size,
            num_threads=THREADS,
            device_id=None,
            prefetch_queue_depth=PREFETCH,
        )
        def pipeline() -> Any:
            return tuple(
                fn.readers.webdataset(
                    name="shards",
                    paths=list(task.shards),
                    index_paths=indexes,
                    ext=["jpg", "cls"],
                    prefetch_queue_depth=PREFETCH,
                )
            )

        self.pipe = pipeline()
        self.pipe.build()
        samples = self.pipe.reader_meta("shards")["epoch_size"]
        if samples % task.batch_size != 0:
            # Its last batch would hold samples of the next epoch.
            sys.exit(f"{samples} samples are no whole number of batches")
        self.batches = samples // task.batch_size

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        for _ in range(self.batches):
            images, labels = self.pipe.run()
            yield arrays(images), arrays(labels)


def arrays(batch: Any) -> list[Any]:
    """Return a batch's samples, each as an array over DALI's own memory."""
    return [batch.at(sample) for sample in range(len(batch))]


def index(shards: list[str], folder: Path) -> list[str]:
    """Make DALI's index files of `shards`, which is not timed."""
    made = []
    for shard in shards:
        target = folder / f"{Path(shard).stem}.idx"
        subprocess.run([WDS2IDX, shard, target], check=True, stdout=subprocess.DEVNULL)
        made.append(str(target))
    return made


if __name__ == "__main__":
    given = Task.from_command_line()
    with tempfile.TemporaryDirectory(prefix=f"dali-{os.getpid()}-") as aside:
        run(given, Shards(given, index(list(given.shards), Path(aside))), list)
