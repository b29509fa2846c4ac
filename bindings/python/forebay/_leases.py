"""Epochs with ``split="dynamic"``: a loader's part in the queues.

A batch counts as delivered when the next one is requested, when its iteration ends or is
replaced, or when the state is saved; not before. Others read the work of a dead rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from forebay import _native, _state, ranks
from forebay._values import U32_MAX, U64_MAX, whole
from forebay.errors import ForebayError, Invalid

if TYPE_CHECKING:
    from forebay._options import Options

# Number of starts of each epoch of each job in this process: equal on all ranks, which start the
# same ones.
_TAKES: Counter[tuple[str, int]] = Counter()

_VERSION = 1

Place = dict[str, Any]


def refuse(options: Mapping[str, Any]) -> None:
    """Reject arguments without meaning under ``split="dynamic"``.

    Raises
    ------
    Invalid
        Naming the first one.
    """
    why = {
        "drop_last": "ranks share no last batch",
        "pad_last": "ranks share no last batch",
        "epoch_samples": "an epoch is every shard once",
        "lanes": "shards are dealt one by one",
    }
    for option, reason in why.items():
        if options[option]:
            raise Invalid(
                f"{option}= has no meaning with split='dynamic': {reason}; leave it unset",
                {"option": option},
            )
    if options["shuffle"] == "global":
        raise Invalid(
            "shuffle='global' mixes all samples, and split='dynamic' assigns whole shards; use "
            "shuffle=True",
            {"option": "shuffle"},
        )


def refuse_ranks_in_step(uneven: bool) -> None:
    """Reject ranks that step together, unless they accept different numbers of batches.

    Raises
    ------
    Invalid
        Under ``torch.distributed`` or ``jax.distributed``, unless `uneven`.
    """
    together = ranks.in_step()
    if together is not None and not uneven:
        raise Invalid(
            f"split='dynamic' gives ranks different numbers of batches, and under {together} those "
            "with more would wait for the others for ever; if your loop supports that "
            "(torch.distributed.algorithms.Join, or no collective operation for each step), give "
            "uneven=True",
            {"option": "split"},
        )


def refuse_torchs_loader() -> NoReturn:
    """Reject a caller that requests batches ahead of the training loop.

    Raises
    ------
    Invalid
        Always.
    """
    raise Invalid(
        "torch's DataLoader requests batches ahead, and split='dynamic' takes earlier batches as "
        "finished: the work of a dead rank would be lost; iterate over "
        "forebay.DataLoader itself",
        {"option": "split"},
    )


class Leases:
    """State of one loader's current epoch in the queue."""

    def __init__(self, options: Options, order: dict[str, Any], shards: str) -> None:
        self._options = options
        # Options that turns and their samples are a function of.
        data = [name for name in ("where", "join") if order[name] is not None]
        self._order = {name: order[name] for name in ("seed", "shuffle", *data)}
        self._shards = shards
        # Start of the current epoch, if not its first shard.
        self._from: Place | None = None
        self._begun: dict[str, Any] | None = None
        # The place that the session had when it was asked last, or the reason it is unknown.
        self._left: Place | ForebayError | None = None
        self._process = _native.forks()
        self._handed = 0
        self._runs = False

    # Playing

    def begin(self, epoch: int, place: ranks.Place) -> None:
        """Begin an iteration over `epoch`."""
        group = self._group(place)
        take = _TAKES[group, epoch]
        _TAKES[group, epoch] += 1
        self._process, self._left = _native.forks(), None
        self._begun = {
            "group": group,
            "rank": place.rank,
            "world_size": place.world_size,
            "is_spread": ranks.is_spread(place.world_size),
            "epoch": epoch,
            "take": take,
            "from": self._from,
            "keeper": os.environ.get("FOREBAY_LEASES") or None,
        }

    def start(self, native: _native.Loader) -> None:
        """Start a run of the iteration, after its delivered batches."""
        if self._process != _native.forks():
            raise Invalid(
                "an iteration with split='dynamic' belongs to the process that began it; begin a "
                "new one after the fork"
            )
        self.acknowledge(native)
        self._handed = 0
        # A separate run, which may find another daemon.
        native.share(json.dumps({**(self._begun or {}), "member": secrets.randbits(64)}))
        self._runs = True

    def hand_out(self) -> None:
        """Record a delivered batch."""
        self._handed += 1

    def acknowledge(self, native: _native.Loader | None, held: int = 0) -> None:
        """Acknowledge all delivered batches but the last `held`, which nobody worked on yet."""
        if native is not None and self._runs and self._process == _native.forks():
            native.acknowledge(max(0, self._handed - held))

    def move(self, place: Place | None = None) -> None:
        """Move the next iteration: to `place`, or to the start of an epoch."""
        self._from, self._begun, self._left = place, None, None

    def leave(self, native: _native.Loader | None, held: int) -> None:
        """Keep the place in the epoch's log, for states after the session's end."""
        if native is not None and self._runs and self._begun is not None:
            try:
                self._left = json.loads(native.place(max(0, self._handed - held)))
            except ForebayError as error:
                self._left = error

    # State

    def state(self, native: _native.Loader | None, epoch: int, held: int) -> dict[str, Any]:
        """Return the state: that of the epoch's log once it has everything delivered here, without
        the last `held` batches, which nobody worked on yet.
        """
        self.leave(native, held)
        left = self._left if self._process == _native.forks() else None
        if isinstance(left, ForebayError):
            raise left
        place: Place | None = left or self._from
        if left is not None and left["next"] == len(self._options.urls) and not left["open"]:
            epoch, place = epoch + 1, None
        place = place or {"log": None, "position": 0, "next": 0, "open": []}
        return {
            "version": _VERSION,
            "split": "dynamic",
            "order": _native.ORDER_VERSION,
            "draws": _native.DRAW_VERSION,
            "epoch": epoch,
            "log": place["log"],
            "position": place["position"],
            "next": place["next"],
            "open": [[mark["turn"], mark["upto"]] for mark in place["open"]],
            "options": self._order,
            "shards": self._shards,
        }

    def load(self, state: Mapping[str, Any]) -> tuple[int, Place | None]:
        """Return the epoch of `state`, and its place.

        Raises
        ------
        Invalid
            Naming the difference, or the missing part.
        """
        saved = state.get("order")
        wanted = {
            "version": _VERSION,
            # Versions of the order differ in lanes alone, and leased shards have none.
            "order": saved if saved in _state.ORDER_VERSIONS else _native.ORDER_VERSION,
            "draws": _native.DRAW_VERSION,
            "options": self._order,
            "shards": self._shards,
        }
        for key, here in wanted.items():
            if state.get(key) != here:
                raise Invalid(
                    f"the state was saved with another {key} ({state.get(key)!r}, here {here!r}); "
                    "use the same data set, order and release, or start without the state",
                    {"option": key},
                )
        try:
            epoch = whole("the state's epoch", state["epoch"], 0, U64_MAX)
            log, position = state["log"], whole("position", state["position"], 0, U64_MAX)
            following = whole("next", state["next"], 0, U32_MAX)
            marks = [
                {"turn": whole("turn", turn, 0, U32_MAX), "upto": whole("upto", upto, 0, U32_MAX)}
                for turn, upto in state["open"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid(
                f"this is not a loader's state ({error!r}); give the result of state_dict()"
            ) from None
        if log is None:
            return epoch, None
        return epoch, {"log": str(log), "position": position, "next": following, "open": marks}

    def _group(self, place: ranks.Place) -> str:
        """Return the identity of the job and its data, equal on all ranks."""
        named = ranks.group(place.world_size, self._options.group)
        what = json.dumps([named, self._shards, self._order])
        return hashlib.sha256(what.encode()).hexdigest()
