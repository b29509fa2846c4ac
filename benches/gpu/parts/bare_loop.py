"""A loop of nvJPEG's batched decode and nothing else: the rate that Forebay is held to.

Batches take turns with states, each with its own files and planes. A state's next batch waits on
the host for the one before. The loop adds no conversion, no allocation and no other wait.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_driver import Device
from nvjpeg import CORES_DEVICE, ENGINES, ENGINES_DEVICE, HYBRID, Decoder, Library
from placed import Files, Planes

NAMES = {
    ENGINES_DEVICE: "engines, device files",
    ENGINES: "engines, host files",
    CORES_DEVICE: "cores, device files",
    HYBRID: "host and cores",
}


@dataclass(frozen=True)
class Shape:
    """A loop: its backend, batch, states in turn; memory reserved; files copied in by the loop."""

    backend: int
    batch: int
    states: int
    is_reserved: bool = False
    uploads: bool = False
    flags: int = 0

    def __str__(self) -> str:
        more = (", reserved" * self.is_reserved) + (", uploading" * self.uploads)
        flags = f", flags {self.flags}" if self.flags else ""
        return f"{NAMES[self.backend]}, batches of {self.batch}, states {self.states}{more}{flags}"


@dataclass
class Round:
    """One round of a loop: images, seconds, CPU seconds, and seconds in nvJPEG's two calls."""

    images: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    begin_seconds: float = 0.0
    decode_seconds: float = 0.0
    batches: int = 0

    def figures(self) -> dict[str, float]:
        """Return rates: images/s, cores in use, milliseconds of the calls per batch."""
        each = 1000 / max(self.batches, 1)
        return {
            "images_per_second": round(self.images / self.seconds, 1),
            "cores": round(self.cpu_seconds / self.seconds, 3),
            "begin_ms": round(self.begin_seconds * each, 3),
            "decode_ms": round(self.decode_seconds * each, 3),
        }


class Loop:
    """A decoder with its batches, ready to run; for one thread at a time."""

    def __init__(
        self, device: Device, library: Library, shape: Shape, photos: Sequence[bytes]
    ) -> None:
        self.device, self.shape = device, shape
        self.decoder = Decoder(library, shape.backend, shape.states, shape.flags)
        self.work, self.copies = device.stream(), device.stream()
        count = shape.batch * shape.states
        files = [photos[at % len(photos)] for at in range(count)]
        parts = [files[at : at + shape.batch] for at in range(0, count, shape.batch)]
        self.files = [Files(device, part) for part in parts]
        for placed in self.files:
            placed.upload()
        self.planes = [Planes(device, placed) for placed in self.files]
        pairs = zip(self.files, self.planes, strict=True)
        self.batches = [placed.batch(shape.backend, planes) for placed, planes in pairs]
        self.ended = [device.event() for _ in parts]
        self.copied = [device.event() for _ in parts]
        if shape.is_reserved:
            headers = self.files[0].headers
            width = max(header.width for header in headers)
            self.decoder.reserve(shape.batch, width, max(header.height for header in headers))

    def run(self, seconds: float) -> Round:
        """Decode batch after batch for that time, and wait for the last."""
        done, shape, device = Round(), self.shape, self.device
        device.bind()
        cpu, begin = cpu_seconds(), time.perf_counter()
        if shape.uploads:
            self._upload(0)
        while (now := time.perf_counter()) - begin < seconds:
            turn = done.batches % shape.states
            if shape.uploads:
                # The engines do not wait for a stream, so the host does.
                device.wait(self.copied[turn])
            elif done.batches >= shape.states:
                device.wait(self.ended[turn])
            now = time.perf_counter()
            self.decoder.begin(self.batches[turn], turn)
            begun = time.perf_counter()
            self.decoder.decode(self.batches[turn], self.work, turn)
            done.begin_seconds += begun - now
            done.decode_seconds += time.perf_counter() - begun
            device.record(self.ended[turn], self.work)
            done.batches += 1
            if shape.uploads:
                turn = done.batches % shape.states
                if done.batches >= shape.states:
                    device.wait(self.ended[turn])
                self._upload(turn)
        device.finish(self.work)
        device.finish(self.copies)
        done.seconds = time.perf_counter() - begin
        done.cpu_seconds = cpu_seconds() - cpu
        done.images = done.batches * shape.batch
        return done

    def _upload(self, turn: int) -> None:
        files = self.files[turn]
        self.device.copy_in(files.at, files.host, self.copies)
        self.device.record(self.copied[turn], self.copies)

    def close(self) -> None:
        """Free it."""
        self.device.finish()
        self.decoder.close()
        for placed, planes in zip(self.files, self.planes, strict=True):
            placed.close()
            planes.close()


def together(loops: Sequence[Loop], seconds: float) -> Round:
    """Run loops at once, each in a thread; return their sum.

    Raises
    ------
    Exception
        The first of a loop, once all have ended: the others' images are no rate of all.
    """
    rounds: list[Round] = []
    failed: list[Exception] = []

    def guarded(loop: Loop) -> None:
        try:
            rounds.append(loop.run(seconds))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(loop,)) for loop in loops]
    cpu, begin = cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    total = Round(seconds=time.perf_counter() - begin, cpu_seconds=cpu_seconds() - cpu)
    for done in rounds:
        total.images += done.images
        total.batches += done.batches
        total.begin_seconds += done.begin_seconds
        total.decode_seconds += done.decode_seconds
    return total


def cpu_seconds() -> float:
    """CPU seconds of the process, nvJPEG's threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
