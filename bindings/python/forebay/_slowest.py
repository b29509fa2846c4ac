"""Slowest calls of user code, by sample; the native loader keeps those of the job."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypedDict

# Named samples of a batch, of each function: enough to find those of the job.
_OF_BATCH = 4


class Slow(TypedDict):
    """A call of user code that took long, for one sample."""

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
