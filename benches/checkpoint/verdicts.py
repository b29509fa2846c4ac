"""Figures beside what they are to reach, and the table at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rounds import Spread

HEADS = ("row", "figure", "median", "quartiles", "to reach", "")


class Verdict(NamedTuple):
    """A figure of a row; without a bound it is told only."""

    row: str
    figure: str
    spread: Spread
    least: float | None = None
    most: float | None = None
    show: Callable[[float], str] = "{:.2f}".format

    @property
    def is_reached(self) -> bool | None:
        """True if the median keeps the bound; none if there is no bound."""
        if self.least is not None:
            return self.spread.median >= self.least
        return None if self.most is None else self.spread.median <= self.most

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its line."""
        show = self.show
        bound = f"≥ {show(self.least)}" if self.least is not None else ""
        bound = f"≤ {show(self.most)}" if self.most is not None else bound
        reached = {True: "reached", False: "MISSED", None: ""}[self.is_reached]
        quartiles = f"{show(self.spread.low)} to {show(self.spread.high)}"
        return (self.row, self.figure, show(self.spread.median), quartiles, bound, reached)

    def document(self) -> dict[str, object]:
        """Return what the document has of it."""
        return {
            "row": self.row,
            "figure": self.figure,
            **self.spread._asdict(),
            "at least": self.least,
            "at most": self.most,
            "reached": self.is_reached,
        }


def table(verdicts: list[Verdict]) -> str:
    """Return the lines of all verdicts under their heads."""
    rows = [HEADS, *(verdict.cells() for verdict in verdicts)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADS))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def rate(value: float) -> str:
    """Show bytes per second."""
    return f"{value / 1e9:.3f} GB/s"


def milliseconds(value: float) -> str:
    """Show seconds."""
    return f"{value * 1000:.0f} ms"


def percent(value: float) -> str:
    """Show a share."""
    return f"{value * 100:.1f} %"


def points(value: float) -> str:
    """Show a difference of shares."""
    return f"{value * 100:.2f} points"
