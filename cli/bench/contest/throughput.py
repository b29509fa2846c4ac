"""Epochs as fast as a loader gives them: rate, CPU and memory.

One epoch is not timed, in which workers start, caches fill and memory is looked at.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from processes import cpu_seconds, memory_bytes
from touch import Digest, counter, crc_of, toucher

if TYPE_CHECKING:
    from contender import Loader, Task

# Memory is looked at every so many batches, in the warm-up only: looking takes time.
MEMORY_STRIDE = 4


def play(task: Task, loader: Loader, epochs: int) -> dict[str, Any]:
    """Play `epochs` after one that is not timed, and return the figures."""
    crc = crc_of(task.crc)
    count, touch = counter(task.images, crc), toucher(task.images, crc)
    digest, peak_pss, samples = Digest(), 0, 0
    for number, batch in enumerate(loader.batches):
        count(batch, digest)
        if number % MEMORY_STRIDE == 0:
            pids = [os.getpid(), *loader.helpers()]
            peak_pss = max(peak_pss, sum(memory_bytes(pid, "smaps_rollup", "Pss") for pid in pids))

    pids = [os.getpid(), *loader.helpers()]
    before, cpu_before, start = loader.counts(), cpu_seconds(pids), time.monotonic()
    for _ in range(epochs):
        for batch in loader.batches:
            samples += touch(batch).samples
    seconds, cpu, after = time.monotonic() - start, cpu_seconds(pids) - cpu_before, loader.counts()
    if samples != digest.samples * epochs:
        raise ValueError(f"{epochs} epochs gave {samples} samples, one before {digest.samples}")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "samples": samples,
        "digest": asdict(digest),
        "peak_rss_bytes": [memory_bytes(pid, "status", "VmHWM") for pid in pids],
        "shared_bytes": memory_bytes(os.getpid(), "status", "RssShmem"),
        "peak_pss_bytes": peak_pss,
        "before": before,
        "after": after,
    }
