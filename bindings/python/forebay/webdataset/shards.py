"""Shards of a worker, and their order.

Ranks and workers split the list by shard before anything is shuffled, so each shard has one reader
and each draw is that reader's own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from forebay import _listing, _native, _paths
from forebay._stop import items
from forebay.errors import Invalid
from forebay.join import Join
from forebay.webdataset import environment
from forebay.webdataset.place import Epoch, worker

__all__ = ["Shard", "Splitter", "single_node_only", "split_by_node", "split_by_worker"]

Shard = dict[str, str]
Splitter = Callable[[Iterator[Shard]], Iterable[Shard]]

_Item = TypeVar("_Item")

# Shards mixed by shardshuffle=True, and the initial fill of a shuffle: webdataset's numbers.
SHARDS_MIXED = 100
INITIAL = 100

# Largest number of shards for resampling, if `urls` is a generator that may never end.
_LISTED_MAX = 1_000_000


def split_by_node(src: Iterable[_Item], group: Any = None) -> Iterator[_Item]:
    """Yield every n-th shard for each of n ranks."""
    place = worker(group)
    return islice(iter(src), place.rank, None, place.world_size)


def single_node_only(src: Iterable[_Item], group: Any = None) -> Iterator[_Item]:
    """Yield all shards, for a program of one rank.

    Raises
    ------
    Invalid
        If there are several ranks: each would read everything.
    """
    place = worker(group)
    if place.world_size > 1:
        raise Invalid(
            f"this is rank {place.rank} of {place.world_size}, and nothing splits the shards among "
            "them; give nodesplitter=forebay.webdataset.split_by_node, or nodesplitter=None if "
            "each rank is to read every shard",
            {"option": "nodesplitter"},
        )
    return iter(src)


def split_by_worker(src: Iterable[_Item]) -> Iterator[_Item]:
    """Yield every n-th shard for each of n workers of torch's loader."""
    place = worker()
    return islice(iter(src), place.number, None, place.workers)


def listed(urls: Any, allow_pipe: bool, daemon: str | None, timeout: float) -> list[str]:
    """Return the shards in `urls`, as they are named there.

    Raises
    ------
    Invalid
        If it names no shards.
    """
    if isinstance(urls, os.PathLike):
        urls = os.fspath(urls)
    if isinstance(urls, Join):
        raise Invalid(
            "forebay.WebDataset reads one list of shards, and its steps may choose shards freely; "
            "give the join to forebay.DataLoader or forebay.IndexedDataset",
            {"option": "urls"},
        )
    if isinstance(urls, dict) or (isinstance(urls, str) and urls.endswith((".yaml", ".yml"))):
        raise Invalid(
            "specifications of several data sets are not supported; give a list of shards",
            {"option": "urls"},
        )
    if isinstance(urls, str):
        parts = [environment.filled(part) for part in urls.split("::")]
        found = [url for part in parts for url in _expanded(part, allow_pipe, daemon, timeout)]
    else:
        try:
            found = list(islice(items(urls), _LISTED_MAX + 1))
        except TypeError:
            found = []
        if len(found) > _LISTED_MAX:
            raise Invalid(f"urls= names more than {_LISTED_MAX} shards", {"option": "urls"})
        if not found or not all(isinstance(url, (str, os.PathLike)) for url in found):
            raise Invalid(
                f"urls={urls!r}: give a URL or a list of URLs, at least one", {"option": "urls"}
            )
        found = [str(os.fspath(url)) for url in found]
    # Unreadable shards are rejected before any worker starts.
    named(found, allow_pipe, _paths.here())
    return found


def named(urls: list[str], allow_pipe: bool, folder: str | None) -> list[str]:
    """Return the daemon's URLs, one for each of `urls`; relative paths begin at `folder`."""
    rewritten = [_paths.url(environment.rewritten(url), folder) for url in urls]
    return _native.expand_list(rewritten, allow_pipe)


def _expanded(part: str, allow_pipe: bool, daemon: str | None, timeout: float) -> list[str]:
    found = _listing.expand(part, allow_pipe, daemon, timeout)
    if not set(part) & set("{*?[\\") and len(found) == 1:
        return [part]
    if not os.path.isabs(part) and ":" not in part:
        # As it was written: only the daemon needs this process's folder.
        here = os.path.join(os.getcwd(), "")
        return [url.removeprefix(here) for url in found]
    return found


def resampled(urls: list[str], draws: random.Random) -> Iterator[Shard]:
    """Yield shards drawn with replacement, without end."""
    while True:
        yield {"url": urls[drawn(draws, len(urls))]}


def in_order(urls: list[str]) -> Iterator[Shard]:
    """Yield every shard once."""
    for url in urls:
        yield {"url": url}


def of_this_worker(
    urls: list[str],
    epoch: Epoch,
    *,
    resample: bool,
    nodesplitter: Splitter | None,
    workersplitter: Splitter | None,
    mixed: int,
) -> Iterator[Shard]:
    """Return this worker's shards in this epoch."""
    source: Iterator[Shard] = (
        resampled(urls, epoch.draws("resampled")) if resample else in_order(urls)
    )
    for split in (nodesplitter, workersplitter):
        if split is not None:
            source = items(split(source))
    if mixed and not resample:
        source = shuffled(source, mixed, INITIAL, epoch.draws("shards"))
    return source


def shuffled(
    source: Iterable[_Item], size: int, initial: int, draws: random.Random
) -> Iterator[_Item]:
    """Draw from a buffer of `size` items; begin once it holds `initial`.

    Until it is full it takes two items for each that it gives.
    """
    source, initial = iter(source), min(initial, size)
    buffer: list[_Item] = []
    for item in source:
        buffer.append(item)
        if len(buffer) < size:
            buffer.extend(islice(source, 1))
        if len(buffer) >= initial:
            yield _pick(buffer, draws)
    while buffer:
        yield _pick(buffer, draws)


def _pick(buffer: list[_Item], draws: random.Random) -> _Item:
    at = drawn(draws, len(buffer))
    buffer[at], buffer[-1] = buffer[-1], buffer[at]
    return buffer.pop()


def drawn(draws: random.Random, below: int) -> int:
    """Return a number from 0 to `below` - 1, the same for a seed in every release of Python."""
    return int(draws.random() * below)
