"""The request `forebay bench starvation` sends to the contest: one document.

An unknown key or an invalid value ends the run before anything is measured.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

NAMES = (
    "forebay",
    "webdataset",
    "torch",
    "mosaic",
    "litdata",
    "datasets",
    "lancedb",
    "spdl",
    "dali",
)


class Wrong(Exception):
    """An invalid request."""


@dataclass(frozen=True)
class Request:
    """Shards, contenders and measures of one contest."""

    # Local tars, by absolute path.
    shards: list[str]
    # True if samples become images; otherwise they stay bytes.
    images: bool
    batch_size: int
    # Nominal seconds of one step.
    step_seconds: float
    # Folder for conversions and caches.
    work: str
    # Seconds of one measured run, and runs of each contender.
    seconds: float = 60.0
    rounds: int = 5
    contenders: list[str] = field(default_factory=lambda: list(NAMES))
    # Interpreters of contenders that do not use this one.
    pythons: dict[str, str] = field(default_factory=dict)
    # Memory limit of a contender and all its workers, page cache included.
    memory_bytes: int | None = None
    # True to search for the fastest accelerator that is still fed.
    find_rate: bool = False
    # AU_ideal at which an accelerator counts as fed: what MLPerf Storage demands of ResNet-50.
    au_min: float = 0.90
    # A model of torchvision's that a GPU trains, in place of an emulated accelerator.
    model: str | None = None
    # Cores that a contender may use, where a quota leaves fewer than the CPUs that it may run on.
    cores: int | None = None
    # The command `forebay`; otherwise the one beside Forebay's interpreter.
    forebay: str | None = None

    def python(self, name: str) -> str:
        """Return the interpreter of contender `name`."""
        return self.pythons.get(name, sys.executable)

    def usable(self) -> int:
        """Return the cores that a contender may use."""
        allowed = len(os.sched_getaffinity(0))
        return allowed if self.cores is None else min(self.cores, allowed)

    def command(self) -> Path:
        """Return the command `forebay`."""
        return Path(self.forebay or Path(self.python("forebay")).with_name("forebay"))

    @classmethod
    def of(cls, document: dict[str, Any]) -> Request:
        """Check a document; raises `Wrong`."""
        known = {one.name for one in fields(cls)}
        if unknown := document.keys() - known:
            raise Wrong(f"unknown keys in the request: {', '.join(sorted(unknown))}")
        try:
            request = cls(**document)
        except TypeError as error:
            raise Wrong(f"the request is incomplete: {error}") from error
        for problem in request.problems():
            raise Wrong(problem)
        return request

    def problems(self) -> list[str]:
        """Return what is invalid."""
        found = [f"{shard} is not an absolute path" for shard in self.shards if shard[:1] != "/"]
        found += [
            f"{shard} cannot be read" for shard in self.shards if not os.access(shard, os.R_OK)
        ]
        if not self.shards:
            found.append("there are no shards")
        if min(self.batch_size, self.rounds, 1 if self.cores is None else self.cores) < 1:
            found.append("batch_size, rounds and cores must be at least 1")
        if self.step_seconds <= 0 or self.seconds <= 0:
            found.append("step_seconds and seconds must be above 0")
        if self.model is not None and (self.find_rate or not self.images):
            found.append("a model trains on images at its own speed: leave find_rate out")
        if not 0 < self.au_min < 1:
            found.append("au_min must lie between 0 and 1")
        if strange := set(self.contenders) - set(NAMES):
            found.append(
                f"unknown contenders: {', '.join(sorted(strange))}; known: {', '.join(NAMES)}"
            )
        if strange := set(self.pythons) - set(NAMES):
            found.append(f"interpreters for unknown contenders: {', '.join(sorted(strange))}")
        return found
