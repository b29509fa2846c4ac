"""Checkpoints through the node's NVMe: saved at its speed, uploaded behind the training, published
as a whole, restored from the nearest place.

>>> import torch.distributed.checkpoint as dcp  # doctest: +SKIP
>>> from forebay import checkpoint  # doctest: +SKIP
>>> url = "s3://bucket/run/step-1000"
>>> dcp.save(state, storage_writer=checkpoint.Writer(url))  # doctest: +SKIP
>>> checkpoint.wait(url, "published")  # doctest: +SKIP
>>> dcp.load(state, storage_reader=checkpoint.Reader(url))  # doctest: +SKIP

A save returns once the bytes are durable on this node (``staged``). The daemon uploads them behind
the training, and makes the checkpoint visible by one last object, once all files of all ranks are
in the store. Until then no reader sees anything of it. In the store it is a checkpoint of torch's
own format, which needs no Forebay to be read.

`open` saves and reads single files, for ``torch.save``, ``torch.load`` and safetensors. `push`
publishes the folder of any other tool, and `restore` brings it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.checkpoint._files import SavedFile, StoredFile, latest, open, wait
from forebay.checkpoint._whole import push, remove, restore

if TYPE_CHECKING:
    from forebay.checkpoint._distributed import Reader, Writer

__all__ = [
    "Reader",
    "SavedFile",
    "StoredFile",
    "Writer",
    "latest",
    "open",
    "push",
    "remove",
    "restore",
    "wait",
]


def __getattr__(name: str) -> Any:
    # Their module imports torch, which other users need not wait for.
    if name in ("Reader", "Writer"):
        from forebay.checkpoint import _distributed

        return getattr(_distributed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
