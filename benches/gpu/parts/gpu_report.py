"""Figures of a GPU as they come: printed at once, and kept in a file that is whole at any time.

A part that fails is a line and stops no other. A measurement that is ended at a limit leaves the
rounds before it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from own_daemon import Place
from probe_lines import failure


@dataclass
class Figure:
    """One contender's rounds."""

    unit: str
    rounds: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    def report(self) -> dict[str, Any]:
        """Median and spread."""
        low, high = min(self.rounds), max(self.rounds)
        spread = {"median": self.median(), "min": low, "max": high, "rounds": self.rounds}
        return {"unit": self.unit, **spread, **self.more}


@dataclass
class Report:
    """Figures so far, their file, and the parts that failed; `absent` ones are not installed."""

    rounds: int
    target: Path | None
    gpu: dict[str, str]
    place: Place = field(default_factory=Place)
    figures: dict[str, Figure] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    _machine: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, unit: str, value: float) -> Figure:
        """Add a round to a contender's."""
        figure = self.figures.setdefault(name, Figure(unit))
        figure.rounds.append(value)
        return figure

    def fail(self, name: str, error: BaseException) -> None:
        """Say and keep that a part failed."""
        self.failed[name] = failure(error)
        print(f"{name}: failed: {self.failed[name]}", flush=True)

    def leave_out(self, name: str, error: BaseException) -> None:
        """Say and keep that a rival is left out; one that is not installed is no failure."""
        self.fail(name, error)
        if isinstance(error, ModuleNotFoundError):
            self.absent.append(name)

    def code(self) -> int:
        """Return the exit code: 1 if anything failed that is installed."""
        return 1 if set(self.failed) - set(self.absent) else 0

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Measure a part, print its figures, and write all so far, also if it is ended."""
        before = set(self.figures)
        begin = time.monotonic()
        try:
            work()
        except Exception as error:
            self.fail(name, error)
        finally:
            for key, figure in self.figures.items():
                if key not in before and figure.rounds:
                    cores = figure.more.get("cores")
                    words = "" if cores is None else f", {cores:.2f} cores"
                    print(f"{key:50} {figure.median():12,.2f} {figure.unit}{words}", flush=True)
            print(f"({name}: {time.monotonic() - begin:.0f} s)", flush=True)
            self.write()

    def write(self) -> None:
        """Write the figures so far to their file."""
        if self.target is None:
            return
        if not self._machine:
            import machine

            self._machine = machine.describe(self.place.folder) | self.gpu
        kept = {
            "machine": self._machine,
            "cache": str(self.place),
            "figures": {name: one.report() for name, one in self.figures.items() if one.rounds},
            "failed": self.failed,
            "absent": self.absent,
        }
        # A process that is killed meanwhile leaves the file of before.
        beside = self.target.with_name(f"{self.target.name}.new")
        beside.write_text(json.dumps(kept, indent=1) + "\n")
        os.replace(beside, self.target)
