"""Pixels of the GPU beside the CPU's, as figures: by the default backend, and by each that starts.

Both decode the same photos with the same seed, to uint8, so that one step is one of 255.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import own_daemon
import photo_shards
from gpu_report import Report

VARIABLE = "FOREBAY_NVJPEG_BACKEND"
# Today's order of the backends: engines from host memory, engines, cores.
BACKENDS = (3, 5, 4)
PHOTOS, BATCH, SIZE = 512, 128, 224
# Bounds of `bindings/python/tests/test_gpu.py`: a decoder's inverse transform may round otherwise,
# on average by less than one step, and by several at edges.
MEAN_STEPS, FAR_STEPS = 1.0, 8


def pixels(report: Report, folder: Path, files: list[bytes]) -> None:
    """Report how far images of the GPU are from the CPU's."""
    home = folder / "pixels"
    home.mkdir()
    urls = photo_shards.write(home, files, PHOTOS, 1)
    expected = list(_batches(urls, "cpu")[0])
    for name, backend in (("pixels", None), *((f"pixels, backend {n}", n) for n in BACKENDS)):
        try:
            with _only(backend):
                found, decoders = _batches(urls, "cuda")
            steps(report, name, found, expected, decoders)
        except Exception as error:
            report.fail(name, error)
        report.write()


@contextmanager
def _only(backend: int | None) -> Iterator[None]:
    """Allow one backend meanwhile, or what the environment allows."""
    before = os.environ.get(VARIABLE)
    if backend is not None:
        os.environ[VARIABLE] = str(backend)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def _batches(urls: list[str], device: str) -> tuple[list[tuple[list[str], Any]], Any]:
    """Return keys and images of each batch in the CPU's memory, and the loader's decoders."""
    import forebay

    image = forebay.Image("jpg", size=SIZE, crop="random", flip=True)
    loader = forebay.DataLoader(
        urls,
        batch_size=BATCH,
        fields={"image": image},
        device=device,
        framework="torch",
        seed=1,
        timeout=own_daemon.WAIT_SECONDS,
    )
    try:
        found = [(list(batch["__key__"]), batch["image"].cpu().int()) for batch in loader]
        return found, loader.stats()["decoders"]
    finally:
        loader.close()


def steps(
    report: Report,
    name: str,
    found: list[tuple[list[str], Any]],
    expected: list[tuple[list[str], Any]],
    decoders: Any,
) -> None:
    """Add the figures of images beside those expected.

    Raises
    ------
    ValueError
        If they are not the same images in the same order.
    """
    worst, far, elements, beyond = 0.0, 0, 0, 0
    for (keys, images), (others, right) in zip(found, expected, strict=True):
        if keys != others or images.shape != right.shape:
            raise ValueError("the GPU's batches hold other images than the CPU's")
        apart = (images - right).abs()
        means = apart.float().flatten(1).mean(dim=1)
        worst = max(worst, float(means.max()))
        beyond += int((means > MEAN_STEPS).sum())
        far += int((apart > FAR_STEPS).sum())
        elements += apart.numel()
    figure = report.add(f"{name}: worst mean of an image", "steps of 255", worst)
    figure.more["decoders"] = decoders
    report.add(f"{name}: elements off by more than {FAR_STEPS}", "%", 100 * far / elements)
    report.add(f"{name}: images beyond a mean of {MEAN_STEPS}", "images", beyond)
