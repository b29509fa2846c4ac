"""Weights of mixed streams that change during a job, and the native side's phases.

A phase lasts from one sample of the job to the next phase's. Sample 0 is the first of epoch 0.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forebay._values import flag, number, whole, word
from forebay.errors import Invalid

__all__ = ["Schedule"]

# Samples that positions of a job can count.
_LAST = 1 << 48

By = Literal["samples", "epochs"]

# Weights set while a job runs: the first sample that they hold for, and one for each stream.
Change = tuple[int, tuple[float, ...]]


class Schedule:
    """Weight of a `forebay.Stream` that changes during a job.

    Shares follow from the weights of all streams at a sample. All ranks and epochs count, so a
    schedule goes on after a resume, on any number of ranks.

    Parameters
    ----------
    points : dict of int to float
        Weights by position; one for position 0 is among them. The last weight holds until the end.
        A stream of weight 0 rests.
    by : {"samples", "epochs"}
        Unit of the positions: samples of all ranks since epoch 0, or epochs.
    interpolate : bool
        True: between two points the stream's share changes evenly. False: a weight holds until the
        next point.

    Raises
    ------
    Invalid
        For no point at 0, or a value that is no number of 0 or more.

    Examples
    --------
    >>> forebay.Schedule({0: 1.0, 10_000: 0.2}, interpolate=True)
    forebay.Schedule({0: 1.0, 10000: 0.2}, by='samples', interpolate=True)
    """

    def __init__(
        self, points: Mapping[int, float], *, by: By = "samples", interpolate: bool = False
    ) -> None:
        if not isinstance(points, Mapping) or 0 not in points:
            raise Invalid(
                f"points={points!r}; give the weight of each position, and one for position 0, as "
                "in {0: 1.0, 10_000: 0.2}",
                {"option": "points"},
            )
        self.by = word("by", by, By)
        self.interpolate = flag("interpolate", interpolate)
        found = {whole("a position", at, 0, _LAST): weight(w) for at, w in points.items()}
        self.points = dict(sorted(found.items()))

    def described(self) -> dict[str, Any]:
        """Return the schedule as states hold it."""
        return {
            "points": [list(point) for point in self.points.items()],
            "by": self.by,
            "interpolate": self.interpolate,
        }

    def __repr__(self) -> str:
        return f"forebay.Schedule({self.points}, by={self.by!r}, interpolate={self.interpolate})"


class _Curve:
    """Weight of one stream by sample of the job."""

    def __init__(self, given: float | Schedule, epoch_samples: int) -> None:
        weight = given if isinstance(given, Schedule) else Schedule({0: given})
        unit = epoch_samples if weight.by == "epochs" else 1
        self.at = [whole("a position", at * unit, 0, _LAST) for at in weight.points]
        self.weights = list(weight.points.values())
        self.interpolate = weight.interpolate

    def within(self, begin: int, end: int | None) -> tuple[float, float]:
        """Return the weights at both ends of an interval without a point inside; no end is that of
        the job.
        """
        last = bisect.bisect_right(self.at, begin) - 1
        constant = self.weights[last]
        if end is None or not self.interpolate or last + 1 == len(self.at):
            return constant, constant
        first, length = self.at[last], self.at[last + 1] - self.at[last]
        rise = self.weights[last + 1] - constant
        at_begin, at_end = (constant + rise * ((at - first) / length) for at in (begin, end))
        return at_begin, at_end


def phases(
    weights: Sequence[float | Schedule], epoch_samples: int, changes: Sequence[Change]
) -> list[dict[str, Any]]:
    """Return the phases of streams of these weights, for the native side.

    `changes`: weights set while the job ran, in ascending order; they replace the schedules from
    then on.
    """
    curves = [_Curve(weight, epoch_samples) for weight in weights]
    points = sorted({at for curve in curves for at in curve.at})
    found: list[dict[str, Any]] = []
    for begin, end in itertools.zip_longest(points, points[1:]):
        first, last = zip(*(curve.within(begin, end) for curve in curves), strict=True)
        glide = None if first == last else {"to": last, "over": end - begin}
        found.append({"from": begin, "weights": first, "glide": glide})
    for at, new in changes:
        found = [phase for phase in found if phase["from"] < at]
        found.append({"from": at, "weights": new, "glide": None})
    return found


def changed(changes: Sequence[Change], new: Change) -> list[Change]:
    """Return the changes with a new one, which replaces those from its sample on."""
    return [change for change in changes if change[0] < new[0]] + [new]


def save(state: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """Return a state with the changes, if there are any."""
    if not changes:
        return state
    return state | {"weights": [[at, list(weights)] for at, weights in changes]}


def saved(state: Mapping[str, Any]) -> list[Change]:
    """Return the changes of a state.

    Raises
    ------
    Invalid
        If they are no list of samples and weights.
    """
    try:
        pairs = [(at, tuple(weights)) for at, weights in state.get("weights", [])]
    except (TypeError, ValueError):
        raise Invalid(
            "this is not a loader's state (weights); give the result of state_dict()"
        ) from None
    return [
        (whole("a change's sample", at, 0, _LAST), tuple(weight(each) for each in weights))
        for at, weights in pairs
    ]


def weight(value: Any) -> float:
    """Return a weight.

    Raises
    ------
    Invalid
        If it is not a number of 0 or more.
    """
    found = number("weight", value)
    if found < 0 or not math.isfinite(found):
        raise Invalid(f"weight={value!r}; give a number of 0 or more", {"option": "weight"})
    return found
