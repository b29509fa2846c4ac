"""Steps of an epoch: batches counted by samples, or by bins of tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forebay import _native, _settings, ranks
from forebay._options import Options
from forebay._state import Position
from forebay.schedule import Change

# A job as far as its batches depend on it: rank and world, lanes and version of its order,
# weights set while it ran.
Job = tuple[ranks.Place, tuple[int | None, int], Sequence[Change]]


class Steps:
    """Batches of an epoch, the same number for every rank."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bins: tuple[Any, _native.Bins] | None = None

    def samples(self, at: Position, job: Job) -> int:
        """Return the position of `at` in its epoch: samples over all ranks, or bins."""
        if self._options.binned is None:
            return at.samples(self._options.batch_size * job[0].world_size)
        return self._of(job).after(at.epoch, at.base, at.batch)

    def left(self, at: Position, total: int, job: Job) -> int:
        """Return the batches from the base of `at` to the end of an epoch of `total` samples."""
        if self._options.binned is not None:
            return self._of(job).steps(at.epoch, at.base)
        samples = total - at.base
        batch = self._options.batch_size * job[0].world_size
        return samples // batch if self._options.drop_last else -(-samples // batch)

    def is_over(self, at: Position, total: int, job: Job) -> bool:
        """Return True if an epoch of `total` samples has no batch at `at`."""
        if self._options.binned is not None:
            return self._of(job).is_over(at.epoch, at.base, at.batch)
        return at.batch >= self.left(at, total, job)

    def settled(self, at: Position, total: int, job: Job) -> int:
        """Return the first sample of an epoch that may still change before the batch at `at`."""
        first = self.samples(at, job)
        if self._options.binned is not None:
            first = self._of(job).horizon(at.epoch, first)
        return min(first, total)

    def _of(self, job: Job) -> _native.Bins:
        place, (lanes, version), changes = job
        key = (place.world_size, lanes, tuple(changes))
        if self._bins is None or self._bins[0] != key:
            options, cut = self._options, self._options.cut()
            assert cut is not None, "asked for with bins only"
            order = (lanes, version, options.counts)
            settings = _settings.of(options, place, order, 1, changes)
            ordered = {name: settings[name] for name in ("order", "mixture", "counts")}
            bins = _native.Bins(json.dumps(ordered), cut)
            self._bins = (key, bins)
        return self._bins[1]
