"""Files and components of a batch, placed on a device as Forebay places them."""

from __future__ import annotations

from collections.abc import Sequence

import jpeg_header
import numpy as np
from cuda_driver import Bytes, Device
from numpy.typing import NDArray
from nvjpeg import ALIGN, LUMA, ON_DEVICE, PADDING, YUV, Batch, pitch


class Files:
    """Files in one pinned block of the host, and room for them in one block of the device."""

    def __init__(self, device: Device, files: Sequence[bytes]) -> None:
        self.device = device
        self.headers = [jpeg_header.read(file) for file in files]
        self.sizes = [len(file) for file in files]
        self.offsets, end = [], 0
        for size in self.sizes:
            self.offsets.append(end)
            end += -(-(size + PADDING) // ALIGN) * ALIGN
        self.host = device.pinned(end)
        self.host[:] = 0
        for at, file in zip(self.offsets, files, strict=True):
            self.host[at : at + len(file)] = np.frombuffer(file, np.uint8)
        self.at = device.take(end)

    def upload(self) -> None:
        """Copy the files to the device, and wait."""
        self.device.upload(self.at, self.host)

    def batch(self, backend: int, planes: Planes) -> Batch:
        """Return the batch that a backend decodes from here to there."""
        base = self.at if backend in ON_DEVICE else self.host.ctypes.data
        places = [(base + at, size) for at, size in zip(self.offsets, self.sizes, strict=True)]
        return Batch(places, planes.places, planes.output)

    def close(self) -> None:
        """Free the device's block."""
        self.device.give(self.at)


class Planes:
    """Room for the components of a batch in one block, with `guard` rows after each."""

    def __init__(self, device: Device, files: Files, guard: int = 0, output: int = YUV) -> None:
        self.device, self.output, self.guard = device, output, guard
        # Per component: rows with their guard, bytes from row to row, bytes of a row that count.
        self.shapes: list[list[tuple[int, int, int]]] = []
        self._offsets: list[list[int]] = []
        end = 0
        for header in files.headers:
            sizes = header.planes()[: 1 if output == LUMA else None]
            shapes = [(height + guard, pitch(width), width) for width, height in sizes]
            starts = []
            for rows, step, _ in shapes:
                starts.append(end)
                end += rows * step
            self.shapes.append(shapes)
            self._offsets.append(starts)
        self.size = end
        self.at = device.take(end)
        self.places = [
            [(self.at + at, step) for at, (_, step, _) in zip(starts, shapes, strict=True)]
            for starts, shapes in zip(self._offsets, self.shapes, strict=True)
        ]

    def fill(self, value: int, stream: int) -> None:
        """Queue the writing of one value to all of it."""
        self.device.fill(self.at, value, self.size, stream)

    def read(self, at: int | None = None) -> list[list[NDArray[np.uint8]]]:
        """Return per image its components with their guards, from here or from a copy of it.

        Each is an array of shape (rows, bytes from row to row).
        """
        data: Bytes = self.device.download(at or self.at, self.size)
        return [
            [
                data[start : start + rows * step].reshape(rows, step)
                for start, (rows, step, _) in zip(starts, shapes, strict=True)
            ]
            for starts, shapes in zip(self._offsets, self.shapes, strict=True)
        ]

    def luma(self, at: int | None = None) -> list[NDArray[np.int16]]:
        """Return the images' brightness without guards, of shape (height, width)."""
        found = []
        for planes, shapes in zip(self.read(at), self.shapes, strict=True):
            rows, _, width = shapes[0]
            found.append(planes[0][: rows - self.guard, :width].astype(np.int16))
        return found

    def close(self) -> None:
        """Free it."""
        self.device.give(self.at)
