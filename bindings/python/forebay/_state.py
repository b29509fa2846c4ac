"""Content of a loader's state, and the check that a state fits a loader.

A state is a position in the global sequence. It holds nothing about one rank, and every option that
the sequence depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay import _native
from forebay._bad import Bad
from forebay._values import U64_MAX, whole
from forebay.errors import Invalid

_VERSION = 2

# Versions of the order that a state resumes in, each in its own.
ORDER_VERSIONS = tuple(range(_native.ORDER_OLDEST, _native.ORDER_VERSION + 1))


@dataclass(frozen=True)
class Position:
    """Position of the next batch: batch `batch` of those that start with sample `base`."""

    epoch: int
    base: int = 0
    batch: int = 0

    def next_batch(self, step: int) -> Position:
        """Return the position `step` batches later."""
        return replace(self, batch=self.batch + step)

    def samples(self, global_batch: int) -> int:
        """Return the samples of the epoch before it, over all ranks."""
        return self.base + self.batch * global_batch


def save(
    epoch: int, samples: int, order: tuple[dict[str, Any], int], shards: str, urls: str | None
) -> dict[str, Any]:
    """Return the state after this many samples of an epoch, over all ranks.

    `order`: options that it is a function of, and its version. `urls`: names of the shards, if
    their sample counts were learnt rather than given.
    """
    options, version = order
    state = {
        "version": _VERSION,
        "order": version,
        "draws": _native.DRAW_VERSION,
        "epoch": epoch,
        "samples": samples,
        "options": options,
        "shards": shards,
    }
    return state if urls is None else state | {"urls": urls}


def load(
    state: Mapping[str, Any], order: dict[str, Any], shards: str
) -> tuple[Position, int | None, int]:
    """Return the position in `state`, its lanes and the version of its order, for a loader with
    `order`.

    Raises
    ------
    Invalid
        Naming the difference, or the missing part.
    """
    try:
        version, saved = state["version"], dict(state["options"])
        epoch, samples = state["epoch"], state["samples"]
        saved_shards = state["shards"]
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(
            f"this is not a loader's state ({error!r}); give the result of state_dict()"
        ) from None
    if version != _VERSION:
        raise Invalid(f"the state has version {version}; this release reads {_VERSION}")
    for key, what, known in (
        ("order", "orders samples", ORDER_VERSIONS),
        ("draws", "draws crops and flips", (_native.DRAW_VERSION,)),
    ):
        if state.get(key) not in known:
            raise Invalid(
                f"the state was saved by a release that {what} differently ({key}="
                f"{state.get(key)!r}, here {' or '.join(map(str, known))}); continue with that "
                "release, or start without the state",
                {"option": key},
            )
    position = Position(
        whole("the state's epoch", epoch, 0, U64_MAX),
        whole("the state's samples", samples, 0, U64_MAX),
    )
    for option, here in order.items():
        there = saved.get(option)
        # Unset lanes are taken from the state.
        if there != here and not (option == "lanes" and None in (here, there)):
            raise Invalid(
                f"the state was saved with {option}={there!r}, this loader has {option}={here!r}; "
                "the order of samples differs: use the same value, or start "
                "without the state",
                {"option": option},
            )
    if saved_shards != shards:
        raise Invalid(
            "the state was saved for other shards (urls or manifest differ); use the same, or "
            "start anew",
            {"option": "urls"},
        )
    return position, saved.get("lanes"), int(state["order"])


@dataclass
class Counts:
    """Counts of delivered batches and samples."""

    batches: int = 0
    samples: int = 0
    errors: int = 0
    bad: Bad = field(default_factory=Bad)
    deselected: int = 0


def stats(counts: Counts, native: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of both sides for users."""
    return {
        "batches": counts.batches,
        "samples": counts.samples,
        "errors": counts.errors,
        "bad": counts.bad.report(),
        "deselected": counts.deselected,
        "wait": native["wait"],
        "bytes": {"tier": native["tier_bytes"], "origin": native["origin_bytes"]},
        "decoders": native["decoders"],
        "slowest": native["slowest"],
        "private_copies": native["private_copies"],
        "reconnects": native["reconnects"],
        "daemon_pid": native["daemon_pid"],
    }
