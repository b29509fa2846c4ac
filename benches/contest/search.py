"""The fastest accelerator that a loader still keeps busy.

Its rule: speed f means steps of t_nominal / f. The greatest f is sought at which AU_ideal is what
was asked for, or little more; then long runs at that speed decide, and one that they do not bear
out is lowered, one that they find too low raised.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

# A search ends where AU_ideal is above what was asked for by no more than this: 2 % in speed for a
# loader at its limit, and runs of some dozens of steps do not agree better.
CLOSE = 0.02
# Long runs may find that much more before a speed is raised.
NEAR = 0.03
# Nor does it go on where what held and what did not are this near.
NARROW = 1.02
# Runs that a search may take: a loader that loads nothing while the accelerator works, whose AU
# moves least with the speed, is found with so many.
RUNS_MAX = 8

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


@dataclass
class Decision:
    """What long runs say of the speeds of one loader."""

    au_min: float
    # The greatest that was borne out.
    borne_out: float | None = None

    def next(self, speed: float, au: list[float]) -> float | None:
        """Return the speed to try next after runs at `speed` with `au`; none if it is decided."""
        median = statistics.median(au)
        again = speed * median / (self.au_min + CLOSE / 2)
        if median >= self.au_min:
            was, self.borne_out = self.borne_out, max(self.borne_out or 0.0, speed)
            is_near = median <= self.au_min + NEAR
            # One that was raised and held is not raised for ever.
            return None if is_near or was is not None else again
        return None if self.borne_out is not None else again
