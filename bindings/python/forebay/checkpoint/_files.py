"""Files of checkpoints as Python's files: `open`, and waits for what was saved."""

from __future__ import annotations

import io
import os
import secrets
import sys
from types import TracebackType
from typing import Any, Literal, overload

from forebay import _native
from forebay._options import job_name
from forebay.checkpoint._way import TIMEOUT, Way, checked, split
from forebay.errors import Invalid, NotFound

Level = Literal["staged", "replicated", "uploaded", "published"]

# Levels, the weakest first.
_LEVELS = ("staged", "replicated", "uploaded", "published")

# Bytes of a file's identity: those of a random UUID.
ID_BYTES = 16

# A day: an upload of terabytes over a slow link ends within it.
_WAIT = 24 * 3600.0


class SavedFile(io.RawIOBase):
    """A file that is being saved: bytes are appended, and durable once it is closed.

    An exception within a ``with`` block leaves nothing of it.
    """

    def __init__(
        self,
        target: tuple[str, str],
        way: Way,
        *,
        identity: bytes | None = None,
        expected: int = 0,
        lone: bool = True,
        job: str | None = None,
    ) -> None:
        super().__init__()
        self._len = 0
        self._commit: tuple[list[bytes], int | None, bool] | None = None
        self._native = _native.CheckpointWriter(
            target,
            identity or secrets.token_bytes(ID_BYTES),
            expected,
            lone,
            job_name(job),
            way.native(),
        )

    def commit(self, files: list[bytes], step: int | None, overwrite: bool) -> None:
        """Make the checkpoint visible once this file and `files` are in the store."""
        self._commit = (files, step, overwrite)

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._len

    def write(self, data: Any) -> int:
        """Append bytes.

        Parameters
        ----------
        data
            Contiguous bytes of any object with a buffer. They are copied without the GIL.

        Returns
        -------
        int
            Their number.

        Raises
        ------
        Full
            If neither tier nor rule has room.
        Closed
            If the daemon ended: nothing of the file stays.
        """
        if self.closed:
            raise ValueError("the file is closed")
        written = self._native.write(data)
        self._len += written
        return written

    def close(self) -> None:
        """Make the file durable on this node."""
        if self.closed:
            return
        files, step, overwrite = self._commit or (None, None, False)
        try:
            self._native.finish(files, step, overwrite)
        finally:
            super().close()

    def abandon(self) -> None:
        """Close the file without a trace of it."""
        if not self.closed:
            self._native.abandon()
            super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __del__(self) -> None:
        # A file that nobody closed is not whole: a training run that fails must not publish it.
        if hasattr(self, "_native"):
            self.abandon()


class StoredFile(io.RawIOBase):
    """A file of a published checkpoint. Every byte is compared with its checksum."""

    def __init__(self, target: tuple[str, str], way: Way) -> None:
        super().__init__()
        self._at = 0
        self._native = _native.CheckpointReader(*target, way.native())

    def __len__(self) -> int:
        return self._native.len

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, as files do."""
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"invalid whence: {whence}")
        base = (0, self._at, self._native.len)[whence]
        if base + offset < 0:
            raise ValueError(f"negative position: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, into: Any) -> int:
        """Fill an object with the next bytes.

        Returns
        -------
        int
            Their number; less than the object holds only at the end of the file.

        Raises
        ------
        Corrupt
            If the bytes are not those that were saved, in the store as well.
        """
        if self.closed:
            raise ValueError("the file is closed")
        read = self._native.read_into(self._at, into)
        self._at += read
        return read

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, up to the end if `size` is negative or None."""
        left = max(0, self._native.len - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        found = bytearray(wanted)
        self.readinto(found)
        return bytes(found)

    def prefetch(self, offset: int, size: int) -> None:
        """Ask for bytes that will be read soon, such as a description at the end of the file.

        Bytes that are read in their order need no such call.

        Parameters
        ----------
        offset, size
            Range of the file. As much of it is read as the file's lent memory has room for.
        """
        if self.closed:
            raise ValueError("the file is closed")
        self._native.prefetch(offset, size)

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "_native") and not self.closed:
            self._native.close()
        super().close()


def exists(target: tuple[str, str], way: Way) -> bool:
    """Return True if a file of a folder is there: published, or its own and saved on this node.

    Raises
    ------
    Unavailable, PermissionDenied
        If the store does not say.
    """
    try:
        StoredFile(target, way).close()
    except NotFound:
        return False
    return True


@overload
def open(
    url: str | os.PathLike[str],
    mode: Literal["rb"] = ...,
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
    job: str | None = None,
) -> StoredFile: ...
@overload
def open(
    url: str | os.PathLike[str],
    mode: Literal["wb"],
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
    job: str | None = None,
) -> SavedFile: ...
def open(
    url: str | os.PathLike[str],
    mode: str = "rb",
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
    job: str | None = None,
) -> SavedFile | StoredFile:
    """Open a file of its own, to save it or to read it.

    >>> with forebay.checkpoint.open("s3://bucket/model.pt", "wb") as file:  # doctest: +SKIP
    ...     torch.save(model.state_dict(), file)

    A saved file is durable on this node once it is closed, and replaces the object once it is
    uploaded as a whole. A reader on this node sees it at once.

    Parameters
    ----------
    url
        URL of the object, or a path.
    mode
        ``"wb"`` or ``"rb"``.
    daemon
        Address of the daemon, as of `forebay.DataLoader`.
    timeout
        Seconds that the daemon has for each answer.
    job
        Name of the job, shown to admins.

    Raises
    ------
    Invalid
        For another mode or a URL that nothing can be saved to.
    Full
        If there is no room.
    NotFound
        If there is no such object.
    PermissionDenied
        If no ``[[checkpoint]]`` of the node lets this user save there.
    """
    target, way = split(url), Way.of(daemon, timeout)
    if mode == "wb":
        return SavedFile(target, way, job=job)
    if mode == "rb":
        return StoredFile(target, way)
    raise Invalid(f"mode={mode!r}: use 'rb' or 'wb'", {"option": "mode"})


def wait(
    url: str | os.PathLike[str],
    level: Level = "published",
    timeout: float = _WAIT,
    *,
    daemon: str | None = None,
) -> None:
    """Wait until the last save of a checkpoint has reached a level of durability.

    The last save is that of which this node has files. A checkpoint that was published there before
    does not count, unless this node has no files of a save.

    Parameters
    ----------
    url
        URL of the checkpoint, or of a file of its own.
    level
        ``"staged"``: durable on this node; ``"replicated"``: another node of the cluster has a
        second copy of each file, which this call asks for, or the store has it; ``"uploaded"``: all
        files of this node are in the store;
        ``"published"``: visible as a whole, on any node.
    timeout
        Seconds to wait.
    daemon
        Address of the daemon.

    Raises
    ------
    Unavailable
        If the level is not reached in time, or no other node answers (``replicated``).
    Full
        If no other node has room for a copy (``replicated``).
    NotFound
        If nothing of the checkpoint is on its way from this node (``staged``, ``uploaded``).
    Invalid, Corrupt, PermissionDenied
        If this node is in no cluster (``replicated``); if the upload or the publication needs
        somebody's help, with the reason.
    """
    if level not in _LEVELS:
        raise Invalid(f"level={level!r}: use one of {_LEVELS}", {"option": "level"})
    way = Way.of(daemon, timeout)
    _native.checkpoint_wait(checked(url), "", level, way.native())


def latest(
    prefix: str | os.PathLike[str],
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
) -> str | None:
    """Return the URL of the newest published checkpoint below a folder.

    Manifests decide, never names. Where ``torch.distributed`` is initialised, call it on all ranks:
    rank 0 looks, and all ranks get its answer.

    Parameters
    ----------
    prefix
        URL of the folder, such as that of a run.
    daemon, timeout
        As of `open`.

    Returns
    -------
    str or None
        None if nothing was published there.
    """
    folder, way = checked(prefix), Way.of(daemon, timeout)
    group = _group()
    if group is None:
        return _native.checkpoint_latest(folder, way.native())
    found: list[Any] = [None, None]
    if group.get_rank() == 0:
        try:
            found[0] = _native.checkpoint_latest(folder, way.native())
        except Exception as error:
            found[1] = error
    group.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    url: str | None = found[0]
    return url


def _group() -> Any:
    """Return torch.distributed, if this process is part of a group."""
    group = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_available() and group.is_initialized() else None
