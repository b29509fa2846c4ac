"""From a worker's shards to samples: dicts of bytes, in the order of the shards.

A sample is delivered once, and the handler gets an error at its place in the stream: after all
samples before it and before any after it. Samples come in batches without places between them; if a
batch fails, its samples are requested one by one.
"""

from __future__ import annotations

import logging
import math
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import urlsplit

from forebay import _native, _paths
from forebay._epoch import Empty
from forebay.errors import BadSample, Corrupt, ForebayError, Full, Invalid
from forebay.loader import DataLoader
from forebay.webdataset import shards
from forebay.webdataset.handlers import Handler
from forebay.webdataset.shards import Shard

_log = logging.getLogger("forebay")

Sample = dict[str, Any]

# Samples requested at once. Small ones gain nothing from more (measured with 60 KB), and large ones
# would need much memory.
_BATCH = 16

# Samples requested one by one after a bad one: as many as its batch had, doubling each time, up to
# this. Bad samples come in groups, and changing the way takes time.
_SINGLES_MAX = 4096

# Shards opened as one job. At the end of a list there is no read-ahead, which is rare enough.
_SHARDS = 1024

# Shards are read ahead from the end of the window on, and none are mixed here.
_WINDOW = 1

# Suffixes of compressions that the daemon does not support.
_SUFFIXES = {".bz2": "bzip2", ".tbz": "bzip2", ".tbz2": "bzip2", ".xz": "xz", ".txz": "xz"}
_BEGINNINGS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}


@dataclass(frozen=True)
class Reading:
    """Options of reading shards; see `forebay.DataLoader` for their meaning."""

    handler: Handler
    verbose: bool
    allow_pipe: bool
    timeout: float
    daemon: str | None
    job: str | None
    # Start of relative paths: the current folder when the data set was made.
    folder: str | None


class BrokenShard(Corrupt, tarfile.ReadError):
    """A shard whose bytes are wrong, as a handler gets it."""


class _Raised(Exception):
    """Carries a handler's exception past code that catches the loader's own errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def read(source: Iterator[Shard], reading: Reading) -> Iterator[Sample]:
    """Yield the samples of `source`, shard after shard."""
    while urls := [_url(shard) for shard in islice(source, _SHARDS)]:
        part = _Part(urls, reading)
        try:
            yield from part.samples()
        except _Raised as raised:
            raise raised.error from None
        if part.stopped:
            return


def local_path(url: str) -> str | None:
    """Return the path of a shard that is a file here."""
    parts = urlsplit(url)
    return parts.path if parts.scheme in ("", "file") else None


def _url(shard: Any) -> str:
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise Invalid(f"a splitter returned {shard!r}; return its input items, dicts with 'url'")
    return url


class _Part:
    """A list of shards, read to its end or until the handler stops."""

    def __init__(self, urls: list[str], reading: Reading) -> None:
        self._urls = urls
        self._named = shards.named(urls, reading.allow_pipe, reading.folder)
        # Errors name shards without signatures and words of commands.
        self._shown = [_native.shown(url) for url in self._named]
        self._reading = reading
        self.stopped = False
        # The current shard, the positions since its start, and the first shard not to read for now.
        self._at, self._behind, self._end = 0, 0, len(urls)
        self._fault: ForebayError | None = None
        # Positions still to be requested one by one.
        self._singles: float = 0
        self._patience = _BATCH
        # Last error of a sample: it names the shard of a position without a sample.
        self._bad: ForebayError | None = None
        self._turn_to(0)

    def samples(self) -> Iterator[Sample]:
        """Yield every sample."""
        while not self.stopped and self._at < len(self._urls):
            if self._at < self._end:
                yield from self._run()
            else:
                self._go_on()

    def _run(self) -> Iterator[Sample]:
        """Read up to `_end`, or until another way of requesting is needed."""
        single = self._singles > 0
        with self._loader(1 if single else _BATCH, "raise" if not single else None) as loader:
            batches = iter(loader)
            while True:
                try:
                    batch = next(batches, None)
                except Empty:
                    # The other shards of the list may have samples.
                    break
                except ForebayError as error:
                    self._failed(error, single)
                    return
                if batch is None:
                    break
                yield from self._rows(batch)
                self._singles -= single
                if single and self._singles <= 0:
                    return
        self._at, self._behind = self._end, 0

    def _loader(self, batch_size: int, on_error: Literal["raise"] | None) -> DataLoader:
        reading = self._reading
        loader = DataLoader(
            self._named[self._at : self._end],
            batch_size=batch_size,
            lanes=1,
            window=_WINDOW,
            rank=0,
            world_size=1,
            on_error=on_error or self._verdict,
            # A position without a sample counts as one.
            drop_empty=False,
            timeout=reading.timeout,
            allow_pipe=reading.allow_pipe,
            daemon=reading.daemon,
            job=reading.job,
        )
        if self._behind:
            loader.load_state_dict(loader.state_dict() | {"samples": self._behind})
            # This epoch and no other, even if nothing of it is left.
            loader.set_epoch(0)
        return loader

    def _rows(self, batch: dict[str, Any]) -> Iterator[Sample]:
        keys, urls = batch.pop("__key__"), batch.pop("__url__")
        del batch["__valid__"]
        fields = list(batch.items())
        if not len(keys) and self._bad is not None:
            self._passed(self._bad.places.get("url", ""), self._shown)
        for row, key in enumerate(keys):
            self._passed(urls[row], self._named)
            sample = {"__key__": key, "__url__": self._urls[self._at]}
            if self._path is not None:
                sample["__local_path__"] = self._path
            sample.update((name, rows[row]) for name, rows in fields if rows[row] is not None)
            yield sample

    def _passed(self, name: str, names: list[str]) -> None:
        """Count one position of the shard that has this name among `names`."""
        if name != names[self._at]:
            self._turn_to(names.index(name, self._at))
        self._behind += 1

    def _turn_to(self, shard: int) -> None:
        self._at, self._behind = shard, 0
        if shard == len(self._urls):
            return
        path = local_path(self._urls[shard])
        self._path = path and _paths.path(path, self._reading.folder)
        if self._reading.verbose:
            _log.info("reads %s", self._urls[shard])

    # Errors

    def _failed(self, error: ForebayError, single: bool) -> None:
        """Continue in another way after the loader raised `error`, or raise it."""
        if single and isinstance(error, (BadSample, Corrupt, Full)):
            raise error
        if isinstance(error, Full):
            # The samples may be too large for a batch of them.
            self._singles = math.inf
        elif isinstance(error, (BadSample, Corrupt)):
            self._singles = self._patience
            self._patience = min(2 * self._patience, _SINGLES_MAX)
        elif "url" not in error.places:
            # No shard is at fault.
            raise error
        elif error.places["url"] in self._named[self._at : self._end]:
            # It may come well ahead: the shards before it come first.
            self._end, self._fault = self._named.index(error.places["url"], self._at), error
        elif self._end - self._at > 1:
            # Errors show only a part of commands and signed URLs: so this shard is read alone.
            self._end = self._at + 1
        else:
            self._end, self._fault = self._at, error

    def _go_on(self) -> None:
        """After the last readable shard: report the reason, and turn to the next."""
        fault, self._fault = self._fault, None
        self._turn_to(self._end if fault is None else self._end + 1)
        self._end = len(self._urls)
        if fault is None:
            return
        if self._reading.handler(_told(fault)):
            _log.warning("skipped: %s", fault)
        else:
            self.stopped = True

    def _verdict(self, error: ForebayError) -> Literal["skip", "stop"]:
        """Return the handler's decision, in the words of `DataLoader`."""
        if "key" in error.places:
            self._bad = error
        try:
            self.stopped = not self._reading.handler(_told(_advised(error)))
        except BaseException as raised:
            raise _Raised(raised) from None
        return "stop" if self.stopped else "skip"


def _told(error: ForebayError) -> ForebayError:
    """Return the error in a class that webdataset's handlers know, too."""
    if type(error) is not Corrupt:
        return error
    told = BrokenShard(str(error), error.places)
    told.__cause__ = error.__cause__
    return told


def _advised(error: ForebayError) -> ForebayError:
    """Return the error of a compressed tar with that reason."""
    url = error.places.get("url", "")
    if not isinstance(error, Corrupt) or error.places.get("offset") != "0":
        return error
    compression = next((name for end, name in _SUFFIXES.items() if url.endswith(end)), None)
    path = local_path(url)
    if compression is None and path is not None:
        try:
            with open(path, "rb") as file:
                first = file.read(max(map(len, _BEGINNINGS)))
        except OSError:
            return error
        found = (name for begin, name in _BEGINNINGS.items() if first.startswith(begin))
        compression = next(found, None)
    if compression is None:
        return error
    return Invalid(
        f"the shard is compressed with {compression}, which is not supported (url={url}); "
        "compress it with zstd or gzip, or leave it plain",
        error.places,
    )
