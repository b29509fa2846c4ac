"""The fastest accelerator that a loader still keeps busy.

Its rule: speed f means steps of t_nominal / f. The greatest f is sought whose AU_ideal is 90 % at
least; then long runs at that speed decide, and one that they do not bear out is lowered.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

# MLPerf Storage's demand on ResNet-50 and UNet3D.
AU_MIN = 0.90
# A search ends when the bracket is this narrow: finer than runs of some seconds agree.
NARROW = 1.02
# What a search begins with holds for loaders that load while the accelerator works; for those that
# do not, it steps down by this.
BEGIN, DOWN = 0.9, 1.5
# Runs that a search may take to find what holds, and to halve: a bracket of 1.5 is narrow after
# five.
RUNS_MAX = 8
# What a speed that was not borne out is lowered by, beyond what its AU lacked.
STEP_DOWN = 0.99

# AU_ideal at a speed.
Measure = Callable[[float], float]


def ceiling(unlimited: float) -> float:
    """Return the speed above which nobody can hold `AU_MIN` who has the rate `unlimited`.

    AU = rate / (f * nominal), and the rate is at most the loader's own; short runs err by a tenth.
    """
    return unlimited / AU_MIN * 1.1


def fastest(unlimited: float, measure: Measure, narrow: float = NARROW) -> float:
    """Return the greatest speed with `AU_MIN` or more, to within `narrow`.

    `unlimited` is the loader's own rate over the nominal one. The speed is far below it for a
    loader that does nothing while the accelerator works.
    """
    low, high = unlimited * BEGIN, ceiling(unlimited)
    runs = 0
    while measure(low) < AU_MIN:
        runs += 1
        if runs == RUNS_MAX:
            return low
        low, high = low / DOWN, low
    for _ in range(RUNS_MAX):
        if high / low <= narrow:
            break
        middle = math.sqrt(low * high)
        if measure(middle) >= AU_MIN:
            low = middle
        else:
            high = middle
    return low


def lowered(speed: float, au: list[float]) -> float | None:
    """Return the speed to try next; `None` if the median of `au` bears `speed` out."""
    median = statistics.median(au)
    return None if median >= AU_MIN else speed * median / AU_MIN * STEP_DOWN
