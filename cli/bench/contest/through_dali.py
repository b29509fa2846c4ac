"""NVIDIA DALI: its reader of WebDataset's shards; photos on the GPU where there is one.

As its guide recommends: index files, whole batches read ahead, each number of threads
tried, and of a photo only the crop decoded. It needs none of Forebay's environment but NumPy; on a
GPU torch as well, which reads DALI's tensors there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from contender import Loader, Task, serve
from handover import handed_over
from nvidia.dali import fn, pipeline_def, types
from pixels import MEAN, RATIO, SCALE, SIZE, STD, TRIES
from to_dali import index_of
from touch import Batch

# Batches read ahead, and as many made of them; more did not help.
PREFETCH = 4


class Shards:
    """DALI's batches as columns, the form the harness expects."""

    def __init__(self, task: Task, repeats: int) -> None:
        assert task.source is not None
        indexes = [str(index_of(Path(task.source), number)) for number in range(len(task.shards))]
        on_gpu = task.configuration.get("device") == "gpu"

        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=task.batch_size,
            num_threads=task.configuration["threads"],
            device_id=0 if on_gpu else None,
            prefetch_queue_depth=PREFETCH,
        )
        def pipeline() -> Any:
            members = fn.readers.webdataset(
                name="shards",
                paths=task.shards,
                index_paths=indexes,
                ext=task.fields,
                prefetch_queue_depth=PREFETCH,
            )
            if not task.images:
                return tuple(members)
            return images(members[0], on_gpu), members[1]

        self.images, self.on_gpu, self.batch_size = task.images, on_gpu, task.batch_size
        self.pipe = pipeline()
        self.pipe.build()
        self.samples = self.pipe.reader_meta("shards")["epoch_size"] * repeats

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch; the reader knows none and goes on with the first sample."""
        for begin in range(0, self.samples, self.batch_size):
            left = min(self.batch_size, self.samples - begin)
            outputs = self.pipe.run()
            if not self.images:
                yield [views(output, left) for output in outputs]
                continue
            photos, labels = outputs
            numbers = np.array([int(bytes(label)) for label in views(labels, left)])
            yield self.tensor(photos, left), numbers

    def tensor(self, photos: Any, left: int) -> Any:
        """Return the first `left` images as what the harness reads."""
        if self.on_gpu:
            from torch.utils.dlpack import from_dlpack

            return from_dlpack(photos.as_tensor())[:left]
        return np.asarray(photos.as_tensor())[:left]


def images(photos: Any, on_gpu: bool) -> Any:
    """Return what becomes of `photos`: the same transforms as everybody's."""
    crops = fn.decoders.image_random_crop(
        photos,
        device="mixed" if on_gpu else "cpu",
        output_type=types.RGB,
        random_area=list(SCALE),
        random_aspect_ratio=list(RATIO),
        num_attempts=TRIES,
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


def views(batch: Any, count: int) -> list[Any]:
    """Return a batch's samples, each as a view of DALI's own memory.

    Its `at` would copy them, where the trainer waits.
    """
    return [memoryview(batch[sample]) for sample in range(count)]


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    return Loader(handed_over(Shards(task, repeats), task.configuration))


if __name__ == "__main__":
    serve(make)
