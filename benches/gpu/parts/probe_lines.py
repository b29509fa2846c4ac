"""Lines that an experiment reports: words for a reader, and the figures behind them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Line:
    """One finding."""

    text: str
    figures: dict[str, Any] = field(default_factory=dict)


def failure(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def attempt(name: str, work: Callable[..., Iterator[Line]], *of: Any) -> Iterator[Line]:
    """Yield the lines of a part of an experiment; a failure is one of them and ends the part."""
    try:
        yield from work(*of)
    except Exception as error:
        yield Line(f"{name}: failed: {failure(error)}", {"failed": failure(error)})


def median(values: list[float]) -> float:
    """Return the median, rounded to what is worth reading."""
    return round(statistics.median(values), 3)
