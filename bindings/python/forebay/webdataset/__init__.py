"""webdataset's API on Forebay: `WebDataset`, `WebLoader`, and the parts of their chains.

A script with ``import webdataset as wds`` may use ``import forebay.webdataset as wds``.
docs/PYTHON.md lists the differences. This package imports torch where it is installed, because
torch's loader expects its own classes; ``import forebay`` alone does not.
"""

from __future__ import annotations

from typing import Any

from forebay.webdataset import theirs
from forebay.webdataset.collate import default_collation_fn
from forebay.webdataset.dataset import WebDataset
from forebay.webdataset.decoding import (
    Continue,
    Decoder,
    gzfilter,
    handle_extension,
    imagehandler,
)
from forebay.webdataset.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)
from forebay.webdataset.loader import WebLoader
from forebay.webdataset.shards import single_node_only, split_by_node, split_by_worker

__all__ = [
    "Continue",
    "Decoder",
    "WebDataset",
    "WebLoader",
    "default_collation_fn",
    "gzfilter",
    "handle_extension",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "reraise_exception",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "warn_and_continue",
    "warn_and_stop",
]


def __getattr__(name: str) -> Any:
    return theirs.found(name)
