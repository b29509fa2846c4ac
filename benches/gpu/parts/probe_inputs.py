"""Files that the probe decodes: photos, every sampling, rare headers, torn scans.

Pillow makes them all. A sampling that it does not write is made of one that it does: two samplings
with as many blocks in a unit share their scans, so a changed header turns one into the other.
"""

from __future__ import annotations

import io
from pathlib import Path

import jpeg_header
import numpy as np
from numpy.typing import NDArray
from PIL import Image

# A camera's usual quality.
QUALITY = 90
BASELINE, EXTENDED = 0xC0, 0xC1
# A restart marker after so many units.
RESTART = 4
# Bytes of a frame header up to its height, and to its first sampling factor.
HEIGHT_AT, FACTOR_AT = 5, 11


def photos(folder: Path) -> list[bytes]:
    """Return the photos in a folder, in the order of their names."""
    return [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """Draw waves and noise, so that every block has coefficients of its own."""
    rng = np.random.default_rng((seed, width, height))
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(rng.uniform(0.02, 0.3) * x + rng.uniform(0.02, 0.3) * y) for _ in range(3)]
    picture = 128 + 80 * np.stack(waves, axis=-1) + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, sampling: str | int = "4:2:0", **options: object) -> bytes:
    """Return an image as a JPEG file."""
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY, subsampling=sampling, **options)
    return stream.getvalue()


def luma(file: bytes) -> NDArray[np.int16]:
    """Return the brightness that libjpeg decodes, of shape (height, width)."""
    image = Image.open(io.BytesIO(file))
    # Colours as stored: no conversion rounds them.
    image.draft("YCbCr", image.size)
    return np.asarray(image if image.mode == "L" else image.getchannel(0), np.int16)


def patched(
    file: bytes, kind: int | None = None, width: int = 0, height: int = 0, factor: int = 0
) -> bytes:
    """Return a file with another frame: its kind, size, or the first component's factors."""
    changed, at = bytearray(file), jpeg_header.read(file).at
    if kind is not None:
        changed[at + 1] = kind
    if height:
        changed[at + HEIGHT_AT : at + HEIGHT_AT + 2] = height.to_bytes(2, "big")
    if width:
        changed[at + HEIGHT_AT + 2 : at + HEIGHT_AT + 4] = width.to_bytes(2, "big")
    if factor:
        changed[at + FACTOR_AT] = factor
    return bytes(changed)


def samplings(width: int, height: int) -> dict[str, bytes]:
    """Return an image of that size in every sampling that engines decode."""
    image = drawn(width, height)
    files = {
        "444": encoded(image, "4:4:4"),
        "422": encoded(image, "4:2:2"),
        "420": encoded(image, "4:2:0"),
        "gray": encoded(image.convert("L"), 0),
    }
    # Units of 16 by 8 pixels and of 8 by 16 both have four blocks; this many cover the image.
    wide = drawn(-(-width // 8) * 16, -(-height // 16) * 8)
    files["440"] = patched(encoded(wide, "4:2:2"), width=width, height=height, factor=0x12)
    return files


def rare() -> dict[str, bytes]:
    """Return files whose headers some decoders leave to others, by what is rare in them."""
    image = drawn(64, 64)
    gray = encoded(image.convert("L"), 0)
    plain = encoded(image)
    return {
        "plain": plain,
        "restart intervals": encoded(image, restart_marker_blocks=RESTART),
        "extended (0xC1)": patched(plain, kind=EXTENDED),
        "own tables": encoded(image, optimize=True),
        "progressive": encoded(image, progressive=True),
        "gray": gray,
        "gray 2x2": patched(gray, factor=0x22),
        "gray 2x1": patched(gray, factor=0x21),
        # 4 by 1 and 2 by 2 blocks of brightness: units of 32 by 8 pixels instead of 16 by 16.
        "411": patched(plain, width=128, height=32, factor=0x41),
        "440": samplings(64, 64)["440"],
        "CMYK": encoded(image.convert("CMYK"), 0),
        "RGB stored": encoded(image, "4:4:4", keep_rgb=True),
        "1x1": encoded(drawn(1, 1)),
        "8x8": encoded(drawn(8, 8)),
        "15x17": encoded(drawn(15, 17)),
        "16384x16": encoded(drawn(16384, 16)),
        "16x16384": encoded(drawn(16, 16384)),
        "16400x16": encoded(drawn(16400, 16)),
        "EXIF of 60 kB": encoded(image, exif=b"Exif\0\0" + bytes(60_000)),
        "comment": encoded(image, comment=b"x" * 3000),
    }


def torn() -> dict[str, bytes]:
    """Return broken files, the mildest first; all have a whole header."""
    file = encoded(drawn(500, 375))
    scan = jpeg_header.scan_offset(file)
    middle = (scan + len(file)) // 2
    noise = np.random.default_rng(0).integers(0, 255, len(file) - 2 - scan, np.uint8).tobytes()
    return {
        "no end marker": file[:-2],
        "cut in half": file[:middle],
        "cut in half, end marker": file[:middle] + file[-2:],
        "half zeros": file[:middle] + bytes(len(file) - 2 - middle) + file[-2:],
        "noise": file[:scan] + noise + file[-2:],
        "a marker inside": file[:middle] + b"\xff\xd9" + file[middle:],
        "no scan data": file[:scan] + file[-2:],
        "header of 4000x4000": patched(file, width=4000, height=4000),
        "header of 8x8": patched(file, width=8, height=8),
    }
