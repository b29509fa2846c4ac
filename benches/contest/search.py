"""The fastest accelerator that a loader still keeps busy.

Its rule: speed f means steps of t_nominal / f. The greatest f is sought at which AU_ideal is what
was asked for, or little more: by short runs first; then long runs at that speed decide, and one
that they do not bear out is lowered, one that they find too low raised.
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
# Long runs may find that much more before a speed is raised.
NEAR = 0.04
# The first long run that is that far from what is expected, which is `CLOSE` above what was asked
# for, ends a speed: the others would say no better.
FAR = 0.06
# Nor does a search go on where what held and what did not are this near.
NARROW = 1.02
# Runs that a search may take: a loader that loads nothing while the accelerator works, whose AU
# moves least with the speed, is found with so many.
RUNS_MAX = 8
# Speeds that long runs may try: a search on a machine that was busy at that moment may have found
# half of what there is, which takes four to come from, and one or two more settle it.
SPEEDS_MAX = 6

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
    """What long runs say of one loader's speed, `rounds` of them at one speed."""

    def __init__(self, begin: float, au_min: float, rounds: int) -> None:
        self.speed, self.au_min, self.rounds = begin * MARGIN, au_min, rounds
        # The runs at this speed, how many speeds were tried with it, and how often it was raised.
        self.runs: list[dict[str, Any]] = []
        self.speeds, self.raised = 1, 0
        # The runs that count and their speed, and whether they bear it out.
        self.kept: list[dict[str, Any]] = []
        self.kept_speed = self.speed
        self.is_borne_out = False
        self.is_over = False

    def heard(self, run: dict[str, Any]) -> None:
        """Take the figures of a run at `speed`."""
        au_min = self.au_min
        self.runs.append({"round": len(self.runs), **run})
        is_far = len(self.runs) == 1 and abs(run["au_ideal"] - au_min - CLOSE) > FAR
        # The median cannot hold any more, whatever the other runs say.
        is_lost = sum(run["au_ideal"] < au_min for run in self.runs) > self.rounds / 2
        if len(self.runs) < self.rounds and not is_far and not is_lost:
            return
        median = statistics.median(run["au_ideal"] for run in self.runs)
        holds = len(self.runs) == self.rounds and median >= au_min
        was = self.is_borne_out
        if holds or not was:
            self.kept, self.kept_speed = self.runs, self.speed
        self.is_borne_out = was or holds
        # One that was raised and held is not raised for ever, unless it is far from its limit; one
        # that was raised and did not hold is as it was.
        there_is_more = is_far and median > au_min
        is_decided = not there_is_more and (was or (holds and median <= au_min + NEAR))
        self.is_over = is_decided or self.speeds == SPEEDS_MAX
        self.speeds, self.runs = self.speeds + 1, []
        # As in a search: each step up goes once more as far. Down, what a run says is where to go.
        self.raised = self.raised + 1 if median >= au_min else 0
        over = median / (au_min + CLOSE / 2)
        self.speed *= over**self.raised if self.raised else over * MARGIN
