"""Samples and shards that a loader skipped.

All are counted by kind; a bounded number of the last ones is kept by name.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from forebay import _native
from forebay.errors import ForebayError

# Places of a sample, in the order of display.
_PLACES = ("url", "key", "field", "offset")


class Bad:
    """Counts and names of skipped samples and shards."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._last: deque[dict[str, Any]] = deque(maxlen=_native.BAD_NAMED)

    def add(self, errors: Iterable[ForebayError]) -> None:
        """Record skipped samples or shards."""
        for error in errors:
            self._counts[error.kind] = self._counts.get(error.kind, 0) + 1
            self._last.append(_named(error))

    def report(self) -> dict[str, Any]:
        """Return the report for users."""
        return {"by_kind": dict(self._counts), "last": [dict(one) for one in self._last]}

    def to_json(self) -> str:
        """Return the report for the native side."""
        return json.dumps({"counts": list(self._counts.items()), "last": list(self._last)})


def _named(error: ForebayError) -> dict[str, Any]:
    places: dict[str, Any] = {name: error.places.get(name) for name in _PLACES}
    if places["offset"] is not None:
        places["offset"] = int(places["offset"])
    return {"kind": error.kind, **places, "message": str(error)}
