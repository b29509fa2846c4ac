"""Photos as torch's users decode them, for every contender that leaves that to them.

Its rule: as torchvision's references do: decode, crop and flip while pixels are bytes, normalise a
whole batch at once. Both decoders are tried, and the faster one counts.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import torch
from PIL import Image
from pixels import MEAN, SIZE, STD
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

CROP_AND_FLIP = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
TO_TENSOR = v2.ToImage()
NORMALISE = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

Decode = Callable[[bytes], torch.Tensor]


def with_pillow(data: bytes) -> torch.Tensor:
    """Decode and crop by Pillow, as ImageFolder does by default."""
    pixels: torch.Tensor = TO_TENSOR(CROP_AND_FLIP(Image.open(io.BytesIO(data)).convert("RGB")))
    return pixels


def with_torchvision(data: bytes) -> torch.Tensor:
    """Decode by torchvision's own libjpeg-turbo, crop on tensors."""
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels: torch.Tensor = CROP_AND_FLIP(decode_jpeg(encoded, mode=ImageReadMode.RGB))
    return pixels


DECODERS: dict[str, Decode] = {"pillow": with_pillow, "torchvision": with_torchvision}


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack a batch while it is still bytes, then normalise it in one go."""
    images = torch.stack([image for image, _ in samples])
    return NORMALISE(images), torch.tensor([label for _, label in samples])


def columns(samples: list[tuple[bytes, ...]]) -> list[list[bytes]]:
    """Turn a batch of samples of bytes into one column for each field."""
    return [list(column) for column in zip(*samples, strict=True)]
