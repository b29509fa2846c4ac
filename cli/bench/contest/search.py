"""Search for the fastest accelerator that a loader still keeps busy.

Speed f means steps of t_nominal / f. The search finds the greatest f at which AU_ideal meets the
target or lies just above it. Short runs come first; long runs at that speed decide. A speed they do
not confirm is lowered; a speed they find too low is raised.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

# A search ends where AU_ideal is above what was asked for by no more than this: 2 % in speed for a
# loader at its limit, and runs of some dozens of steps do not agree better.
CLOSE = 0.02
# Long runs begin that much below what short ones found: an hour in which a machine gets slower by a
# percent is usual, and at its limit a loader's rate is the same at 92 % as at 90 %.
MARGIN = 0.98
# Long runs may find that much more before a speed is raised; a first one that finds that much less
# than what was asked for ends its speed, as the others would say no better.
NEAR = 0.04
# Nor does a search go on where what held and what did not are this near.
NARROW = 1.02
# Runs that a search may take: a loader that loads nothing while the accelerator works, whose AU
# moves least with the speed, is found with so many.
RUNS_MAX = 8
# Speeds that long runs may try: a search on a machine that was busy at that moment may have found
# half of what there is, which takes four to come from, and three more settle it.
SPEEDS_MAX = 7

# AU_ideal at a speed.
Measure = Callable[[float], float]


def fastest(begin: float, measure: Measure, au_min: float) -> float | None:
    """Return the greatest speed with `au_min` or little more, from `begin` on; none if none held.

    AU = rate / (f * nominal), and at its limit a loader's rate is always the same: so f * AU /
    au_min is where it holds. Where it is not at its limit, or loads nothing while the accelerator
    works, that goes too short a way in the right direction; each step further in the same
    direction goes once more as far.
    """
    low, high = 0.0, math.inf
    speed, target, in_a_row = begin, au_min + CLOSE / 2, 0
    for _ in range(RUNS_MAX):
        au = measure(speed)
        holds = au >= au_min
        if holds:
            low, in_a_row = max(low, speed), max(in_a_row, 0) + 1
        else:
            high, in_a_row = min(high, speed), min(in_a_row, 0) - 1
        if (holds and au <= au_min + CLOSE) or high <= low * NARROW:
            break
        speed *= (au / target) ** abs(in_a_row)
        if not low < speed < high:
            # A run that held once and did not another time has no end above it.
            speed = math.sqrt(low * high) if low > 0 else high * au_min
    return low or None


class Proof:
    """Outcome of long runs at one speed, `rounds` of them."""

    def __init__(self, begin: float, au_min: float, rounds: int) -> None:
        self.speed, self.au_min, self.rounds = begin * MARGIN, au_min, rounds
        # The runs at this speed, and how often it was raised in a row.
        self.runs: list[dict[str, Any]] = []
        self.raised = 0
        # Tried speeds, and the bracket: the highest that seemed to hold, the lowest that did not.
        self.tried: list[dict[str, Any]] = []
        self.low, self.high = 0.0, math.inf
        # The counted runs and their speed, and True if they confirm it.
        self.kept: list[dict[str, Any]] = []
        self.kept_speed = self.speed
        self.is_borne_out = False
        self.is_over = False

    def heard(self, run: dict[str, Any]) -> None:
        """Add the figures of a run at `speed`, and decide as soon as they allow."""
        self.runs.append({"round": len(self.runs), **run})
        heard = [one["au_ideal"] for one in self.runs]
        median = statistics.median(heard)
        is_first, is_full = len(heard) == 1, len(heard) == self.rounds
        is_last = len(self.tried) + 1 == SPEEDS_MAX
        # More than half of them are below: the median cannot hold any more.
        is_lost = sum(au < self.au_min for au in heard) > self.rounds / 2
        is_lost = is_lost or (is_first and median < self.au_min - NEAR)
        # There may be more than this speed, and room for it below what did not hold.
        is_more = median > self.au_min + NEAR and self.high > self.speed * NARROW and not is_last
        if not is_full and not is_lost and not (is_first and is_more):
            return
        self.tried.append({"speed": self.speed, "au_ideal": heard})
        holds = is_full and median >= self.au_min
        was = self.is_borne_out
        if holds or not was:
            self.kept, self.kept_speed = self.runs, self.speed
        self.is_borne_out = was or holds
        # One that was raised and does not hold is as it was.
        self.is_over = is_last or (holds and not is_more) or (was and median < self.au_min)
        self.runs = []
        self.speed = self.next_speed(median)

    def next_speed(self, median: float) -> float:
        """Return the next speed to try after one at which AU is `median`."""
        over = median / (self.au_min + CLOSE / 2)
        if median >= self.au_min:
            # As in a search: each step up goes once more as far.
            self.low, self.raised = max(self.low, self.speed), self.raised + 1
            there = self.speed * over**self.raised
        else:
            # Down, what runs say is where to go.
            self.high, self.raised = min(self.high, self.speed), 0
            there = self.speed * over * MARGIN
            if self.high <= self.low * NARROW:
                # The speed that seemed to hold no longer does.
                self.low = 0.0
        if self.low > 0 and self.high < math.inf and not self.low < there < self.high:
            there = math.sqrt(self.low * self.high)
        return there
