"""NVIDIA DALI on the rivals' task: its reader of WebDataset's shards, on the CPU.

Its rule: as its guide recommends: index files, whole batches read ahead, as many threads as there
are cores, and of a photo only the crop decoded. It needs none of Forebay's environment but NumPy
and isal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from contender import MEAN, SIZE, STD, Batch, Task, Tensor, run
from nvidia.dali import fn, pipeline_def, types

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
            photos, labels = fn.readers.webdataset(
                name="shards",
                paths=list(task.shards),
                index_paths=indexes,
                ext=["jpg", "cls"],
                prefetch_queue_depth=PREFETCH,
            )
            return (photos if task.mode == "raw" else images(photos)), labels

        self.mode = task.mode
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
            photos, labels = self.pipe.run()
            if self.mode == "raw":
                yield arrays(photos), arrays(labels)
            else:
                numbers = [int(bytes(label)) for label in arrays(labels)]
                yield Tensor(np.asarray(photos.as_tensor())), np.array(numbers)


def images(photos: Any) -> Any:
    """Return what becomes of `photos`: the same transforms as everybody's."""
    crops = fn.decoders.image_random_crop(
        photos,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        num_attempts=10,
    )
    resized = fn.resize(crops, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        resized,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=fn.random.coin_flip(probability=0.5),
        mean=[255 * mean for mean in MEAN],
        std=[255 * std for std in STD],
    )


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
