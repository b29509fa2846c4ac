"""Order of JPEG engines and streams: when a decode reads its files and writes its components.

E3 lets the upload of a batch's files wait behind a long kernel, and looks which bytes the decode
read: those before the upload or those after it. E4 does the same with the memory it writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import probe_inputs
from cuda_driver import Device
from numpy.typing import NDArray
from nvjpeg import BACKENDS, CORES_DEVICE, ENGINES, ENGINES_DEVICE, Decoder, Library, Refused
from placed import Files, Planes
from probe_lines import Line, attempt, median

# A batch of a few, so that a run takes little time; more than there are engines.
COUNT = 16
# A kernel that long cannot be over by chance when the host gets to its next call.
HOLD_MS = 60.0
TURNS = 3
# A value that no decoded photo consists of.
MARK = 7
# A decode reads a file's old bytes or its new ones; all that fits neither is torn.
OLD, NEW, MARKED, OTHER = "old", "new", "marked", "other"

Luma = list[NDArray[np.int16]]
Act = Callable[[], None]


class Bench:
    """Two sets of photos in turn at one place of a device, and the decode of each in good order."""

    def __init__(self, folder: Path, backend: int) -> None:
        photos = probe_inputs.photos(folder)[: 2 * COUNT]
        pairs = [sorted(pair, key=len) for pair in zip(photos[::2], photos[1::2], strict=True)]
        self.device, self.backend = Device(), backend
        self.decoder = Decoder(Library(), backend)
        self.work, self.side = self.device.stream(), self.device.stream()
        # A new file is the longer of two: an old one is whole within its length.
        self.new = Files(self.device, [new for _, new in pairs])
        self.old = self.new.host.copy()
        self.old[:] = 0
        for at, (old, _) in zip(self.new.offsets, pairs, strict=True):
            self.old[at : at + len(old)] = np.frombuffer(old, np.uint8)
        self.planes = Planes(self.device, self.new)
        self.batch = self.new.batch(backend, self.planes)
        self.expected = {
            OLD: self._decoded(Files(self.device, [old for old, _ in pairs])),
            NEW: self._decoded(self.new),
        }

    def _decoded(self, files: Files) -> Luma:
        """Return the images of files that are in place before the call."""
        files.upload()
        batch = files.batch(self.backend, self.planes)
        self.decoder.begin(batch)
        self.decoder.decode(batch, self.work)
        self.device.finish()
        return self.planes.luma()

    def decode(self) -> float:
        """Queue the decode on the work stream; return the call's milliseconds."""
        self.decoder.begin(self.batch)
        begin = time.perf_counter()
        self.decoder.decode(self.batch, self.work)
        return (time.perf_counter() - begin) * 1000

    def seen(self, found: Luma | None = None) -> dict[str, int]:
        """Count the images by the bytes that their decode read."""
        found = self.planes.luma() if found is None else found
        counts = dict.fromkeys((OLD, NEW, MARKED, OTHER), 0)
        for at, image in enumerate(found):
            # An old file is followed by other bytes, so its end may differ.
            part = slice(0, image.shape[0] // 2)
            if np.array_equal(image[part], self.expected[NEW][at][part]):
                counts[NEW] += 1
            elif np.array_equal(image[part], self.expected[OLD][at][part]):
                counts[OLD] += 1
            else:
                counts[MARKED if (image == MARK).all() else OTHER] += 1
        return {name: count for name, count in counts.items() if count}


def _repeat(turn: Callable[[], tuple[float, dict[str, int]]]) -> Line:
    """Take turns; return the images by what was seen, and the call's milliseconds."""
    total: dict[str, int] = {}
    calls: list[float] = []
    refused = ""
    for _ in range(TURNS):
        try:
            spent, counts = turn()
        except Refused as error:
            refused = f"; refused: {error}"
            continue
        calls.append(spent)
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    words = ", ".join(f"{count} {name}" for name, count in total.items()) or "nothing"
    call = f"call {median(calls):.2f} ms" if calls else "no call"
    return Line(f"{words}; {call}{refused}", {"seen": total, "call_ms": calls, "refused": refused})


def inputs(folder: Path) -> Iterator[Line]:
    """E3: files uploaded behind a kernel of some time."""
    for backend in (ENGINES_DEVICE, CORES_DEVICE):
        yield from attempt(BACKENDS[backend], _inputs, folder, backend)


def _inputs(folder: Path, backend: int) -> Iterator[Line]:
    bench = Bench(folder, backend)
    device, new = bench.device, bench.new
    event = device.event()

    def same_stream() -> None:
        device.hold(bench.work, HOLD_MS)
        device.copy_in(new.at, new.host, bench.work)

    def behind_event() -> None:
        device.hold(bench.side, HOLD_MS)
        device.copy_in(new.at, new.host, bench.side)
        device.record(event, bench.side)
        device.after(bench.work, event)

    def host_waits() -> None:
        behind_event()
        device.wait(event)

    ways = {
        "upload behind an event": behind_event,
        "upload on the same stream": same_stream,
        "host waits for the upload": host_waits,
    }
    for before, old in (("old files", bench.old), ("zeros", np.zeros_like(bench.old))):
        for name, way in ways.items():

            def turn(old: NDArray[np.uint8] = old, way: Act = way) -> tuple[float, dict[str, int]]:
                device.upload(new.at, old)
                bench.planes.fill(MARK, bench.work)
                device.finish()
                way()
                try:
                    spent = bench.decode()
                finally:
                    device.finish()
                return spent, bench.seen()

            line = _repeat(turn)
            yield Line(
                f"{BACKENDS[backend]}; {name}, over {before}: {line.text}",
                {"backend": backend, "way": name, "before": before, **line.figures},
            )


def outputs(folder: Path) -> Iterator[Line]:
    """E4: components written before and after other work of the stream."""
    for backend in (ENGINES_DEVICE, CORES_DEVICE, ENGINES):
        yield from attempt(BACKENDS[backend], _outputs, folder, backend)


def _outputs(folder: Path, backend: int) -> Iterator[Line]:
    bench = Bench(folder, backend)
    device, planes = bench.device, bench.planes
    event, copy = device.event(), device.take(planes.size)
    device.upload(bench.new.at, bench.new.host)

    def before_same() -> float:
        device.hold(bench.work, HOLD_MS)
        planes.fill(MARK, bench.work)
        return bench.decode()

    def before_event() -> float:
        device.hold(bench.side, HOLD_MS)
        planes.fill(MARK, bench.side)
        device.record(event, bench.side)
        device.after(bench.work, event)
        return bench.decode()

    def clean_decode() -> float:
        planes.fill(MARK, bench.work)
        device.finish()
        return bench.decode()

    def after_same() -> float:
        spent = clean_decode()
        device.copy(copy, planes.at, planes.size, bench.work)
        return spent

    def after_event() -> float:
        spent = clean_decode()
        device.record(event, bench.work)
        device.after(bench.side, event)
        device.copy(copy, planes.at, planes.size, bench.side)
        return spent

    def after_host() -> float:
        spent = clean_decode()
        device.record(event, bench.work)
        device.wait(event)
        device.copy(copy, planes.at, planes.size, bench.side)
        return spent

    ways = {
        "a fill before it on the stream": (before_same, planes.at),
        "a fill before it, behind an event": (before_event, planes.at),
        "a copy after it on the stream": (after_same, copy),
        "a copy after its event, on another": (after_event, copy),
        "a copy once the host saw its event": (after_host, copy),
    }
    for name, (way, place) in ways.items():

        def turn(
            way: Callable[[], float] = way, place: int = place
        ) -> tuple[float, dict[str, int]]:
            try:
                spent = way()
            finally:
                device.finish()
            return spent, bench.seen(planes.luma(place))

        line = _repeat(turn)
        yield Line(
            f"{BACKENDS[backend]}; {name}: {line.text}",
            {"backend": backend, "way": name, **line.figures},
        )
