"""Mixed data sets: ``DataLoader([Stream(...), Stream(...)])``.

In every prefix each stream has its share, to within one sample, and a stream's own order does
not depend on the others.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

from forebay import _filters, _foreign, _native, _paths, schedule
from forebay._values import number
from forebay.errors import Invalid
from forebay.join import Join, Urls, named
from forebay.schedule import Change, Schedule

__all__ = ["Stream"]


class Stream:
    """One data set of several that a `forebay.DataLoader` mixes.

    Either all streams of a loader have a weight, or none.

    Parameters
    ----------
    urls : str, path or list of them, or Join
        As of `forebay.DataLoader`.
    weight : float or Schedule, optional
        Share of the samples, relative to the other streams' weights. The epoch's length is the
        loader's `epoch_samples`; a stream shorter than its share repeats, in another order. A
        `forebay.Schedule` changes it during the job, and `DataLoader.set_weights` at run time.
    repeat : float, optional
        Repetitions per epoch: 2 plays every sample twice, 0.5 half of them. Default 1 without a
        weight. Needs sample counts.
    manifest : path or URL, optional
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
        urls: Urls | Join,
        *,
        weight: float | Schedule | None = None,
        repeat: float | None = None,
        manifest: str | os.PathLike[str] | None = None,
        where: str | None = None,
    ) -> None:
        if weight is not None and repeat is not None:
            raise Invalid("weight and repeat exclude each other; give one of them")
        self.urls = urls
        constant = weight is None or isinstance(weight, Schedule)
        self.weight = weight if constant else _above_zero("weight", weight)
        self.repeat = 1.0 if repeat is None else _above_zero("repeat", repeat)
        self.where = _filters.checked(where)
        # Relative paths mean the folder in which the stream was made.
        self._folder = _paths.here()
        self.manifest = _paths.file(manifest, self._folder)

    def named(self) -> Urls | Join:
        """Return the URLs as they read in the current folder."""
        if isinstance(self.urls, Join):
            return self.urls
        found: Urls = named(self.urls, self._folder)
        return found

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
        self.count = len(streams)
        self.has_weights = any(stream.weight is not None for stream in streams)

    def described(self) -> list[dict[str, Any]]:
        """Return the streams as states hold them."""
        return [
            {"shards": shards, "proportion": _described(stream)} for shards, stream in self._streams
        ]

    def native(self, epoch_samples: int | None, changes: Sequence[Change]) -> dict[str, Any]:
        """Return the mixture for the native side; `changes`: weights set while the job ran."""
        weights = [stream.weight for _, stream in self._streams if stream.weight is not None]
        if not changes and not any(isinstance(weight, Schedule) for weight in weights):
            return {"streams": self.described(), "phases": []}
        # Weights come with `epoch_samples`.
        phases = schedule.phases(weights, epoch_samples or 0, changes)
        streams = [{"shards": shards, "proportion": "Scheduled"} for shards, _ in self._streams]
        return {"streams": streams, "phases": phases}

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


def checked_weights(mixture: Mixture | None, given: Any) -> tuple[float, ...]:
    """Return weights for all streams of a mixture, set while the job runs.

    Raises
    ------
    Invalid
        If the streams have no weights, or others than one number of 0 or more each.
    """
    if mixture is None or not mixture.has_weights:
        raise Invalid(
            "there are no weights to change; give a list of forebay.Stream, each with a weight="
        )
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise Invalid(f"weights={given!r}; give a list with one weight for each stream")
    found = tuple(schedule.weight(each) for each in given)
    if len(found) != mixture.count or not any(found):
        raise Invalid(
            f"weights={given!r}; give one weight for each of the {mixture.count} streams, and one "
            "above 0"
        )
    return found


def _described(stream: Stream) -> dict[str, Any]:
    if stream.weight is None:
        return {"Repeat": stream.repeat}
    if isinstance(stream.weight, Schedule):
        return {"Schedule": stream.weight.described()}
    return {"Weight": stream.weight}


def _above_zero(option: str, value: Any) -> float:
    found = number(option, value)
    if found <= 0:
        raise Invalid(f"{option}={value!r}; give a number above 0", {"option": option})
    return found
