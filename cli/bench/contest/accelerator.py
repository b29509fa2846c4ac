"""An accelerator that reads every byte of each batch; an emulated one takes a nominal time per
step.

Reading a batch belongs to the accelerator's step, as in training. A step begins when its batch has
arrived. It lasts for the nominal time, or for as long as reading the batch takes if that is longer;
only waiting for the next batch is outside of it. The step of a real accelerator lasts as long as it
takes. The accelerator releases a batch once it has read it, as a trainer does with the host's copy;
the release belongs to the step as well.

    AU_ideal    = N * t_nominal / wall
    AU_measured = time in steps / wall

MLPerf Storage leaves the first step out, because pipelines fill then. Here the first few are left
out: the first use of a loader's memory costs page faults, which the host of a virtual machine may
take half a second a batch to serve. The wall time begins at the end of the last step left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Waits kept of one run: enough for the 99th percentile, and a small document.
WAITS_MAX = 4096


@dataclass(frozen=True)
class Clock:
    """Monotonic seconds, and a way to sleep."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass
class Waits:
    """Waits of single steps: at most `WAITS_MAX`, evenly spread, and the longest."""

    milliseconds: list[float] = field(default_factory=list)
    # One wait in this many is kept.
    stride: int = 1
    longest: float = 0.0
    seen: int = 0

    def add(self, seconds: float) -> None:
        """Count one step's wait."""
        self.longest = max(self.longest, seconds)
        if self.seen % self.stride == 0:
            self.milliseconds.append(round(seconds * 1e3, 4))
        self.seen += 1
        if len(self.milliseconds) == WAITS_MAX:
            del self.milliseconds[1::2]
            self.stride *= 2


@dataclass(frozen=True)
class Touched:
    """Content of a batch whose every byte was read."""

    samples: int
    bytes: int


@dataclass
class Run:
    """Times of the counted steps, without the warm-up."""

    step_seconds: float
    steps: int = 0
    warm_up_steps: int = 0
    samples: int = 0
    bytes: int = 0
    wall_seconds: float = 0.0
    step_seconds_measured: float = 0.0
    wait_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    waits: Waits = field(default_factory=Waits)

    @property
    def au_ideal(self) -> float:
        """Nominal time of the steps divided by wall time."""
        return self.steps * self.step_seconds / self.wall_seconds

    @property
    def au_measured(self) -> float:
        """Time in steps divided by wall time."""
        return self.step_seconds_measured / self.wall_seconds

    @property
    def samples_per_second(self) -> float:
        """Samples per second of wall time."""
        return self.samples / self.wall_seconds

    def document(self) -> dict[str, Any]:
        """Return the figures by name."""
        waits = self.waits
        return {
            "step_seconds": self.step_seconds,
            "steps": self.steps,
            "warm_up_steps": self.warm_up_steps,
            "samples": self.samples,
            "bytes": self.bytes,
            "wall_seconds": self.wall_seconds,
            "au_ideal": self.au_ideal,
            "au_measured": self.au_measured,
            "samples_per_second": self.samples_per_second,
            "wait_seconds": self.wait_seconds,
            "wait_max_ms": round(waits.longest * 1e3, 4),
            "waits_ms": waits.milliseconds,
            "waits_stride": waits.stride,
            "first_batch_seconds": self.first_batch_seconds,
        }


@dataclass(frozen=True)
class Length:
    """Length of a run: a number of seconds, extended up to a limit until it has enough steps."""

    seconds: float
    seconds_max: float
    steps: int = 1
    # Steps of the warm-up, cut short once it has taken as long as the longest run.
    warm_up: int = 1

    def is_warm(self, steps: int, seconds: float) -> bool:
        """Return True once the warm-up has enough steps or has lasted long enough."""
        return steps >= self.warm_up or seconds >= self.seconds_max

    def goes_on(self, steps: int, seconds: float) -> bool:
        """Return True if another step follows."""
        if steps == 0 or seconds < self.seconds:
            return True
        return steps < self.steps and seconds < self.seconds_max


@dataclass(frozen=True)
class Step:
    """Nominal step time, and the kind of accelerator: an emulated one never takes less."""

    seconds: float
    is_emulated: bool = True


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Play `batches` again and again; an epoch without a batch ends it with an error.

    It keeps no reference: the consumer is the only one to hold a batch.
    """
    while True:
        epoch = iter(batches)
        try:
            yield next(epoch)
        except StopIteration:
            raise RuntimeError("an epoch had no batch") from None
        yield from epoch


def play(
    source: Iterator[Any],
    compute: Callable[[Any], Touched],
    step: Step,
    length: Length,
    clock: Clock | None = None,
    steady: Callable[[], None] = lambda: None,
) -> Run:
    """Take batches from `source` for `length`, after the warm-up.

    `steady` is called when the warm-up ends. The warm-up has at least one step.
    """
    clock = clock or Clock()
    run = Run(step.seconds)
    asked = clock.now()
    warm_up_since = asked
    since: float | None = None
    while since is None or length.goes_on(run.steps, asked - since):
        batch = next(source)
        there = clock.now()
        touched = compute(batch)
        del batch
        left = there + step.seconds - clock.now()
        if step.is_emulated and left > 0:
            clock.sleep(left)
        ended = clock.now()
        if since is None:
            if run.warm_up_steps == 0:
                run.first_batch_seconds, warm_up_since = there - asked, ended
            run.warm_up_steps, asked = run.warm_up_steps + 1, ended
            if length.is_warm(run.warm_up_steps, ended - warm_up_since):
                steady()
                since = asked = clock.now()
            continue
        run.steps += 1
        run.samples += touched.samples
        run.bytes += touched.bytes
        run.wait_seconds += there - asked
        run.step_seconds_measured += ended - there
        run.waits.add(there - asked)
        run.wall_seconds = ended - since
        asked = ended
    return run
