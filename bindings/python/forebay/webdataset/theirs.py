"""Names of webdataset that are not Forebay's own.

Writers, and parts that work on any stream of samples, come from the installed webdataset,
unchanged. Parts that read shards or cache them have another form here, which their error names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from forebay._foreign import UnknownName
from forebay.errors import Invalid

# Writers, functions and modules for them.
_WRITERS = "TarWriter ShardWriter writer numpy_dumps torch_dumps torch_loads tenbin"

# Stages, data sets made of others, and the tools to make one's own.
_STAGES = """
    associate batched decode detshuffle extract_keys getfirst info map map_dict map_tuple rename
    rename_keys rsample select shuffle slice to_tuple transform_with unbatched xdecode
    pipelinefilter filters PipelineStage DataPipeline RandomMix RoundRobin mix MockDataset
    repeatedly extradatasets autodecode torch_audio torch_video utils
"""

_UNCHANGED = frozenset((_WRITERS + _STAGES).split())

_READS = "it reads past the cache; begin the chain with forebay.WebDataset(urls)"
_LISTS = (
    "it lists shards for a reader past the cache; give them to forebay.WebDataset(urls), with "
    "shardshuffle= or resampled=True"
)
_CACHES = "the daemon caches, for all jobs and epochs; leave it out and set FOREBAY_CACHE"
_FLUENT = "the methods of forebay.WebDataset and forebay.WebLoader are the fluent interface"

_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("tarfile_samples", "tarfile_to_samples", "tariterators"), _READS),
    **dict.fromkeys(("gopen", "gopen_schemes"), _READS),
    **dict.fromkeys(("SimpleShardList", "ResampledShards", "resampled", "shardlists"), _LISTS),
    **dict.fromkeys(("shardspec", "non_empty"), _LISTS),
    "MultiShardSample": (
        "mixes of data sets are forebay.DataLoader([forebay.Stream(urls, weight=0.7), ...])"
    ),
    **dict.fromkeys(("Cached", "LMDBCached", "LRUCleanup", "cache", "pipe_cleaner"), _CACHES),
    **dict.fromkeys(("FluidInterface", "FluidWrapper", "compat"), _FLUENT),
    "DecodingError": "handlers get a forebay.BadSample, whose cause is the decoder's error",
    "with_epoch": "use the method .with_epoch(n) of forebay.WebDataset or forebay.WebLoader",
    "with_length": "use the method .with_length(n) of forebay.WebDataset or forebay.WebLoader",
    "pytorch_weights_only": "set WDS_PYTORCH_WEIGHTS_ONLY=1",
    "pytorch": "import torch itself",
}


class UnknownImport(Invalid, ImportError):
    """Name that cannot be imported from here."""

    kind = Invalid.kind


def found(name: str) -> Any:
    """Return a name of webdataset that works unchanged.

    Raises
    ------
    UnknownName
        An `AttributeError` for any other name, with the form that it has here.
    UnknownImport
        The same as an `ImportError`, in ``from forebay.webdataset import name``.
    """
    what = f"module 'forebay.webdataset' has no attribute {name!r}"
    if name in _INSTEAD:
        raise _error(f"{what}: {_INSTEAD[name]}", name)
    if name not in _UNCHANGED:
        raise UnknownName(what, {"name": name})
    try:
        library = importlib.import_module("webdataset")
    except ImportError as error:
        raise _error(
            f"{what} without webdataset, whose own it is ({error}); install webdataset", name
        ) from error
    if not hasattr(library, name):
        raise _error(f"{what}, nor has the installed webdataset; install another version", name)
    return getattr(library, name)


def _error(message: str, name: str) -> Invalid:
    # Python forgets the text of an AttributeError in a `from … import`. Two frames up is the
    # package's `__getattr__`, and above it the caller.
    caller = sys._getframe(3).f_code.co_name
    kind = UnknownImport if caller == "_handle_fromlist" else UnknownName
    return kind(message, {"name": name})
