"""What a loader passed over: samples and shards that could not be used.

One rule: all are counted, by their kind; the last of them are kept by name, a bounded number.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from forebay import _native
from forebay.errors import ForebayError

# What says where a sample is, in the order in which it is shown.
_PLACES = ("url", "key", "field", "offset")


class Bad:
    """Counts and names of what was passed over."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._last: deque[dict[str, Any]] = deque(maxlen=_native.BAD_NAMED)

    def add(self, errors: Iterable[ForebayError]) -> None:
        """Note that these were passed over."""
        for error in errors:
            self._counts[error.kind] = self._counts.get(error.kind, 0) + 1
            self._last.append(_named(error))

    def report(self) -> dict[str, Any]:
        """As users see it."""
        return {"by_kind": dict(self._counts), "last": [dict(one) for one in self._last]}

    def to_json(self) -> str:
        """As the native side reads it."""
        return json.dumps({"counts": list(self._counts.items()), "last": list(self._last)})


def _named(error: ForebayError) -> dict[str, Any]:
    places: dict[str, Any] = {name: error.places.get(name) for name in _PLACES}
    if places["offset"] is not None:
        places["offset"] = int(places["offset"])
    return {"kind": error.kind, **places, "message": str(error)}
