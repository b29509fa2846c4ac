"""Forebay keeps GPUs fed: shards from object stores and file systems, cached on local NVMe,
delivered as batches of tensors.

>>> import forebay
>>> loader = forebay.DataLoader(
...     "s3://bucket/train-{000000..001281}.tar",
...     batch_size=256,
...     fields={
...         "image": forebay.Image("jpg", size=224, crop="random", flip=True, dtype="float16"),
...         "label": forebay.Int("cls"),
...     },
...     shuffle=True,
... )  # doctest: +SKIP
>>> for batch in loader:  # doctest: +SKIP
...     train(batch["image"], batch["label"])

There is no server to start: a user's first loader starts an embedded daemon that later ones share,
unless the node runs one. The framework in use is imported at the first iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay._native import __version__
from forebay.errors import (
    BadSample,
    Closed,
    Corrupt,
    ForebayError,
    Full,
    Invalid,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from forebay.fields import Bytes, Field, Float, Image, Int, Json, Label, Npy, Text
from forebay.indexed import IndexedDataset
from forebay.join import Join
from forebay.loader import DataLoader
from forebay.schedule import Schedule
from forebay.streams import Stream
from forebay.tokens import Tokens

if TYPE_CHECKING:
    from forebay.webdataset import WebDataset, WebLoader

__all__ = [
    "BadSample",
    "Bytes",
    "Closed",
    "Corrupt",
    "DataLoader",
    "Field",
    "Float",
    "ForebayError",
    "Full",
    "Image",
    "IndexedDataset",
    "Int",
    "Invalid",
    "Join",
    "Json",
    "Label",
    "NotFound",
    "Npy",
    "PermissionDenied",
    "Schedule",
    "Stream",
    "Text",
    "Tokens",
    "Unavailable",
    "WebDataset",
    "WebLoader",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Their module imports torch, which other users need not wait for.
    if name in ("WebDataset", "WebLoader"):
        from forebay import webdataset

        return getattr(webdataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
