"""SPDL on the rivals' task: its threads in one process, FFmpeg's decoders and filters on the CPU.

Its rule: as its guide recommends: samples go through a pipeline of threads that let go of the GIL,
whole batches a task, as many tasks at once as there are cores. It needs none of Forebay's
environment but NumPy and isal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import spdl.io
from contender import MEAN, SIZE, STD, Batch, Task, Tensor, run
from spdl.pipeline import PipelineBuilder

THREADS = 2
# Batches ready ahead; more did not help.
PREFETCH = 4
# torchvision's defaults, by which every contender draws its crops.
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10

# What becomes of a byte, by one multiplication and one addition.
FACTOR = [1 / (255 * std) for std in STD]
SHIFT = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]


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


def collate(samples: list[tuple[bytes, int]]) -> Batch:
    """Decode a batch, then normalise it in one go."""
    frames = [decode(photo) for photo, _ in samples]
    pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
    out = np.empty((len(samples), 3, SIZE, SIZE), np.float32)
    for channel in range(3):
        plane = out[:, channel]
        np.multiply(pixels[..., channel], np.float32(FACTOR[channel]), out=plane)
        plane += np.float32(SHIFT[channel])
    return Tensor(out), np.array([label for _, label in samples])


class Pairs:
    """SPDL's batches as pairs of image and label, the form the harness expects."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def samples(self) -> Iterator[tuple[bytes, int]]:
        """Read one epoch's samples, whose members stand beside each other."""
        for shard in self.task.shards:
            with open(shard, "rb") as file:
                members: dict[str, Any] = {}
                for name, data in spdl.io.iter_tarfile(file):
                    members[name.rpartition(".")[2]] = data
                    if members.keys() == {"jpg", "cls"}:
                        yield members["jpg"], int(bytes(members["cls"]))
                        members = {}

    def __iter__(self) -> Iterator[Batch]:
        """Play one epoch."""
        pipeline = (
            PipelineBuilder()
            .add_source(self.samples())
            .aggregate(self.task.batch_size)
            .pipe(collate, concurrency=THREADS)
            .add_sink(PREFETCH)
            .build(num_threads=THREADS, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline


if __name__ == "__main__":
    given = Task.from_command_line()
    run(given, Pairs(given), list)
