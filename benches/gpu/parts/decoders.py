"""Decoders to compare Forebay with: nvJPEG alone, torchvision, TorchCodec, nvImageCodec.

A contender decodes the same photos for some time and counts them. What is not installed, or does
not start, is left out, and the caller is told.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bare_loop import Loop, Shape, together
from cuda_driver import Device
from nvjpeg import CORES_DEVICE, ENGINES, ENGINES_DEVICE, Library

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Bare loops whose best is the rate to reach. Files come from the host's memory, as they do in use.
BARE: dict[str, tuple[Shape, ...]] = {
    "engines, uploading": (Shape(ENGINES_DEVICE, 256, 3, uploads=True),),
    "engines, uploading, two threads": (Shape(ENGINES_DEVICE, 256, 2, uploads=True),) * 2,
    "engines, host files": (Shape(ENGINES, 256, 2),),
    "engines, host files, two threads": (Shape(ENGINES, 256, 2),) * 2,
    "cores, uploading": (Shape(CORES_DEVICE, 256, 3, uploads=True),),
    "engines beside cores, uploading": (
        Shape(ENGINES_DEVICE, 256, 2, uploads=True),
        Shape(CORES_DEVICE, 256, 2, uploads=True),
    ),
}

# Decodes for at least that many seconds; returns images, once the device has made them.
Contender = Callable[[float], int]
Decode = Callable[[list[int]], list[Any]]
# Takes the name of a contender that is left out, and the reason.
LeftOut = Callable[[str, Exception], None]
# Backends of nvImageCodec, those of its engines first. Without the list its CPU decoder steps in.
NVIMAGECODEC = ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")


def rivals(
    photos: Sequence[bytes], batch: int, names: Sequence[str], left_out: LeftOut
) -> Iterator[tuple[str, Contender]]:
    """Yield those of the named decoders that start here, with their names."""
    makers = {"torchvision": _torchvision, "TorchCodec": _torchcodec, "nvImageCodec": _nvimagecodec}
    for name in names:
        try:
            decode = makers[name](photos)
        # A library that misses another of its own raises what it likes.
        except Exception as error:
            left_out(name, error)
            continue
        yield f"{name} alone", _alone(decode, len(photos), batch)
        try:
            transformed = _transformed(decode, len(photos), batch)
        # The transforms are torchvision's, also those of others' images.
        except Exception as error:
            left_out(f"{name} with transforms", error)
            continue
        yield f"{name} with transforms", transformed


def bare(photos: Sequence[bytes], left_out: LeftOut) -> Iterator[tuple[str, Contender]]:
    """Yield the loops of nvJPEG alone, from files on the host to components on the device."""
    try:
        device, library = Device(), Library()
    except Exception as error:
        left_out("bare loops", error)
        return
    for name, shapes in BARE.items():
        try:
            loops = [Loop(device, library, shape, photos) for shape in shapes]
        except Exception as error:
            left_out(f"bare, {name}", error)
            continue
        yield f"bare, {name}", _looped(loops)


def _looped(loops: list[Loop]) -> Contender:
    return lambda seconds: together(loops, seconds).images


def _turns(count: int, batch: int) -> Iterator[list[int]]:
    """Yield batch after batch of photos' numbers, without an end."""
    numbers = itertools.cycle(range(count))
    while True:
        yield list(itertools.islice(numbers, batch))


def _timed(work: Callable[[list[int]], object], count: int, batch: int) -> Contender:
    import torch

    turns = _turns(count, batch)

    def run(seconds: float) -> int:
        images, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            work(next(turns))
            images += batch
        torch.cuda.synchronize()
        return images

    return run


def _alone(decode: Decode, count: int, batch: int) -> Contender:
    return _timed(decode, count, batch)


def _transformed(decode: Decode, count: int, batch: int) -> Contender:
    """Return the decoder with what Forebay does to a photo, by torchvision's transforms."""
    import torch
    from torchvision.transforms import v2

    crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    finish = v2.Compose([v2.ToDtype(torch.float16, scale=True), v2.Normalize(MEAN, STD)])

    def work(numbers: list[int]) -> object:
        return finish(torch.stack([crop(image) for image in decode(numbers)])).amax()

    return _timed(work, count, batch)


def _tensors(photos: Sequence[bytes]) -> list[Any]:
    import torch

    return [torch.frombuffer(bytearray(photo), dtype=torch.uint8) for photo in photos]


def _torchvision(photos: Sequence[bytes]) -> Decode:
    from torchvision.io import decode_jpeg

    tensors = _tensors(photos)
    return lambda numbers: decode_jpeg([tensors[at] for at in numbers], device="cuda")


def _torchcodec(photos: Sequence[bytes]) -> Decode:
    # Its images need no FFmpeg, unlike its videos.
    decode = importlib.import_module("torchcodec.decoders").decode_jpeg
    tensors = _tensors(photos)
    return lambda numbers: decode([tensors[at] for at in numbers], device="cuda")


def _nvimagecodec(photos: Sequence[bytes]) -> Decode:
    import torch

    codec = importlib.import_module("nvidia.nvimgcodec")
    kinds = [getattr(codec.BackendKind, name) for name in NVIMAGECODEC]
    decoder = codec.Decoder(backends=[codec.Backend(kind) for kind in kinds])
    print(f"nvImageCodec: backends {', '.join(NVIMAGECODEC)}", flush=True)

    def decode(numbers: list[int]) -> list[Any]:
        found = decoder.decode([codec.CodeStream(photos[at]) for at in numbers])
        if any(image is None for image in found):
            raise ValueError("nvImageCodec left images out")
        # Rows of pixels; a view makes them planes.
        return [torch.as_tensor(image, device="cuda").permute(2, 0, 1) for image in found]

    return decode
