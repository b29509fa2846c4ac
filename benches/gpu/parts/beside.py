"""Training beside decoding: the slowdown of matrix products, and the photos that came meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_report import Report

# Images per second of ResNet-50 on an H100 in MLPerf Storage, beside which training is timed.
DEMAND = 1786
# Share of the demand below which the slowdown is that of another load.
ENOUGH = 0.95
# Products of a round: 0.4 s on an H100, many times the longest batch.
MATMUL_SIDE, MATMUL_COUNT = 8192, 250
# Pairs of rounds at least: a median of two is no median.
LEAST_ROUNDS = 5
# Seconds after which photos come at the demanded rate, those decoded ahead included.
SETTLED_SECONDS = 1.0


@dataclass
class Feed:
    """Photos taken so far at the demanded rate; a photo counts once it is due and there."""

    begin: float
    seen: int = 0

    def used(self) -> float:
        """Return the photos that a consumer of the demanded rate has had by now."""
        return min(float(self.seen), DEMAND * (time.perf_counter() - self.begin))


def training(report: Report, loader: Any) -> None:
    """Slowdown of a loop of bf16 products while photos are decoded beside it.

    Raises
    ------
    ValueError
        If the photos came too slowly for the figure to mean anything.
    """
    import torch

    a = torch.randn(MATMUL_SIDE, MATMUL_SIDE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)

    def products() -> None:
        for _ in range(MATMUL_COUNT):
            torch.mm(a, b)

    products()
    # A loader's first batch waits for its start, which belongs to no round.
    next(iter(loader))
    slower(report, loader, products)


def slower(report: Report, loader: Any, products: Callable[[], None]) -> None:
    """Take the rounds in pairs, and report the median of their ratios.

    Raises
    ------
    ValueError
        If the photos came too slowly for the figure to mean anything.
    """
    ratios, images, spent = [], 0.0, 0.0
    for _ in range(max(report.rounds, LEAST_ROUNDS)):
        alone, _ = timed_beside(None, products)
        seconds, used = timed_beside(loader, products)
        report.add("training: products alone", "ms", alone * 1000 / MATMUL_COUNT)
        report.add("training: beside decoding", "ms", seconds * 1000 / MATMUL_COUNT)
        report.add("training: photos beside it", "images/s", used / seconds)
        ratios.append(seconds / alone)
        images, spent = images + used, spent + seconds
        print(
            f"training: {ratios[-1]:.4f} of its time alone, {used / seconds:,.0f} images/s beside"
        )
        report.write()
    figure = report.add("training: slower by", "%", 100 * (statistics.median(ratios) - 1))
    figure.more["ratios"] = ratios
    if images / spent < ENOUGH * DEMAND:
        raise ValueError(
            f"{images / spent:,.0f} images/s came beside the products instead of {DEMAND:,}"
        )


def timed_beside(loader: Any, products: Callable[[], None]) -> tuple[float, float]:
    """Return seconds of the products, and photos that a thread took meanwhile, if any.

    Raises
    ------
    Exception
        The loader's, should it fail meanwhile.
    """
    import torch

    with _feeding(loader) as feed:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            # The device is as warm and as busy before the clock starts as after.
            begin = time.perf_counter()
            while time.perf_counter() - begin < SETTLED_SECONDS:
                products()
                stream.synchronize()
            begin, before = time.perf_counter(), feed.used()
            products()
            stream.synchronize()
            return time.perf_counter() - begin, feed.used() - before


@contextmanager
def _feeding(loader: Any) -> Iterator[Feed]:
    """Let a thread take photos at the demanded rate, if there is a loader."""
    import torch

    feed, stop = Feed(time.perf_counter()), threading.Event()
    failed: list[Exception] = []

    def take() -> None:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not stop.is_set():
                for batch in loader:
                    feed.seen += len(batch["image"])
                    ahead = feed.seen / DEMAND - (time.perf_counter() - feed.begin)
                    if stop.wait(max(0.0, ahead)):
                        return

    def guarded() -> None:
        try:
            take()
        except Exception as error:
            failed.append(error)

    feeding = threading.Thread(target=guarded)
    if loader is not None:
        feeding.start()
    try:
        yield feed
    finally:
        stop.set()
        if loader is not None:
            feeding.join()
    if failed:
        raise failed[0]
