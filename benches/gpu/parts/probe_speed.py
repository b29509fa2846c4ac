"""Speed of nvJPEG's batched decode (E5): by backend, batch, states, threads; who waits for whom."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import probe_inputs
from bare_loop import NAMES, Loop, Round, Shape, together
from cuda_driver import Device
from nvjpeg import CORES_DEVICE, ENGINES, ENGINES_DEVICE, HYBRID, Library
from probe_lines import Line, attempt, median

ROUNDS = 3
# A few batches: at 5,000 images/s one of 256 takes 51 ms.
ROUND_SECONDS, WARM_UP_SECONDS = 0.2, 0.1
BATCH = 256
# A kernel that ends long after any call that does not wait for it.
HOLD_MS = 60.0
# The loops that nobody has seen yet, in the order of their worth. Each costs two seconds, of which
# a handle takes 0.6. Answers to others are in `benches/results/2026-11-27-h100/probe.json`.
SHAPES = (
    Shape(ENGINES, 1024, 2),
    # A multiple of an H100's seven engines.
    Shape(ENGINES, 252, 2),
    Shape(HYBRID, BATCH, 2),
)
# Loops at once, each in a thread with its own handle and states.
TEAMS = {
    "two threads, host files": (Shape(ENGINES, BATCH, 2),) * 2,
    "engines, host files, beside cores": (
        Shape(ENGINES, BATCH, 2),
        Shape(CORES_DEVICE, BATCH, 2, uploads=True),
    ),
}


def loops(folder: Path) -> Iterator[Line]:
    """E5: loops of one thread."""
    device, library, photos = _start(folder)
    for shape in SHAPES:
        yield from attempt(str(shape), _loop, device, library, (shape,), photos, str(shape))


def teams(folder: Path) -> Iterator[Line]:
    """E5: loops of several threads."""
    device, library, photos = _start(folder)
    for name, shapes in TEAMS.items():
        text = f"{name} ({shapes[0]})"
        yield from attempt(text, _loop, device, library, shapes, photos, text)


def _start(folder: Path) -> tuple[Device, Library, list[bytes]]:
    return Device(), Library(), probe_inputs.photos(folder)


def _loop(
    device: Device, library: Library, shapes: Sequence[Shape], photos: list[bytes], name: str
) -> Iterator[Line]:
    made = [Loop(device, library, shape, photos) for shape in shapes]
    run: Callable[[float], Round] = made[0].run
    if len(made) > 1:

        def run(seconds: float) -> Round:
            return together(made, seconds)

    run(WARM_UP_SECONDS)
    rounds = [run(ROUND_SECONDS).figures() for _ in range(ROUNDS)]
    figures = {key: median([one[key] for one in rounds]) for key in rounds[0]}
    for loop in made:
        loop.close()
    yield Line(
        f"{name}: {figures['images_per_second']:,.0f} images/s, {figures['cores']:.2f} cores, "
        f"calls {figures['begin_ms']:.2f} + {figures['decode_ms']:.2f} ms",
        {"loop": name, **figures, "rounds": rounds},
    )


def waits(folder: Path) -> Iterator[Line]:
    """E5: time of the call by what is queued before it."""
    device, library, photos = _start(folder)
    for backend in (ENGINES_DEVICE, CORES_DEVICE, ENGINES):
        yield from attempt(NAMES[backend], _waits, device, library, backend, photos)


def _waits(device: Device, library: Library, backend: int, photos: list[bytes]) -> Iterator[Line]:
    loop = Loop(device, library, Shape(backend, BATCH, 3), photos)
    side = device.stream()

    def call(turn: int) -> float:
        loop.decoder.begin(loop.batches[turn], turn)
        begin = time.perf_counter()
        loop.decoder.decode(loop.batches[turn], loop.work, turn)
        return (time.perf_counter() - begin) * 1000

    calls: dict[str, list[float]] = {}
    for turn in range(ROUNDS + 1):
        found: dict[str, float] = {}
        begin = time.perf_counter()
        found["idle"] = call(0)
        device.finish()
        found["idle, to its end"] = (time.perf_counter() - begin) * 1000
        device.hold(loop.work, HOLD_MS)
        found["stream busy"] = call(0)
        device.finish()
        device.hold(side, HOLD_MS)
        found["another stream busy"] = call(0)
        device.finish()
        for at, name in enumerate(("first of three", "second", "third")):
            found[name] = call(at)
        device.finish()
        # The first turn warms up.
        if turn:
            for name, spent in found.items():
                calls.setdefault(name, []).append(spent)
    figures = {name: median(values) for name, values in calls.items()}
    loop.close()
    words = ", ".join(f"{name} {spent:.2f}" for name, spent in figures.items())
    yield Line(
        f"{NAMES[backend]}: ms of a call of {BATCH}: {words}",
        {"backend": backend, "call_ms": figures},
    )


def torchvision(folder: Path) -> Iterator[Line]:
    """E5: torchvision's batched decode, for scale."""
    import torch
    from torchvision.io import decode_jpeg

    photos = probe_inputs.photos(folder)
    tensors = [
        torch.frombuffer(bytearray(photos[at % len(photos)]), dtype=torch.uint8)
        for at in range(BATCH)
    ]
    rates = []
    for turn in range(ROUNDS + 1):
        torch.cuda.synchronize()
        begin, batches = time.perf_counter(), 0
        while time.perf_counter() - begin < ROUND_SECONDS:
            decode_jpeg(tensors, device="cuda")
            batches += 1
        torch.cuda.synchronize()
        if turn:
            rates.append(batches * BATCH / (time.perf_counter() - begin))
    yield Line(
        f"torchvision decode_jpeg, to RGB: {statistics.median(rates):,.0f} images/s",
        {"loop": "torchvision", "images_per_second": median(rates)},
    )
