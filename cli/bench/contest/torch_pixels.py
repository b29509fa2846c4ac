"""Photos decoded as torch's users do, for every contender that leaves decoding to them.

Decode, crop and flip work on bytes, as in torchvision's references. Normalising happens where the
batch is put together, each row while it is in the processor's cache, or where the trainer gets it.
All decoders are tried, and the fastest one counts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable

import torch
from contender import Task
from handover import READY, THREAD_UINT8, taken_by
from PIL import Image
from pixels import MEAN, SIZE, STD
from torch.utils.data import default_collate, get_worker_info
from torch_workers import Recipe
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

CROP_AND_FLIP = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
TO_TENSOR = v2.ToImage()
# Scale of a byte: one multiplication and one addition.
FACTOR = torch.tensor([1 / (255 * std) for std in STD]).view(3, 1, 1)
SHIFT = torch.tensor([-mean / std for mean, std in zip(MEAN, STD, strict=True)]).view(3, 1, 1)

Decode = Callable[[bytes], torch.Tensor]
Images = tuple[torch.Tensor, torch.Tensor]


def with_pillow(data: bytes) -> torch.Tensor:
    """Decode and crop by Pillow, as ImageFolder does by default."""
    pixels: torch.Tensor = TO_TENSOR(CROP_AND_FLIP(Image.open(io.BytesIO(data)).convert("RGB")))
    return pixels


def encoded(data: bytes) -> torch.Tensor:
    """Return a photo's bytes as both decoders on tensors take them."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def with_torchvision(data: bytes) -> torch.Tensor:
    """Decode by torchvision's own libjpeg-turbo, crop on tensors."""
    pixels: torch.Tensor = CROP_AND_FLIP(decode_jpeg(encoded(data), mode=ImageReadMode.RGB))
    return pixels


def with_torchcodec(data: bytes) -> torch.Tensor:
    """Decode by TorchCodec, crop on tensors."""
    from torchcodec.decoders import decode_jpeg as decode

    pixels: torch.Tensor = CROP_AND_FLIP(decode(encoded(data)))
    return pixels


DECODERS: dict[str, Decode] = {
    "pillow": with_pillow,
    "torchvision": with_torchvision,
    "torchcodec": with_torchcodec,
}


def normalise(pixels: Iterable[torch.Tensor], out: torch.Tensor) -> None:
    """Make floats of bytes, row by row."""
    for row, image in zip(out, pixels, strict=True):
        row.copy_(image)
        row.mul_(FACTOR).add_(SHIFT)


def empty(rows: int) -> torch.Tensor:
    """Return room for so many images; in a worker it is shared, as torch's own collating has it."""
    shape = (rows, 3, SIZE, SIZE)
    if get_worker_info() is None:
        return torch.empty(shape)
    size = math.prod(shape) * torch.float32.itemsize
    shared = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0).set_(shared, 0, shape)  # type: ignore[call-overload, no-any-return]


def collate(samples: list[tuple[torch.Tensor, int]]) -> Images:
    """Put a batch together and normalise it."""
    images = empty(len(samples))
    normalise([image for image, _ in samples], images)
    return images, torch.tensor([label for _, label in samples])


class Normalised:
    """Bytes made floats in memory that is used again and again, as torch uses pinned memory."""

    def __init__(self, rows: int) -> None:
        # One that is being made, those that are ready, and the trainer's.
        self.room = [empty(rows) for _ in range(1 + READY + 1)]
        self.next = 0

    def __call__(self, batch: Images) -> Images:
        """Normalise a batch; it is whole until the one after it has been asked for."""
        pixels, labels = batch
        images = self.room[self.next][: len(pixels)]
        self.next = (self.next + 1) % len(self.room)
        normalise(pixels, images)
        return images, labels


class OnDevice:
    """Batches brought to a device from pinned memory, on a stream beside the one that computes."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        is_gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if is_gpu else None  # type: ignore[no-untyped-call]
        self.factor, self.shift = FACTOR.to(self.device), SHIFT.to(self.device)

    def __call__(self, batch: Images) -> Images:
        """Bring a batch there, normalise it if it is bytes still, and wait until it is there."""
        if self.stream is None:
            return self.brought(batch)
        with torch.cuda.stream(self.stream):
            there = self.brought(batch)
        self.stream.synchronize()
        return there

    def brought(self, batch: Images) -> Images:
        """Have it brought."""
        images, labels = (column.to(self.device, non_blocking=True) for column in batch)
        if images.dtype == torch.uint8:
            images = images.float().mul_(self.factor).add_(self.shift)
        return images, labels


def recipe(task: Task, device: str = "cuda") -> Recipe:
    """Return the transforms of photos; a model's batches are brought to its `device`."""
    is_uint8 = taken_by(task.configuration) == THREAD_UINT8
    finish: Callable[[Images], Images] | None = None
    if task.model is not None:
        finish = OnDevice(device)
    elif is_uint8:
        finish = Normalised(task.batch_size)
    decode = DECODERS[task.configuration["decode"]]
    return Recipe(decode, default_collate if is_uint8 else collate, finish)
