"""Ways to save and to restore the state of a rank: plain torch's, Forebay's, the S3 connector's.

Each is a function of the rank's tensors and a place. A save returns when the trainer may go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal, cast

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.storage import StorageWriter

from forebay import checkpoint

State = dict[str, torch.Tensor]

# Seconds for an upload on a busy machine.
PATIENCE = 600.0


def save_by_torch(state: State, place: str) -> None:
    """Save by ``torch.save``, synced."""
    with open(place, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def save_by_filesystem(state: State, place: str) -> None:
    """Save by DCP's own writer, which syncs its files."""
    state_dict_saver.save(state, storage_writer=FileSystemWriter(place))


def save_by_writer(state: State, place: str) -> None:
    """Save by Forebay's writer for DCP."""
    state_dict_saver.save(state, storage_writer=checkpoint.Writer(place))


def save_by_file(state: State, place: str) -> None:
    """Save by ``torch.save`` into Forebay's file."""
    with checkpoint.open(place, "wb") as file:
        # Python's raw files are no typing.IO.
        torch.save(state, cast(IO[bytes], file))


def save_by_bytes(state: State, place: str) -> None:
    """Save the bare bytes into Forebay's file, as formats without checksums do."""
    with checkpoint.open(place, "wb") as file:
        for tensor in state.values():
            file.write(_view(tensor))


def save_by_connector(state: State, place: str) -> None:
    """Save by the S3 connector's writer for DCP."""
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    config = S3ClientConfig(force_path_style=True)
    writer = S3StorageWriter(os.environ["AWS_REGION"], place, s3client_config=config)
    state_dict_saver.save(state, storage_writer=writer)


def load_by_torch(_: State, place: str) -> State:
    """Restore by ``torch.load`` from a file of the disk."""
    found: State = torch.load(place, weights_only=True)
    return found


def load_by_filesystem(into: State, place: str) -> State:
    """Restore by DCP's own reader."""
    state_dict_loader.load(into, storage_reader=FileSystemReader(place))
    return into


def load_by_reader(into: State, place: str) -> State:
    """Restore by Forebay's reader for DCP."""
    state_dict_loader.load(into, storage_reader=checkpoint.Reader(place))
    return into


def load_by_two_threads(into: State, place: str) -> State:
    """Restore by Forebay's reader for DCP with two threads."""
    state_dict_loader.load(into, storage_reader=checkpoint.Reader(place, thread_count=2))
    return into


def load_by_file(_: State, place: str) -> State:
    """Restore by ``torch.load`` from Forebay's file."""
    with checkpoint.open(place) as file:
        found: State = torch.load(cast(IO[bytes], file), weights_only=True)
    return found


def load_by_bytes(into: State, place: str) -> State:
    """Restore bare bytes from Forebay's file."""
    with checkpoint.open(place) as file:
        for tensor in into.values():
            view = _view(tensor)
            if file.readinto(view) != len(view):
                raise SystemExit(f"{place} is too short")
    return into


def _view(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


SAVES: dict[str, Callable[[State, str], None]] = {
    "torch": save_by_torch,
    "filesystem": save_by_filesystem,
    "writer": save_by_writer,
    "file": save_by_file,
    "bytes": save_by_bytes,
    "connector": save_by_connector,
}

# Some fill the tensors that they are given, others make new ones.
LOADS: dict[str, Callable[[State, str], State]] = {
    "torch": load_by_torch,
    "filesystem": load_by_filesystem,
    "reader": load_by_reader,
    "reader2": load_by_two_threads,
    "file": load_by_file,
    "bytes": load_by_bytes,
}


def async_writer(way: str, place: str) -> StorageWriter:
    """Return the storage of an asynchronous save."""
    return FileSystemWriter(place) if way == "filesystem" else checkpoint.Writer(place)


def wait(place: str, level: Literal["staged", "uploaded", "published"]) -> None:
    """Wait until a save has reached a level."""
    checkpoint.wait(place, level, PATIENCE)


def forget_pages(place: str) -> None:
    """Have the kernel forget the cached pages of a file, or of the files of a folder."""
    path = Path(place)
    for file in [path] if path.is_file() else path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
