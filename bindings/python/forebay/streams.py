"""Mixed data sets: ``DataLoader([Stream(...), Stream(...)])``.

In every prefix each stream has its share, to within one sample, and a stream's own order does
not depend on the others.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

from forebay import _filters, _foreign, _native, _paths
from forebay._values import number
from forebay.errors import Invalid

__all__ = ["Stream"]

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Stream:
    """One data set of several that a `forebay.DataLoader` mixes.

    Either all streams of a loader have a weight, or none.

    Parameters
    ----------
    urls : str, path or list of them
        As of `forebay.DataLoader`.
    weight : float, optional
        Share of the samples, relative to the other streams' weights. The epoch's length is the
        loader's
        `epoch_samples`; a stream shorter than its share repeats, in another order.
    repeat : float, optional
        Repetitions per epoch: 2 plays every sample twice, 0.5 half of them. Default 1 without a
        weight.
        Needs sample counts.
    manifest : path, optional
        A file made by ``forebay index`` of these shards.
    where : str, optional
        Filter of this stream, besides the loader's; as of `forebay.DataLoader`.

    Raises
    ------
    Invalid
        For a weight or repeat that is not a positive number, or both.
    """

    @_foreign.explained(_foreign.STREAM)
    def __init__(
        self,
        urls: Urls,
        *,
        weight: float | None = None,
        repeat: float | None = None,
        manifest: str | os.PathLike[str] | None = None,
        where: str | None = None,
    ) -> None:
        if weight is not None and repeat is not None:
            raise Invalid("weight and repeat exclude each other; give one of them")
        self.urls = urls
        self.weight = None if weight is None else _above_zero("weight", weight)
        self.repeat = 1.0 if repeat is None else _above_zero("repeat", repeat)
        self.where = _filters.checked(where)
        # Relative paths mean the folder in which the stream was made.
        self._folder = _paths.here()
        self.manifest = _paths.file(manifest, self._folder)

    def named(self) -> Urls:
        """Return the URLs as they read in the current folder."""
        if self._folder == _paths.here():
            return self.urls
        if isinstance(self.urls, (str, os.PathLike)):
            return _paths.text(os.fspath(self.urls), self._folder)
        return [_paths.url(os.fspath(url), self._folder) for url in self.urls]

    def __repr__(self) -> str:
        share = f"repeat={self.repeat}" if self.weight is None else f"weight={self.weight}"
        return f"forebay.Stream({self.urls!r}, {share})"


class Mixture:
    """Streams of a loader, as far as its order depends on them."""

    def __init__(self, streams: Sequence[Stream], shards: Sequence[int]) -> None:
        if len({stream.weight is None for stream in streams}) > 1:
            raise Invalid(
                "some streams have a weight and others a repeat; give all of them a weight, or none"
            )
        self._streams = list(zip(shards, streams, strict=True))
        self.has_weights = any(stream.weight is not None for stream in streams)

    def proportions(self) -> list[dict[str, Any]]:
        """Return each stream for the native side."""
        return [
            {
                "shards": shards,
                "proportion": {"Repeat": stream.repeat}
                if stream.weight is None
                else {"Weight": stream.weight},
            }
            for shards, stream in self._streams
        ]

    def settled(self, urls: Sequence[str]) -> list[Stream]:
        """Return the streams over `urls`, the shards of all of them in a row."""
        settled, first = [], 0
        for shards, stream in self._streams:
            settled.append(copy.copy(stream))
            settled[-1].urls = urls[first : first + shards]
            first += shards
        return settled

    def samples(self, counts: Sequence[int]) -> int:
        """Return the samples of an epoch that repeats streams, from the counts of their shards."""
        first, parts = 0, []
        for shards, stream in self._streams:
            parts.append((sum(counts[first : first + shards]), stream.repeat))
            first += shards
        return sum(_native.repeats(parts))


def _above_zero(option: str, value: Any) -> float:
    found = number(option, value)
    if found <= 0:
        raise Invalid(f"{option}={value!r}; give a number above 0", {"option": option})
    return found
