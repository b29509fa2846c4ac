"""Whole checkpoints: folders of other tools published, published ones copied or removed."""

from __future__ import annotations

import os

from forebay import _native
from forebay._options import job_name
from forebay._values import flag, whole
from forebay.checkpoint._way import TIMEOUT, Way, checked

# File that makes a checkpoint visible.
METADATA = ".metadata"


def push(
    folder: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    step: int | None = None,
    overwrite: bool = False,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
    job: str | None = None,
) -> None:
    """Save all files of a local folder, and publish them as one checkpoint.

    It returns once they are durable on this node. Links are followed; other special files are
    rejected.

    Parameters
    ----------
    folder
        Local folder.
    url
        URL of the checkpoint.
    step
        Step of the training, for ``keep`` of the node's rule.
    overwrite
        Replace a checkpoint that is published there already, once all files are durable on this
        node. Files keep their names, so a reader may meet old and new ones beside each other until
        the new checkpoint is published.
    daemon, timeout, job
        As of `open`.

    Raises
    ------
    NotFound
        If there is no such folder.
    Invalid
        For a folder without files, or one that holds a file of Forebay's name; with the place
        ``reason`` = ``exists`` if a checkpoint is published there and `overwrite` is False.
    Full
        If there is no room.
    """
    step = None if step is None else whole("step", step, 0, 2**63 - 1)
    place, way = checked(url), Way.of(daemon, timeout)
    _native.checkpoint_push(
        os.fspath(folder), place, step, flag("overwrite", overwrite), job_name(job), way.native()
    )


def restore(
    url: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Copy all files of a published checkpoint to a new local folder.

    The folder appears once all files are in it, each compared with its checksums. What this node
    saved comes from its disk.

    Parameters
    ----------
    url
        URL of the checkpoint.
    folder
        Local folder, which does not exist or is empty.
    daemon, timeout
        As of `open`.

    Raises
    ------
    NotFound
        If nothing is published there.
    Invalid
        If the folder holds files.
    Corrupt
        If the bytes are not those that were saved, in the store as well.
    """
    place, way = checked(url), Way.of(daemon, timeout)
    _native.checkpoint_restore(place, os.fspath(folder), way.native())


def remove(
    url: str | os.PathLike[str],
    *,
    daemon: str | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Remove a checkpoint, or a file of its own: uploads that are under way, and what is published.

    It disappears as a whole before its first file goes.

    Parameters
    ----------
    url
        URL of the checkpoint, or of a file that this node saved by `open`.
    daemon, timeout
        As of `open`.

    Raises
    ------
    NotFound
        If there is nothing of it.
    Invalid
        For a checkpoint that Forebay did not publish.
    PermissionDenied
        If this user may not save there.
    """
    place, way = checked(url), Way.of(daemon, timeout)
    _native.checkpoint_remove(place, way.native())
