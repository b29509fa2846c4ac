"""A JPEG file's frame header: size, process and the sampling of its components."""

from __future__ import annotations

from dataclasses import dataclass

# Markers: frames but for tables and extensions among them, and the start of the scan.
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SCAN = 0xDA


@dataclass(frozen=True)
class Header:
    """A frame: its marker's offset and kind, size in pixels, and each component's sampling."""

    at: int
    kind: int
    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]

    def planes(self) -> list[tuple[int, int]]:
        """Return the components' widths and heights."""
        if len(self.sampling) == 1:
            # The factors of a lone component mean nothing.
            return [(self.width, self.height)]
        across, down = (max(factors) for factors in zip(*self.sampling, strict=True))
        return [
            (-(-self.width * h // across), -(-self.height * v // down)) for h, v in self.sampling
        ]


def read(file: bytes) -> Header:
    """Return the frame header of a file.

    Raises
    ------
    ValueError
        If there is none before the scan.
    """
    at = 2
    while at + 4 <= len(file) and file[at] == 0xFF:
        kind = file[at + 1]
        if kind in FRAMES:
            height = int.from_bytes(file[at + 5 : at + 7], "big")
            width = int.from_bytes(file[at + 7 : at + 9], "big")
            factors = (file[at + 11 + 3 * part] for part in range(file[at + 9]))
            sampling = tuple((factor >> 4, factor & 15) for factor in factors)
            return Header(at, kind, width, height, sampling)
        if kind == SCAN:
            break
        at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    raise ValueError("no frame header before the scan")


def scan_offset(file: bytes) -> int:
    """Return the offset of the first coded byte of the first scan."""
    at = file.index(bytes((0xFF, SCAN)), read(file).at)
    return at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
