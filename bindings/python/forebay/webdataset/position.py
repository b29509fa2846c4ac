"""Position of a pipeline, and the check that a state fits a pipeline.

A state is one worker's position in one chain. It is found by replaying the epoch, so every option
that the replay depends on is part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay._values import U64_MAX, whole
from forebay.errors import Invalid

_VERSION = 1


@dataclass(frozen=True)
class Position:
    """Position of the next sample."""

    epoch: int
    # Samples delivered of it.
    samples: int = 0
    # torch's draw for its workers' order, if they did not know the epoch.
    base_seed: int | None = None
    # Number of workers of which one delivered that many.
    workers: int | None = None


def save(at: Position, of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at a position of the pipeline described by `of`."""
    return {
        "version": _VERSION,
        "epoch": at.epoch,
        "samples": at.samples,
        "base_seed": at.base_seed,
        "of": dict(of),
    }


def load(state: Mapping[str, Any], of: Mapping[str, Any]) -> Position:
    """Return the position in `state`, for the pipeline described by `of`.

    Raises
    ------
    Invalid
        Naming the difference, or the missing part.
    """
    try:
        version, saved = state["version"], dict(state["of"])
        epoch, samples, base_seed = (state[key] for key in ("epoch", "samples", "base_seed"))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(
            f"this is not a pipeline's state ({error!r}); give the result of state_dict()"
        ) from None
    if version != _VERSION:
        raise Invalid(f"the state has version {version}; this release reads {_VERSION}")
    for name in {**saved, **of}:
        if saved.get(name) != of.get(name):
            raise Invalid(
                f"the state was saved with {name}={saved.get(name)!r}, and here it is "
                f"{of.get(name)!r}; use the same pipeline, and as many ranks and workers",
                {"option": name},
            )
    return Position(
        whole("epoch", epoch, 0, U64_MAX),
        whole("samples", samples, 0, sys.maxsize),
        None if base_seed is None else whole("base_seed", base_seed, -U64_MAX, U64_MAX),
        of["workers"],
    )
