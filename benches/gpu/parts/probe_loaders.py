"""Loaders on a GPU: beside graph capture (E9), under a slow JAX (E10), by the dozen (E11).

They need Forebay's wheel, whose absence is a line and no failure.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import photo_shards
import probe_inputs
from probe_lines import Line, attempt, failure

SAMPLES, SHARDS, BATCH = 2048, 4, 128
CAPTURES = 20
LOADERS = 50
# Loaders are opened for no longer than this: the probe has a limit.
OPENING_SECONDS = 8.0
# A loader that has made no batch by then will make none.
FEED_SECONDS = 5
# Products that take some 30 ms on an H100, longer than a batch takes to make.
SIDE, PRODUCTS = 8192, 20
# A mean that is off by more comes from another image; rounding makes less than a step of 255.
STEPS = 1.0


def capture(folder: Path) -> Iterator[Line]:
    """E9: captures of CUDA graphs while a loader's threads work."""
    yield from _with_shards(folder, "graph capture", _capture)


def jax(folder: Path) -> Iterator[Line]:
    """E10: batches dropped while a slow JAX program that reads them is queued."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    yield from _with_shards(folder, "JAX", _jax)


def opening(folder: Path) -> Iterator[Line]:
    """E11: loaders opened and closed; memory, threads and files left."""
    yield from _with_shards(folder, "opening", _opening)


def _with_shards(
    folder: Path, name: str, work: Callable[[list[str]], Iterator[Line]]
) -> Iterator[Line]:
    try:
        import forebay  # noqa: F401
    except ImportError as error:
        yield Line(f"{name}: skipped: {failure(error)}", {"skipped": failure(error)})
        return
    photos = probe_inputs.photos(folder)
    with tempfile.TemporaryDirectory(prefix="forebay-probe-") as shards:
        urls = photo_shards.write(Path(shards), photos, SAMPLES, SHARDS)
        yield from attempt(name, work, urls)


def _loader(urls: list[str], **options: Any) -> Any:
    import forebay

    fields = {"image": forebay.Image("jpg", size=224, crop="random", flip=True)}
    return forebay.DataLoader(urls, batch_size=BATCH, fields=fields, seed=1, **options)


def _capture(urls: list[str]) -> Iterator[Line]:
    import torch

    x = torch.randn(512, 512, device="cuda")
    # Libraries allocate at their first call, which no capture allows.
    (x @ x).sum()
    torch.cuda.synchronize()

    def captured(mode: str) -> str | None:
        """Capture and replay a graph; return the failure."""
        try:
            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                (x @ x).sum()
            graph.replay()
        except RuntimeError as error:
            return failure(error)
        return None

    # The loader's own threads make the next batches meanwhile; a mode of torch's default forbids
    # calls of every thread of the process.
    loader = _loader(urls, device="cuda", framework="torch")
    batches, broken = iter(loader), []
    for _, _ in zip(range(CAPTURES), batches, strict=False):
        broken.append(captured("global"))
    loader.close()
    yield _told("between batches", broken, [])
    # Here a thread of the user's takes them, whose calls of torch only this mode leaves alone.
    loader = _loader(urls, device="cuda", framework="torch")
    with _feeding(loader) as failed:
        broken = [captured("thread_local") for _ in range(CAPTURES)]
    torch.cuda.synchronize()
    loader.close()
    yield _told("thread_local, while a thread takes batches", broken, failed)


def _told(case: str, answers: list[str | None], loaders: list[str]) -> Line:
    broken = [answer for answer in answers if answer is not None]
    return Line(
        f"{case}: {len(broken)} of {len(answers)} captures failed; "
        f"first failure {(broken or ['none'])[0]}; the loader's {(loaders or ['none'])[0]}",
        {"case": case, "captures": len(answers), "broken": broken, "loader": loaders},
    )


@contextlib.contextmanager
def _feeding(loader: Any) -> Iterator[list[str]]:
    """Let a thread take batches on a stream of its own; yields its failures."""
    import torch

    failed: list[str] = []
    stop, working = threading.Event(), threading.Event()

    def feed() -> None:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    for _ in loader:
                        working.set()
                        if stop.is_set():
                            return
        except Exception as error:
            failed.append(failure(error))
            working.set()

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    working.wait(FEED_SECONDS)
    try:
        yield failed
    finally:
        stop.set()
        feeding.join(FEED_SECONDS)


def _jax(urls: list[str]) -> Iterator[Line]:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def slow(images: Any, big: Any) -> Any:
        for _ in range(PRODUCTS):
            big = (big @ big) / SIDE
        # The images are read once the products are there.
        late = images + (big[0, 0] > 1e30).astype(images.dtype)
        return late.astype(jnp.float32).mean(axis=(1, 2, 3))

    big = jnp.ones((SIDE, SIDE), jnp.bfloat16)
    cpu = _loader(urls, device="cpu", framework="numpy")
    expected = [np.asarray(batch["image"]).mean(axis=(1, 2, 3)) for batch in cpu]
    cpu.close()
    loader = _loader(urls, device="cuda", framework="jax")
    late = []
    for batch in loader:
        late.append(slow(batch["image"], big))
        del batch
        gc.collect()
    apart = [np.abs(np.asarray(found) - means) for found, means in zip(late, expected, strict=True)]
    wrong = sum(int((steps > STEPS).sum()) for steps in apart)
    worst = max(float(steps.max()) for steps in apart)
    loader.close()
    yield Line(
        f"{wrong} of {SAMPLES} images are wrong, the worst mean by {worst:.2f} steps",
        {"wrong": wrong, "worst_steps": worst, "batches": len(late)},
    )


def _opening(urls: list[str]) -> Iterator[Line]:
    import torch

    def held() -> dict[str, int]:
        gc.collect()
        torch.cuda.synchronize()
        return {
            "device MB": (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) >> 20,
            "threads": len(os.listdir("/proc/self/task")),
            "files": len(os.listdir("/proc/self/fd")),
        }

    begin, opened = time.perf_counter(), 0
    first: dict[str, int] = {}
    while opened < LOADERS and time.perf_counter() - begin < OPENING_SECONDS:
        with contextlib.closing(_loader(urls, device="cuda", framework="torch")) as loader:
            next(iter(loader))
        opened += 1
        # Libraries keep what the first loaders made them load.
        if opened == 5:
            first = held()
    each = (time.perf_counter() - begin) / opened
    after = held()
    yield Line(
        f"{opened} loaders, {each * 1000:.0f} ms each; held after five {first}, then {after}",
        {"opened": opened, "seconds_each": each, "after_five": first, "after": after},
    )
