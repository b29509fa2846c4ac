"""Where a pipeline stands, and which states fit which pipeline.

One rule: a state is one worker's place in one chain. It is found again by playing the epoch up to
there, so whatever that depends on is part of it.
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
    """The next sample to be handed out."""

    epoch: int
    # Handed out of it already.
    samples: int = 0
    # What torch drew for its workers' order, where nobody had told them the epoch.
    base_seed: int | None = None
    # Among how many workers that many were handed out by one.
    workers: int | None = None


def save(at: Position, of: Mapping[str, Any]) -> dict[str, Any]:
    """The state at a position of the pipeline that `of` describes."""
    return {
        "version": _VERSION,
        "epoch": at.epoch,
        "samples": at.samples,
        "base_seed": at.base_seed,
        "of": dict(of),
    }


def load(state: Mapping[str, Any], of: Mapping[str, Any]) -> Position:
    """The position in `state`, for the pipeline that `of` describes.

    Raises
    ------
    Invalid
        Naming what differs, or what is missing.
    """
    try:
        version, saved = state["version"], dict(state["of"])
        epoch, samples, base_seed = (state[key] for key in ("epoch", "samples", "base_seed"))
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"this is no state of a pipeline ({error!r}); give state_dict()'s") from None
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
