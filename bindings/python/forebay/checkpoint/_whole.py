"""Folders of other tools, published as checkpoints."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Iterator

from forebay.checkpoint._files import ID_BYTES, SavedFile
from forebay.checkpoint._way import TIMEOUT, Way, checked
from forebay.errors import Invalid, NotFound

# Bytes copied at a time.
_PIECE = 4 << 20

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
        Replace a checkpoint that is published there already.
    daemon, timeout, job
        As of `open`.

    Raises
    ------
    NotFound
        If there is no such folder.
    Invalid
        For a folder without files, or one that holds a file of Forebay's name.
    Full
        If there is no room.
    """
    place, way = checked(url), Way.of(daemon, timeout)
    if not os.path.isdir(folder):
        raise NotFound(f"there is no folder {folder!s}", {"path": os.fspath(folder)})
    identities = []
    names = sorted(_files(os.fspath(folder)))
    if not names:
        raise Invalid(f"{folder!s} holds no files", {"option": "folder"})
    for name in names:
        if name == METADATA:
            raise Invalid(
                f"{folder!s} holds {METADATA}, which makes a checkpoint visible: save it with "
                "forebay.checkpoint.Writer",
                {"option": "folder"},
            )
        identity = secrets.token_bytes(ID_BYTES)
        path = os.path.join(folder, name)
        expected = os.path.getsize(path)
        saved = SavedFile(
            (place, name), way, identity=identity, expected=expected, lone=False, job=job
        )
        with saved, io.FileIO(path) as source:
            while piece := source.read(_PIECE):
                saved.write(piece)
        identities.append(identity)
    with SavedFile((place, METADATA), way, lone=False, job=job) as metadata:
        metadata.write(json.dumps({"files": names, "step": step}).encode())
        metadata.commit(identities, step, overwrite)


def _files(folder: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for root, _, names in os.walk(folder, onerror=fail, followlinks=True):
        for name in names:
            path = os.path.join(root, name)
            if not os.path.isfile(path):
                raise Invalid(f"{path} is no file", {"option": "folder"})
            yield os.path.relpath(path, folder)
