"""Makes photo-like JPEG images with labels, for trying Forebay without a data set.

The images cost as much as photographs. Size, quality and detail are chosen so that a file is about
as large, and about as slow to decode, as a photograph of that size. The class shows in the colours,
so a model trained on them learns something.
"""

from __future__ import annotations

import argparse
import colorsys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from tqdm import tqdm

# ImageNet's most common size and a camera's usual quality.
WIDTH, HEIGHT, QUALITY = 500, 375, 90
CLASSES = 10
SMALL = (WIDTH // 4, HEIGHT // 4)
# Photographs have detail at every scale, the coarser the stronger: cell sizes in pixels
# of the small drawing.
CELLS = (60, 30, 15, 7, 3)
# Standard deviation of the finest detail in grey levels: files of about 85 kB.
GRAIN = 16.0
# The grain is cut out of one square of noise: drawing fresh noise would take most of the time.
GRAIN_SIDE = 1024
SHAPES = 6


@cache
def grain() -> NDArray[np.float32]:
    """Return the square of noise that every image takes its grain from."""
    noise = np.random.default_rng(0).standard_normal((GRAIN_SIDE, GRAIN_SIDE, 3), np.float32)
    return noise * np.float32(GRAIN)


def photo(seed: int, label: int) -> Image.Image:
    """Return one image of class `label`; equal arguments give equal pixels."""
    rng = np.random.default_rng((seed, label))
    hue = (label + rng.uniform(-0.3, 0.3)) / CLASSES
    base = np.array(colorsys.hsv_to_rgb(hue % 1.0, 0.5, 0.55), np.float32) * 255
    canvas = Image.new("RGB", SMALL, tuple(int(level) for level in base))
    draw = ImageDraw.Draw(canvas)
    for _ in range(SHAPES):
        x, y = rng.integers(0, SMALL[0]), rng.integers(0, SMALL[1])
        w, h = rng.integers(5, 50, 2)
        colour = colorsys.hsv_to_rgb(rng.normal(hue, 0.05) % 1.0, *rng.uniform(0.3, 1.0, 2))
        draw.ellipse((x - w, y - h, x + w, y + h), tuple(int(part * 255) for part in colour))
    # Everything coarse is drawn small and enlarged once, which is what makes this quick.
    pixels = np.asarray(canvas, np.float32)
    for cell in CELLS:
        size = (SMALL[1] // cell + 2, SMALL[0] // cell + 2, 3)
        coarse = Image.fromarray(rng.integers(0, 256, size, np.uint8))
        smooth = np.asarray(coarse.resize(SMALL, Image.Resampling.BICUBIC), np.float32)
        pixels = pixels + (smooth - 127.5) * np.float32(cell**0.4 / 12)
    levels = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    pixels = np.asarray(levels.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    top, left = rng.integers(0, GRAIN_SIDE - HEIGHT), rng.integers(0, GRAIN_SIDE - WIDTH)
    pixels = pixels + grain()[top : top + HEIGHT, left : left + WIDTH]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write(number: int, folder: Path) -> int:
    """Write sample `number`, an image and its class, and return the image's bytes."""
    label = number % CLASSES
    path = folder / f"{number:08d}.jpg"
    photo(number, label).save(path, quality=QUALITY)
    path.with_suffix(".cls").write_text(str(label))
    return path.stat().st_size


def make(folder: Path, count: int) -> Iterator[int]:
    """Write `count` samples into `folder` on all cores, yielding the bytes of each."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        yield from pool.map(partial(write, folder=folder), range(count), chunksize=16)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write NNNNNNNN.jpg and NNNNNNNN.cls")
    parser.add_argument("--count", type=int, default=2048, help="images (default: 2048)")
    arguments = parser.parse_args()
    sizes = list(tqdm(make(arguments.folder, arguments.count), total=arguments.count, unit="photo"))
    print(f"{len(sizes)} photos, {np.mean(sizes) / 1e3:.0f} kB each, in {arguments.folder}")


if __name__ == "__main__":
    main()
