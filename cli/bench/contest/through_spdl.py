"""SPDL: its threads in one process, FFmpeg's decoders and filters on the CPU.

As its guide recommends: samples go through a pipeline of threads that let go of the GIL,
whole batches a task, as many tasks at once as there are threads. It needs none of Forebay's
environment but NumPy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import spdl.io
from contender import Loader, Task, serve
from pixels import MEAN, RATIO, SCALE, SIZE, STD, TRIES
from spdl.pipeline import PipelineBuilder
from touch import Batch

# Batches ready ahead; more did not help.
PREFETCH = 4

# Scale of a byte: one multiplication and one addition.
FACTOR = [1 / (255 * std) for std in STD]
SHIFT = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]

Members = tuple[Any, ...]


def crop(width: int, height: int) -> str:
    """Return the filter of a random crop, drawn as torchvision's `RandomResizedCrop` does."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return f"crop={w}:{h}:{left}:{top}:exact=1"
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return f"crop={w}:{h}"


def decode(photo: bytes) -> Any:
    """Decode, crop, resize and mirror one photo by FFmpeg."""
    packets = spdl.io.demux_image(photo)
    steps = [crop(packets.width, packets.height), f"scale={SIZE}:{SIZE}:flags=bilinear"]
    if random.random() < 0.5:
        steps.append("hflip")
    steps.append("format=pix_fmts=rgb24")
    return spdl.io.decode_packets(packets, filter_desc=",".join(steps))


def images(samples: list[Members]) -> Batch:
    """Decode a batch, then normalise it in one go."""
    frames = [decode(photo) for photo, _ in samples]
    pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
    out = np.empty((len(samples), 3, SIZE, SIZE), np.float32)
    for channel in range(3):
        plane = out[:, channel]
        np.multiply(pixels[..., channel], np.float32(FACTOR[channel]), out=plane)
        plane += np.float32(SHIFT[channel])
    return out, np.array([int(bytes(label)) for _, label in samples])


def columns(samples: list[Members]) -> Batch:
    """Turn a batch of samples of bytes into one column for each field."""
    return [list(column) for column in zip(*samples, strict=True)]


def members(shard: str, fields: list[str]) -> list[Members]:
    """Read one shard's samples, whose members stand beside each other."""
    with open(shard, "rb") as file:
        content = file.read()
    found: list[Members] = []
    sample: dict[str, Any] = {}
    stem = None
    for name, data in spdl.io.iter_tarfile(content):
        folder, slash, last = name.rpartition("/")
        base, _, extension = last.partition(".")
        if (here := f"{folder}{slash}{base}") != stem:
            stem, sample = here, {}
        if extension in fields:
            sample[extension] = data
            if len(sample) == len(fields):
                found.append(tuple(sample[field] for field in fields))
    return found


class Batches:
    """SPDL's batches in the form that the harness expects."""

    def __init__(self, task: Task, repeats: int) -> None:
        self.task, self.repeats = task, repeats

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        threads: int = self.task.configuration["threads"]
        pipeline = (
            PipelineBuilder()
            .add_source(self.task.shards * self.repeats)
            # Each of the threads reads a shard, ahead of the one whose samples are taken.
            .pipe(
                partial(members, fields=self.task.fields),
                concurrency=threads,
                output_order="input",
            )
            .disaggregate()
            .aggregate(self.task.batch_size)
            .pipe(images if self.task.images else columns, concurrency=threads)
            .add_sink(PREFETCH)
            .build(num_threads=2 * threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    return Loader(Batches(task, repeats))


if __name__ == "__main__":
    serve(make)
