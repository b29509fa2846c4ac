"""Random access: samples by number, from the same cache and decoders as `forebay.DataLoader`.

A request is one batch. Neighbouring samples of a shard are read together, whatever their number and
order in the request. With a member index, samples of shards that are not in the cache are read from
the store without the rest of their shards.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from forebay import _foreign, _native, _paths, frameworks
from forebay._epoch import Empty
from forebay._launch import daemon as launch
from forebay._options import Verify
from forebay._stop import Guard
from forebay._turns import Turns
from forebay.errors import Closed, Invalid
from forebay.fields import Field
from forebay.join import Join, Urls
from forebay.loader import DataLoader

__all__ = ["IndexedDataset"]

Sample = dict[str, Any]


class IndexedDataset:
    """Samples of WebDataset shards as a sequence: ``len(dataset)``, ``dataset[i]``.

    Sample i is the i-th in list order. It is a dict like a batch of `forebay.DataLoader`, with
    single values instead of rows, and without ``"__valid__"``. A list of numbers, or a slice, gives
    a batch in that order, read at once: ``dataset[[5, 3, 8]]``.

    It pickles, opens a session of its own in each process that uses it, and works under torch's
    ``DataLoader`` with any sampler and number of workers (each batch is then one request).

    Parameters
    ----------
    urls, fields, seed, verify, framework, timeout, allow_pipe, daemon, job
        As of `forebay.DataLoader`. Random crops and flips are a function of `seed` and a sample's
        number.
    manifest : path or URL, optional
        A file made by ``forebay index``, here or in a store. Without one the shards are counted at
        the first use, for which each of them passes through the cache once. With a member index
        beside it (``forebay index --members``), a sample of a shard that is not in the cache is
        read by itself: its fields in `fields`, in one request or two.
    where : str, optional
        Filter, as of `forebay.DataLoader`: sample i is the i-th that passes.

    Raises
    ------
    Invalid
        Here, for an invalid argument.
    """

    @_foreign.explained(_foreign.INDEXED)
    def __init__(
        self,
        urls: Urls | Join,
        *,
        fields: Mapping[str, Field] | None = None,
        manifest: str | os.PathLike[str] | None = None,
        where: str | None = None,
        seed: int = 0,
        verify: Verify = "arrival",
        framework: frameworks.Name | None = None,
        timeout: float = 300.0,
        allow_pipe: bool = False,
        daemon: str | None = None,
        job: str | None = None,
    ) -> None:
        # One batch is requested at a time, and all of it belongs to this process.
        self._loader = DataLoader(
            urls,
            batch_size=1,
            fields=fields,
            seed=seed,
            verify=verify,
            manifest=manifest,
            where=where,
            rank=0,
            world_size=1,
            framework=framework,
            device="cpu",
            prefetch=1,
            timeout=timeout,
            allow_pipe=allow_pipe,
            daemon=daemon,
            job=job,
        )
        counts = self._loader._options.counts
        # Number of the first sample of each shard, and at the end of all samples.
        self._firsts = None if counts is None else _firsts(counts)
        self._manifest = _paths.file(manifest, _paths.here())
        self._turns = Turns()
        self._located: tuple[int, _native.Locator | None] | None = None

    def __len__(self) -> int:
        """Return the number of samples of all shards.

        Raises
        ------
        NotFound
            If there are none.
        """
        return self._ends()[-1]

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sample: ...
    @overload
    def __getitem__(self, index: slice | Sequence[SupportsIndex]) -> dict[str, Any]: ...
    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return sample `index`, or the batch of a list or slice of them.

        Raises
        ------
        IndexError
            For a number out of range.
        ForebayError
            For a bad sample, naming it, and for errors that prevent samples.
        """
        if isinstance(index, slice):
            return self._batch(range(*index.indices(len(self))))
        if getattr(index, "shape", ()):
            # One of torch's tensors with one element would pass for a number.
            return self._batch(index)
        try:
            number = operator.index(index)
        except TypeError:
            return self._batch(index)
        return _row(self._batch([number]), 0)

    def __iter__(self) -> Iterator[Sample]:
        """Return the samples one after the other; threads may share the iterator."""
        # Without this method Python would take an IndexError of user code for the end.
        return map(self.__getitem__, range(len(self)))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Sample]:
        """Return the samples of these numbers, one dict each, for torch's loader."""
        batch = self._batch(indices)
        return [_row(batch, row) for row in range(len(batch["__key__"]))]

    def close(self) -> None:
        """End the session. Delivered samples stay valid."""
        self._loader.close()

    def __enter__(self) -> IndexedDataset:
        """Return the dataset itself, closed when the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"loader": self._loader, "firsts": self._firsts, "manifest": self._manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._loader, self._firsts = state["loader"], state["firsts"]
        self._manifest = state["manifest"]
        self._turns = Turns()
        self._located = None

    def __repr__(self) -> str:
        urls = self._loader._options.urls
        more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
        return f"<forebay.IndexedDataset {urls[0]}{more}>"

    def _ends(self) -> list[int]:
        if self._firsts is None:
            if self._loader._closed:
                raise Closed("the dataset is closed; make a new one")
            options = self._loader._options
            counts = _native.count(
                options.urls, options.allow_pipe, options.daemon, launch(), options.timeout
            )
            self._firsts = _firsts(counts)
        if self._firsts[-1] == 0:
            raise Empty(self._loader._options.urls)
        return self._firsts

    def _place(self, shard: int, nth: int) -> int:
        """Return the place in its shard of the `nth` sample that passes the filter."""
        filtered = self._loader._options.filtered
        place = nth if filtered is None else filtered.selection.place(shard, nth)
        assert place is not None, "the counts are those of the selection"
        return place

    def _locator(self) -> _native.Locator | None:
        """Return the member index, opened by this process; None if there is none."""
        # The other parts of a join come as whole shards, so the first does too.
        if self._manifest is None or self._loader._options.joined is not None:
            return None
        process = _native.forks()
        if self._located is None or self._located[0] != process:
            options = self._loader._options
            way = (options.daemon, launch(), options.timeout)
            found = _native.Locator.open(os.fspath(self._manifest), options.urls, way)
            self._located = (process, found)
        return self._located[1]

    def _batch(self, indices: Any) -> dict[str, Any]:
        try:
            wanted = list(indices)
            numbers = [operator.index(index) for index in wanted]
        except TypeError:
            raise Invalid(
                f"samples have numbers; give a whole number, a list of them or a slice, not "
                f"{indices!r}"
            ) from None
        if any(str(getattr(one, "dtype", type(one).__name__)).endswith("bool") for one in wanted):
            raise Invalid("a mask is no list of numbers; give the numbers of its true places")
        firsts, samples = self._ends(), len(self)
        places = []
        for number in numbers:
            at = number + samples if number < 0 else number
            if not 0 <= at < samples:
                raise IndexError(f"sample {number} of {samples}")
            shard = bisect.bisect_right(firsts, at) - 1
            places.append((at, shard, self._place(shard, at - firsts[shard])))
        if not places:
            raise Invalid("an empty batch has no fields; name at least one sample")
        with self._turns.lock:
            native = self._loader._opened()
            native.pick(places, self._locator())
            found = native.next()
        if not isinstance(found, _native.Batch):
            raise Invalid("the daemon ended a request without its samples; report it as a bug")
        errors = found.errors()
        if errors:
            raise errors[0]
        with Guard():
            batch: dict[str, Any] = self._loader._assembler()(found).batch
        del batch["__valid__"]
        return batch


def _firsts(counts: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(counts, initial=0))


def _row(batch: dict[str, Any], row: int) -> Sample:
    return {name: values[row] for name, values in batch.items()}
