"""Slowest samples of a job: what a trainer that waits for batches waits for, by name."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypedDict

# Named samples of a job: one screen.
KEPT = 16

# Named samples of a batch, of each function: enough to find those of the job.
_OF_BATCH = 4


class Slow(TypedDict):
    """A call that took long: of a decoder or a function of the user's, for one sample."""

    key: str
    url: str
    stage: str
    field: str | None
    seconds: float


def of_batch(
    seconds: Sequence[float],
    keys: Sequence[str],
    urls: Sequence[str],
    stage: str,
    field: str | None = None,
) -> list[Slow]:
    """Return the slowest calls of a function, which took `seconds` for each sample of a batch."""
    return [
        {
            "key": keys[row],
            "url": urls[row],
            "stage": stage,
            "field": field,
            "seconds": seconds[row],
        }
        for row in heapq.nlargest(_OF_BATCH, range(len(seconds)), key=seconds.__getitem__)
    ]


def merged(known: Sequence[Slow], more: Sequence[Slow]) -> list[Slow]:
    """Return the slowest of both, each sample, stage and field once."""
    slowest: dict[tuple[str, str, str, str | None], Slow] = {}
    for one in (*known, *more):
        name = (one["key"], one["url"], one["stage"], one["field"])
        if name not in slowest or slowest[name]["seconds"] < one["seconds"]:
            slowest[name] = one
    return heapq.nlargest(KEPT, slowest.values(), key=lambda one: one["seconds"])
