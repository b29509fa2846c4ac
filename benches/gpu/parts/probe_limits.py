"""Limits of nvJPEG: bytes it writes beside components (E6), headers it takes (E7), torn files (E8).

Brightness is compared with libjpeg's; a decoder's inverse transform may round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import probe_inputs
from cuda_driver import Device, DriverError
from numpy.typing import NDArray
from nvjpeg import (
    BACKENDS,
    CORES_DEVICE,
    ENGINES,
    ENGINES_DEVICE,
    LUMA,
    YUV,
    Decoder,
    Library,
    Refused,
)
from placed import Files, Planes
from probe_lines import Line, attempt, failure

# Rows after each component whose change is a write outside: more than any unit has.
GUARD_ROWS = 64
# A value that few decoded bytes have.
CANARY = 0xA5
# Widths and heights around whole blocks and units, and a photo's.
SIZES = (
    (1, 1),
    (7, 9),
    (8, 8),
    (15, 17),
    (17, 33),
    (31, 16),
    (33, 31),
    (100, 75),
    (255, 257),
    (257, 255),
    (375, 500),
    (499, 373),
    (500, 375),
    (1023, 769),
)
# Photos beside a torn file.
OTHERS = 7


class Decode:
    """Decodes of one batch after the other on one backend, each waited for."""

    def __init__(self, backend: int) -> None:
        self.device, self.backend = Device(), backend
        self.decoder = Decoder(Library(), backend)
        self.stream = self.device.stream()

    def __call__(self, files: list[bytes], guard: int = 0, output: int = YUV) -> Planes:
        """Decode files to canary-filled components and return them."""
        placed = Files(self.device, files)
        planes = Planes(self.device, placed, guard, output)
        placed.upload()
        planes.fill(CANARY, self.stream)
        self.device.finish()
        batch = placed.batch(self.backend, planes)
        try:
            self.decoder.begin(batch)
            self.decoder.decode(batch, self.stream)
        finally:
            # A refused batch may have begun.
            self.device.finish()
        placed.close()
        return planes


def _apart(found: NDArray[np.int16], file: bytes) -> str:
    """Return the difference from libjpeg's brightness, at most and on average."""
    try:
        steps = np.abs(found - probe_inputs.luma(file))
    except (OSError, ValueError):
        return "libjpeg differs in shape or refuses it"
    return f"{steps.max()} at most, {steps.mean():.2f} on average"


def outside(folder: Path) -> Iterator[Line]:
    """E6: writes outside of components, first by today's default."""
    del folder
    for backend in (ENGINES, ENGINES_DEVICE, CORES_DEVICE):
        yield from attempt(BACKENDS[backend], _outside, backend)


def _outside(backend: int) -> Iterator[Line]:
    decode = Decode(backend)
    files: dict[str, list[bytes]] = {}
    for size in SIZES:
        for name, file in probe_inputs.samplings(*size).items():
            files.setdefault(name, []).append(file)
    for name, group in files.items():
        yield from attempt(name, _sampling, decode, name, group)
    mixed = [file for name, group in files.items() if name != "gray" for file in group]
    yield from attempt("all samplings at once", _sampling, decode, "all at once", mixed)


def _sampling(decode: Decode, name: str, files: list[bytes]) -> Iterator[Line]:
    """Decode what is taken at once; if that is refused, one by one, and say what was."""
    taken = [file for file in files if decode.decoder.takes(file) == "yes"]
    refused = len(files) - len(taken)
    output = LUMA if name == "gray" else YUV
    try:
        touched = [_touched(decode, taken, output)] if taken else []
    except Refused:
        touched = []
        for file in taken:
            try:
                touched.append(_touched(decode, [file], output))
            except Refused:
                refused += 1
    if not touched:
        yield Line(f"{BACKENDS[decode.backend]}; {name}: all of {len(files)} refused")
        return
    rows, columns, apart = (max(values) for values in zip(*touched, strict=True))
    yield Line(
        f"{BACKENDS[decode.backend]}; {name}: {rows} rows below, {columns} columns beyond; "
        f"brightness differs by {apart} at most; {refused} of {len(files)} refused, "
        f"{'at once' if len(touched) == 1 else 'one by one'}",
        {
            "backend": decode.backend,
            "sampling": name,
            "rows": rows,
            "columns": columns,
            "apart": apart,
            "refused": refused,
        },
    )


def _touched(decode: Decode, files: list[bytes], output: int) -> tuple[int, int, int]:
    """Return rows below and columns beyond components that changed, and brightness's steps."""
    planes = decode(files, GUARD_ROWS, output)
    rows = columns = 0
    for image, shapes in zip(planes.read(), planes.shapes, strict=True):
        for plane, (height, _, width) in zip(image, shapes, strict=True):
            below = np.argwhere(plane[height - GUARD_ROWS :] != CANARY)
            rows = max(rows, int(below[:, 0].max()) + 1 if len(below) else 0)
            beyond = np.argwhere(plane[: height - GUARD_ROWS, width:] != CANARY)
            columns = max(columns, int(beyond[:, 1].max()) + 1 if len(beyond) else 0)
    apart = 0
    for found, file in zip(planes.luma(), files, strict=True):
        apart = max(apart, int(np.abs(found - probe_inputs.luma(file)).max()))
    planes.close()
    return rows, columns, apart


def headers(folder: Path) -> Iterator[Line]:
    """E7: rare headers, and the backends that take and decode them."""
    del folder
    for backend in (ENGINES_DEVICE, CORES_DEVICE, ENGINES):
        yield from attempt(BACKENDS[backend], _headers, backend)


def _headers(backend: int) -> Iterator[Line]:
    decode = Decode(backend)
    answers: dict[str, dict[str, str]] = {}
    for name, file in probe_inputs.rare().items():
        said = decode.decoder.takes(file)
        output = LUMA if name.startswith("gray") else YUV
        result = "not tried"
        if said == "yes":
            try:
                planes = decode([file], output=output)
                result = _apart(planes.luma()[0], file)
                planes.close()
            except Refused as error:
                result = failure(error)
        answers[name] = {"takes": said, "brightness": result}
    taken = [name for name, answer in answers.items() if answer["takes"] == "yes"]
    left = [name for name, answer in answers.items() if answer["takes"] == "no"]
    refused = {
        name: answer["takes"]
        for name, answer in answers.items()
        if answer["takes"] not in ("yes", "no")
    }
    name = BACKENDS[backend]
    yield Line(f"{name}: takes {', '.join(taken)}", {"backend": backend, "answers": answers})
    yield Line(f"{name}: leaves {', '.join(left) or 'none'}; refuses {refused or 'none'}")
    results = {name: answers[name]["brightness"] for name in taken}
    alike = [name for name, result in results.items() if result[:2] in ("0 ", "1 ", "2 ")]
    others = {name: result for name, result in results.items() if name not in alike}
    yield Line(f"{name}: as libjpeg within 2 steps: {len(alike)} of {len(taken)}; others {others}")


def torn(folder: Path) -> Iterator[Line]:
    """E8: torn files beside whole ones; the context afterwards."""
    photos = probe_inputs.photos(folder)[:OTHERS]
    for backend in (ENGINES_DEVICE, CORES_DEVICE, ENGINES):
        yield from attempt(BACKENDS[backend], _torn, backend, photos)


def _torn(backend: int, photos: list[bytes]) -> Iterator[Line]:
    decode = Decode(backend)
    expected = decode(photos).luma()
    for name, file in probe_inputs.torn().items():
        result = "decoded"
        try:
            planes = decode([*photos[:3], file, *photos[3:]])
            found = planes.luma()
            planes.close()
            found.pop(3)
            right = sum(map(np.array_equal, found, expected))
            result = f"decoded, {right} of {OTHERS} others right"
        except Refused as error:
            result = f"batch refused: {failure(error)}"
        except DriverError as error:
            result = f"the stream failed: {failure(error)}"
        try:
            again = decode(photos).luma()
            after = f"{sum(map(np.array_equal, again, expected))} of {OTHERS} right"
        except (Refused, DriverError) as error:
            after = failure(error)
        yield Line(
            f"{BACKENDS[backend]}; {name}: {result}; next batch: {after}",
            {"backend": backend, "torn": name, "result": result, "after": after},
        )
