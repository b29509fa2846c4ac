"""Turns of contenders within one run, and what is made of their figures.

All contenders of a row play in each round, in an order that moves by one each time, so that other
load on the machine falls on all of them alike. A ratio is that of one round; the report has the
median of the rounds' ratios and both quartiles.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import processes
from settings import Settings
from settling import settle

Figures = dict[str, float]
Play = Callable[[int], Figures]

# Fields of the first line of /proc/stat: idle and waiting for a disk are no work.
IDLE_FIELDS = (3, 4)
# Those of guests are part of user time already.
GUEST_FIELDS = (8, 9)


class Spread(NamedTuple):
    """Median of the rounds and both quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Summarise one value a round."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


class Table(NamedTuple):
    """Figures of a row: contenders by name, each with the figures of every round."""

    runs: dict[str, list[Figures]]

    def each(self, of: str, figure: str) -> list[float]:
        """Return a contender's figure of every round."""
        return [run[figure] for run in self.runs[of]]

    def figure(self, of: str, figure: str) -> Spread:
        """Return the spread of a contender's figure."""
        return Spread.of(self.each(of, figure))

    def ratio(self, of: tuple[str, str], by: tuple[str, str]) -> Spread:
        """Return the spread of one contender's figure divided by another one's, round by round."""
        pairs = zip(self.each(*of), self.each(*by), strict=True)
        return Spread.of([one / other for one, other in pairs])


def take_turns(row: str, contenders: Mapping[str, Play], settings: Settings) -> Table:
    """Play all contenders in each round, behind one round that counts for nothing.

    Each begins on a disk that has nothing left to do.

    The first round maps memory, opens connections and imports what is imported late.
    """
    names = list(contenders)
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(-1, settings.rounds):
        for at in range(len(names)):
            name = names[(number + at) % len(names)]
            told = "warm-up" if number < 0 else f"round {number + 1} of {settings.rounds}"
            say(f"{row}: {told}, {name}")
            settle(settings.directory)
            busy, since = Busy.now(), time.monotonic()
            figures = contenders[name](number)
            figures["others_cores"] = busy.others(time.monotonic() - since)
            if number >= 0:
                runs[name].append(figures)
    say("")
    return Table(runs)


def say(text: str) -> None:
    """Show a line of progress: a terminal has one line, a log one a turn."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


class Busy(NamedTuple):
    """CPU seconds of the machine, and of this process with all that it started."""

    all: float
    own: float

    @classmethod
    def now(cls) -> Busy:
        """Read both."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        left_out = (*IDLE_FIELDS, *GUEST_FIELDS)
        ticks = sum(int(field) for at, field in enumerate(fields) if at not in left_out)
        own = processes.cpu_seconds([os.getpid(), *processes.children()])
        return cls(ticks / processes.CLOCK_TICKS, own)

    def others(self, seconds: float) -> float:
        """Return the cores that others kept busy since then: they make figures noisy.

        The kernel's own threads count, as do those of a host that takes a core away.
        """
        now = Busy.now()
        return max(0.0, (now.all - self.all) - (now.own - self.own)) / max(seconds, 1e-9)
