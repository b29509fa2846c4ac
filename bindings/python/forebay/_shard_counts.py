"""Sample counts of a loader's shards: those of a manifest, or learnt in an earlier epoch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from forebay import _native
from forebay._launch import daemon as launch
from forebay._options import Options

_NO_LENGTH = (
    "the length is not known without sample counts: give manifest= (make one with `forebay index "
    "URLS -o manifest.json`) or epoch_samples="
)


class ShardCounts:
    """Samples of each shard, and the identity that a state has of the shards."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # None while they are unknown.
        self.samples = options.counts

    @property
    def are_learnt(self) -> bool:
        """True if they come from an earlier epoch."""
        return self.samples is not None and self._options.counts is None

    def total(self) -> int:
        """Return the samples in an epoch over all ranks.

        Raises
        ------
        TypeError
            Without sample counts; the text says how to get them.
        """
        options = self._options
        if options.epoch_samples is not None:
            return options.epoch_samples
        if self.samples is None:
            raise TypeError(_NO_LENGTH)
        mixture = options.mixture
        return sum(self.samples) if mixture is None else mixture.samples(self.samples)

    def use(self, samples: list[int] | None) -> bool:
        """Use these counts; returns True if they are others than before."""
        if samples == self.samples:
            return False
        self.samples = samples
        self.__dict__.pop("shards", None)
        return True

    def of_state(self, state: Any) -> list[int] | None:
        """Return the counts that `state` was saved with, if no manifest has others."""
        if self._options.counts is not None or not isinstance(state, Mapping):
            return self.samples
        urls = state.get("urls")
        if urls is None:
            return None
        if urls != self.urls or state.get("shards") == self.shards:
            return self.samples
        options = self._options
        return _native.count(
            options.urls, options.allow_pipe, options.daemon, launch(), options.timeout
        )

    @cached_property
    def urls(self) -> str:
        """Hash of the shards' names."""
        return hashlib.sha256(json.dumps(self._options.urls).encode()).hexdigest()

    @cached_property
    def shards(self) -> str:
        """Hash of the shards' names and counts."""
        if self.samples is None:
            return self.urls
        return _native.manifest_hash(list(zip(self._options.urls, self.samples, strict=True)))
