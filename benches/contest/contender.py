"""What every contender does: warm up, then the timed epochs, then one line of figures.

Its rule: all contenders run this very code. They differ in how a loader is made and in nothing that
is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

# A CRC of zlib's kind that is not what is measured: several times as fast.
from isal import isal_zlib

# The task: what is made of each sample. A network trained on ImageNet takes these images.
SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# Memory is looked at every so many batches, in the warm-up only: looking takes time.
MEMORY_STRIDE = 4


@dataclass(frozen=True)
class Task:
    """What the harness asks of a contender."""

    mode: str
    variant: str
    shards: Sequence[str]
    batch_size: int
    epochs: int

    @classmethod
    def from_command_line(cls) -> Task:
        """Read the task that the harness put on the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("mode", choices=("raw", "images"))
        parser.add_argument("variant")
        parser.add_argument("--batch-size", type=int, required=True)
        parser.add_argument("--epochs", type=int, required=True)
        parser.add_argument("shards", nargs="+")
        return cls(**vars(parser.parse_args()))


class Batch(Protocol):
    """A batch, whoever made it: the first field and the labels."""

    def __getitem__(self, index: int, /) -> Any:
        """Return field `index`."""


class Tensor:
    """A NumPy array under the names by which the harness reads torch's tensors."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def amax(self) -> Any:
        """Return the largest element."""
        return self.array.max()

    def double(self) -> Any:
        """Return the elements as doubles."""
        return self.array.astype("float64")


@dataclass
class Digest:
    """What an epoch delivered, so that contenders can be held against each other."""

    samples: int = 0
    payload_bytes: int = 0
    crc_sum: int = 0
    label_sum: int = 0
    image_mean: float = 0.0


def digest_raw(batch: Batch, digest: Digest) -> None:
    """Count a batch of bytes; the order of samples does not matter."""
    for record, label in zip(batch[0], batch[1], strict=True):
        digest.samples += 1
        digest.payload_bytes += len(record) + len(label)
        digest.crc_sum += isal_zlib.crc32(record) + isal_zlib.crc32(label)


def digest_images(batch: Batch, digest: Digest) -> None:
    """Count a batch of images; crops are random, so only their mean can be compared."""
    digest.samples += len(batch[1])
    digest.label_sum += int(batch[1].sum())
    digest.image_mean += float(batch[0].double().mean()) * len(batch[1])


def touch_raw(batch: Batch) -> None:
    """Take a checksum over every byte of a batch."""
    for field in (batch[0], batch[1]):
        for record in field:
            isal_zlib.crc32(record)


def touch_images(batch: Batch) -> None:
    """Read every byte of a batch, at the speed of memory."""
    batch[0].amax().item()
    batch[1].sum().item()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that `pids` have used so far, in user and kernel mode."""
    ticks = 0
    for pid in pids:
        # The command's name, in brackets, may hold anything; fields are counted behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / CLOCK_TICKS


def memory_bytes(pid: int | str, file: str, name: str) -> int:
    """Return a figure of `/proc/PID/FILE`, in bytes."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/{file} has no {name}")


def children() -> list[int]:
    """Return the processes that this one started and that still run."""
    pid = os.getpid()
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def run(
    task: Task,
    loader: Iterable[Batch],
    helpers: Callable[[], list[int]],
    figures: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Play `task` on `loader` and print the figures.

    `helpers` names the processes that work for this one; `figures` adds what a contender alone
    knows, read before and after the timed epochs.
    """
    count, touch = (digest_raw, touch_raw) if task.mode == "raw" else (digest_images, touch_images)
    digest, peak_pss = Digest(), 0
    for number, batch in enumerate(loader):
        count(batch, digest)
        if number % MEMORY_STRIDE == 0:
            pss = sum(memory_bytes(pid, "smaps_rollup", "Pss") for pid in [os.getpid(), *helpers()])
            peak_pss = max(peak_pss, pss)
    digest.image_mean /= max(digest.samples, 1)

    pids = [os.getpid(), *helpers()]
    before, cpu_before, start = figures(), cpu_seconds(pids), time.monotonic()
    for _ in range(task.epochs):
        for batch in loader:
            touch(batch)
    seconds, cpu, after = time.monotonic() - start, cpu_seconds(pids) - cpu_before, figures()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": cpu,
                "samples": digest.samples * task.epochs,
                "digest": asdict(digest),
                "peak_rss_bytes": [memory_bytes(pid, "status", "VmHWM") for pid in pids],
                "shared_bytes": memory_bytes(os.getpid(), "status", "RssShmem"),
                "peak_pss_bytes": peak_pss,
                "before": before,
                "after": after,
            }
        )
    )
