"""A trainer's work on a batch: it reads every byte; an epoch's digest describes the content.

The code is the same for all contenders, so that they differ only in how batches are made. Bytes get
a CRC-32; images get their largest element, at the speed of memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from accelerator import Touched

# A batch: of bytes one column for each field, of images the images and the labels.
Batch = Sequence[Any]
Crc = Callable[[Any], int]
CRC_SUM_BITS = 64


def crc_of(name: str) -> Crc:
    """Return the CRC-32 of isal, several times as fast, or of zlib; both say the same."""
    if name == "isal":
        from isal import isal_zlib

        faster: Crc = isal_zlib.crc32
        return faster
    return zlib.crc32


@dataclass
class Digest:
    """Content of an epoch, to compare contenders by."""

    samples: int = 0
    payload_bytes: int = 0
    crc_sum: int = 0
    label_sum: int = 0
    image_mean: float = 0.0


def toucher(images: bool, crc: Crc) -> Callable[[Batch], Touched]:
    """Return the function that reads every byte of a batch."""
    return touch_images if images else lambda batch: touch_raw(batch, crc)


def touch_raw(batch: Batch, crc: Crc) -> Touched:
    """Take a checksum over every byte of a batch."""
    read = 0
    for column in batch:
        for record in column:
            crc(record)
            read += len(record)
    return Touched(len(batch[0]), read)


def touch_images(batch: Batch) -> Touched:
    """Read every byte of a batch, at the speed of memory."""
    images, labels = batch
    array_of(images).max().item()
    labels.sum().item()
    return Touched(len(labels), images.nbytes + labels.nbytes)


def array_of(images: Any) -> Any:
    """Return images as NumPy has them, whose one thread is the same for all; a GPU's stay there."""
    return images if isinstance(images, np.ndarray) or images.is_cuda else images.numpy()


def counter(images: bool, crc: Crc) -> Callable[[Batch, Digest], None]:
    """Return the function that adds a batch to a digest; the order of samples does not matter."""
    return count_images if images else lambda batch, digest: count_raw(batch, digest, crc)


def count_raw(batch: Batch, digest: Digest, crc: Crc) -> None:
    """Count a batch of bytes."""
    digest.samples += len(batch[0])
    for column in batch:
        for record in column:
            digest.payload_bytes += len(record)
            digest.crc_sum = (digest.crc_sum + crc(record)) % (1 << CRC_SUM_BITS)


def count_images(batch: Batch, digest: Digest) -> None:
    """Count a batch of images; crops are random, so only their mean can be compared."""
    images, labels = batch
    before = digest.image_mean * digest.samples
    digest.samples += len(labels)
    digest.label_sum += int(labels.sum())
    array = array_of(images)
    mean = array.mean(dtype="f8") if isinstance(array, np.ndarray) else array.double().mean()
    digest.image_mean = (before + float(mean) * len(labels)) / digest.samples
