"""The rival: released WebDataset with torch's DataLoader.

Its rule: it is set up the way its authors recommend for speed. Samples are batched inside the
workers, workers persist between epochs, whole batches are normalised at once, tensors cross to the
trainer through shared memory; each number of workers and both ways to decode are tried, and the
harness counts the fastest.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import webdataset
from contender import MEAN, SIZE, STD, Task, children, run
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

# Of those that decode: as many as there are cores.
WORKERS = 2
# Batches ready ahead per worker; more did not help.
PREFETCH = 4

CROP_AND_FLIP = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
TO_TENSOR = v2.ToImage()
NORMALISE = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def with_pillow(data: bytes) -> torch.Tensor:
    """Decode and crop by Pillow, as ImageFolder does by default."""
    pixels: torch.Tensor = TO_TENSOR(CROP_AND_FLIP(Image.open(io.BytesIO(data)).convert("RGB")))
    return pixels


def with_torchvision(data: bytes) -> torch.Tensor:
    """Decode by torchvision's own libjpeg-turbo, crop on tensors."""
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: torch.Tensor = CROP_AND_FLIP(decode_jpeg(encoded, mode=ImageReadMode.RGB))
    return pixels


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack a batch while it is still bytes, then normalise it in one go."""
    images = torch.stack([image for image, _ in samples])
    return NORMALISE(images), torch.tensor([label for _, label in samples])


def loader(task: Task) -> Any:
    """Make the loader that `task` asks for."""
    samples = webdataset.WebDataset(list(task.shards), shardshuffle=False).to_tuple("jpg", "cls")
    workers = WORKERS
    if task.mode == "raw":
        batches = samples.batched(task.batch_size)
        workers = int(task.variant)
    else:
        decode: Callable[[bytes], torch.Tensor] = {
            "pillow": with_pillow,
            "torchvision": with_torchvision,
        }[task.variant]
        batches = samples.map_tuple(decode, int).batched(task.batch_size, collation_fn=collate)
    return webdataset.WebLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH if workers else None,
    )


if __name__ == "__main__":
    given = Task.from_command_line()
    run(given, loader(given), children)
