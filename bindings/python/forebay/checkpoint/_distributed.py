"""Storage of ``torch.distributed.checkpoint``: torch's own writer and reader above Forebay's files.

The format is torch's. Two things differ. Names of files hold a random part, so no save ever
overwrites a file of another. The coordinator's ``.metadata`` names the files of all ranks, and the
daemon makes it visible once they are all in the store.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import secrets
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from forebay._values import flag, whole
from forebay.checkpoint._archives import without_checksums
from forebay.checkpoint._files import ID_BYTES, SavedFile, StoredFile, exists
from forebay.checkpoint._tensors import restore
from forebay.checkpoint._way import TIMEOUT, Way, checked
from forebay.checkpoint._whole import METADATA
from forebay.errors import Invalid, Unavailable

# Bytes of the random part of a file's name: none is ever drawn twice.
_TOKEN_BYTES = 16

# Largest number of threads of one rank; each has its own connection and 64 MiB of lent memory.
_THREADS_MAX = 64

# Bytes at the end of an archive that hold its description, with room to spare: 3 records of some
# 100 bytes each.
_DESCRIBED = 4 << 10


def identity_of(name: str) -> bytes:
    """Return the identity of a file whose name holds a random part."""
    return hashlib.sha256(name.encode()).digest()[:ID_BYTES]


def prefetch_end(file: StoredFile, stored: Any) -> None:
    """Ask for the end of a stored tensor, which torch reads first."""
    end = stored.offset + stored.length
    file.prefetch(max(stored.offset, end - _DESCRIBED), min(stored.length, _DESCRIBED))


class _Places(FileSystem):
    """Forebay's files, as torch's writer and reader ask for them."""

    def __init__(self, way: Way, job: str | None) -> None:
        self.way = way
        self.job = job
        # Bytes of the next file.
        self.expected = 0

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        folder, _, name = os.fspath(path).rpartition("/")
        if mode == "rb":
            with StoredFile((folder, name), self.way) as stored:
                yield stored
            return
        saved = SavedFile(
            (folder, name),
            self.way,
            identity=identity_of(name),
            expected=self.expected,
            lone=False,
            job=self.job,
        )
        with without_checksums(), saved:
            yield saved

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return checked(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: stores have no folders."""

    def exists(self, path: str | os.PathLike[str]) -> bool:
        folder, _, name = os.fspath(path).rpartition("/")
        return exists((folder, name), self.way)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        raise NotImplementedError("the daemon makes checkpoints visible")

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        raise NotImplementedError("the daemon lists checkpoints")

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise NotImplementedError("the daemon removes checkpoints")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return bool(os.fspath(checkpoint_id).strip("/"))


class Writer(FileSystemWriter):
    """Saves a checkpoint: ``storage_writer=`` of ``dcp.save`` and ``dcp.async_save``.

    A save returns once this rank's bytes are durable on its node. `forebay.checkpoint.wait` waits
    for more. A failed upload never fails a step.

    Parameters
    ----------
    url
        URL of the checkpoint, such as ``s3://bucket/run/step-1000``.
    step
        Step of the training, for ``keep`` of the node's rule and for reports.
    overwrite
        Replace a checkpoint that is published there already: readers see the old one or the new
        one, never a mixture.
    thread_count
        Threads of this rank that write, each a file of its own.
    daemon, timeout, job
        As of `forebay.checkpoint.open`.
    **options
        Of torch's ``FileSystemWriter``.

    Raises
    ------
    Invalid
        If a checkpoint is published there and `overwrite` is False, when the save begins.
    Full
        If there is no room, before the first byte is written.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        overwrite: bool = False,
        thread_count: int = 1,
        daemon: str | None = None,
        timeout: float = TIMEOUT,
        job: str | None = None,
        **options: Any,
    ) -> None:
        self._step = None if step is None else whole("step", step, 0, 2**63 - 1)
        self._replaces = flag("overwrite", overwrite)
        threads = whole("thread_count", thread_count, 1, _THREADS_MAX)
        # Files are durable when they are closed.
        super().__init__(checked(url), thread_count=threads, sync_files=False, **options)
        self.fs: _Places = _Places(Way.of(daemon, timeout), job)
        self.path: str = self.fs.init_path(url)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Reject a save that could not be published."""
        if not kwargs.get("use_collectives", True):
            raise Invalid(
                "use_collectives=False: the ranks of a checkpoint are published together; leave it "
                "at True",
                {"option": "use_collectives"},
            )
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        visible = self.fs.concat_path(self.path, METADATA)
        if is_coordinator and not self._replaces and self._is_there(visible):
            raise Invalid(
                f"a checkpoint is published at {self.path} already: save to another URL, or pass "
                "overwrite=True",
                {"url": self.path, "reason": "exists"},
            )

    def _is_there(self, name: str) -> bool:
        try:
            return self.fs.exists(name)
        except Unavailable:
            # No step waits for the store. The daemon looks again before it publishes.
            return False

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is: there are no folders to make."""
        return plan

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors to files of new names."""
        prefix = plan.storage_data
        # A plan that torch cached has the prefix of an earlier save.
        fresh = f"{prefix.prefix}{secrets.token_hex(_TOKEN_BYTES)}_"
        sizes = (item.tensor_storage_size() for item in plan.items)
        total = sum(size for size in sizes if size is not None)
        self.fs.expected = total // self.thread_count
        try:
            return super().write_data(
                replace(plan, storage_data=replace(prefix, prefix=fresh)), planner
            )
        finally:
            self.fs.expected = 0

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Save ``.metadata``, which makes the checkpoint visible once all files are uploaded."""
        written = [result for of_rank in results for result in of_rank]
        metadata.storage_data = {result.index: result.storage_data for result in written}
        metadata.storage_meta = self.storage_meta()
        names = sorted({result.storage_data.relative_path for result in written})
        saved = SavedFile((self.path, METADATA), self.fs.way, lone=False, job=self.fs.job)
        with saved:
            saved.write(pickle.dumps(metadata))
            saved.commit([identity_of(name) for name in names], self._step, self._replaces)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True for a URL or a path."""
        return _Places.validate_checkpoint_id(checkpoint_id)


class Reader(FileSystemReader):
    """Restores a checkpoint: ``storage_reader=`` of ``dcp.load``.

    It reads what `Writer` published and what torch's own writers wrote. What this node saved comes
    from its disk. Each block is compared with its checksum, where the checkpoint has them.

    A checkpoint's ``.metadata`` is a pickle. A checksum proves that it is what was saved, not who
    saved it: restore only what you trust.

    Parameters
    ----------
    url
        URL of the checkpoint, or a path.
    thread_count
        Threads of this rank that read, each with 64 MiB of lent memory. The planner must allow it:
        torch's own does.
    daemon, timeout
        As of `forebay.checkpoint.open`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        thread_count: int = 1,
        daemon: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._threads = whole("thread_count", thread_count, 1, _THREADS_MAX)
        super().__init__(checked(url))
        self.fs: _Places = _Places(Way.of(daemon, timeout), None)
        self.path: str = self.fs.init_path(url)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the wanted tensors, file by file from the first byte to the last."""

        def place(item: ReadItem) -> tuple[str, int]:
            stored = self._stored(item)
            return stored.relative_path, stored.offset

        first, *others = self._parts(sorted(plan.items, key=place)) or [[]]
        stop = threading.Event()
        with ThreadPoolExecutor(self._threads) as threads:
            restoring = [threads.submit(self._restore, part, planner, stop) for part in others]
            # After an error all threads end with the tensor that they read.
            for part in restoring:
                part.add_done_callback(lambda part: stop.set() if part.exception() else None)
            try:
                # Ctrl-C reaches this thread alone.
                left = self._restore(first, planner, stop)
                for part in restoring:
                    left += part.result()
            finally:
                stop.set()
        return super().read_data(replace(plan, items=left), planner)

    def _restore(
        self, items: list[ReadItem], planner: LoadPlanner, stop: threading.Event
    ) -> list[ReadItem]:
        """Restore tensors until `stop` is set; return the items that torch has to read."""
        left: list[ReadItem] = []
        for name, of_file in groupby(items, lambda item: self._stored(item).relative_path):
            wanted = list(of_file)
            with StoredFile((self.path, name), self.fs.way) as file:
                for number, item in enumerate(wanted):
                    if stop.is_set():
                        return left
                    # Tensors are described at the end of their archives.
                    for following in wanted[number + 1 : number + 2]:
                        prefetch_end(file, self._stored(following))
                    stored = self._stored(item)
                    view = self._slice_file(file, stored)
                    is_plain = not stored.transform_descriptors
                    if not is_plain or not restore(file, view, item, stored.offset, planner):
                        left.append(item)
        return left

    def _stored(self, item: ReadItem) -> Any:
        """Return file, offset and length of an item."""
        return self.storage_data[item.storage_index]

    def _parts(self, items: list[ReadItem]) -> list[list[ReadItem]]:
        """Divide items in their order, so that each thread reads about as many bytes."""
        sizes = [self._stored(item).length for item in items]
        share = sum(sizes) / self._threads
        parts: list[list[ReadItem]] = [[] for _ in range(self._threads)]
        before = 0
        for item, size in zip(items, sizes, strict=True):
            at = int(before / share) if share else 0
            parts[min(at, self._threads - 1)].append(item)
            before += size
        return [part for part in parts if part]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True for a URL or a path."""
        return _Places.validate_checkpoint_id(checkpoint_id)
