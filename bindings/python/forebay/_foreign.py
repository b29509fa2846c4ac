"""Words of other loaders, and the same thing in Forebay's.

An unknown argument or name is a `TypeError` or an `AttributeError`, as everywhere in Python, that
says in one sentence what to write here.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

from forebay.errors import Invalid

_Arguments = ParamSpec("_Arguments")


class UnknownArgument(Invalid, TypeError):
    """Argument that does not exist here."""

    kind = Invalid.kind


class UnknownName(Invalid, AttributeError):
    """Name that does not exist here."""

    kind = Invalid.kind


_OWN_ORDER = (
    "the order follows from shuffle=, seed= and window=; for an order of your own give a "
    "forebay.IndexedDataset to torch's DataLoader with sampler="
)
_SHUFFLED = "use shuffle=True, with window= for the number of shards mixed at once"
_CACHED = "the daemon caches: leave it out, and set FOREBAY_CACHE and FOREBAY_CAPACITY"

# Arguments of torch's, webdataset's and other loaders.
LOADER: dict[str, str] = {
    "dataset": "give the shards as the first argument, urls=",
    "num_workers": (
        "reading and decoding need no workers; use workers= for the threads or processes that run "
        "transform=, select= and map="
    ),
    "collate_fn": "batches come collated; use transform= for a function of each batch",
    "batch_sampler": _OWN_ORDER,
    "sampler": _OWN_ORDER,
    "multiprocessing_context": (
        'use worker_type="thread" or worker_type="process", which always starts by spawn'
    ),
    "worker_init_fn": (
        "workers have no step of their own at the start; use the top level of the module that "
        "transform= comes from"
    ),
    "generator": "use seed=, the key of every random draw",
    "prefetch_factor": "use prefetch=, the number of batches kept ready",
    "persistent_workers": "workers= last until the loader is closed: leave it out",
    "pin_memory_device": 'use pin_memory=True, or device="cuda" to decode on the GPU',
    "in_order": "batches of workers= always come in order: leave it out",
    "num_replicas": "use world_size=, together with rank=",
    "num_shards": "use world_size=, together with rank=",
    "shard_id": "use rank=, together with world_size=",
    "num_threads": "use workers=; decoding uses the cores that FOREBAY_DECODE_THREADS allows",
    "batchsize": "use batch_size=",
    "max_tokens": "use batch_by=forebay.Tokens(field, budget=)",
    "transforms": "use transform= for a function of each batch",
    "shuffle_buffer": _SHUFFLED,
    "shardshuffle": _SHUFFLED,
    "detshuffle": "every order is a function of seed= here: leave it out",
    "nodesplitter": "ranks share each epoch by themselves; see rank=, world_size= and split=",
    "workersplitter": "ranks share each epoch by themselves; see rank=, world_size= and split=",
    "resampled": "every sample comes once per epoch; use epoch_samples= for another length",
    "repeat": "use loader.set_epoch, or forebay.Stream(urls, repeat=)",
    "handler": 'use on_error="raise", "skip", "stop" or a function of the error',
    "empty_check": "a data set without samples is an error: leave it out",
    "mode": "every sample comes once per epoch; use epoch_samples= for another length",
    "select_files": "use fields= for the members to read, and select= for the samples",
    "rename_files": "use fields=, whose names are your own",
    "url_to_name": _CACHED,
    "verbose": "the logger 'forebay' reports; FOREBAY_TRACE=out.json follows each batch",
    "cache_dir": _CACHED,
    "cache_size": _CACHED,
    "decode": "use fields=, as in fields={'image': forebay.Image('jpg')}",
    "epoch": "use loader.set_epoch",
}

INDEXED: dict[str, str] = (
    LOADER
    | {
        name: f"samples are read by number; give the data set to torch's DataLoader with "
        f"{name}=, or use forebay.DataLoader"
        for name in (
            "batch_size",
            "shuffle",
            "drop_last",
            "num_workers",
            "sampler",
            "batch_sampler",
            "collate_fn",
            "workers",
            "pin_memory",
            "rank",
            "world_size",
        )
    }
    | {"transform": "use map= of a field, or a function of dataset[i]"}
)

STREAM: dict[str, str] = {
    name: f"give {name}= to the forebay.DataLoader that mixes the streams"
    for name in (
        "batch_size",
        "fields",
        "shuffle",
        "window",
        "seed",
        "lanes",
        "epoch_samples",
        "transform",
        "select",
        "allow_pipe",
        "timeout",
        "workers",
    )
} | {"proportion": "use weight=", "probability": "use weight=", "p": "use weight="}

WEBDATASET: dict[str, str] = {
    "batch_size": "use .batched(batch_size), and WebLoader(dataset, batch_size=None)",
    "num_workers": "give it to WebLoader, or to torch's DataLoader",
    "collate_fn": "use .batched(batch_size, collation_fn=...)",
    "shuffle": "use shardshuffle=True for shards and .shuffle(1000) for samples",
    "transform": "use .map(function)",
    "select": "use .select(function)",
    "fields": "use .decode(...) and .to_tuple(...), or forebay.DataLoader",
    "length": "use .with_length(n)",
    "epoch": "use .set_epoch(n)",
    "shuffle_size": "use .shuffle(size)",
    "on_error": "use handler=, as in handler=forebay.webdataset.warn_and_continue",
    "rank": "use nodesplitter=forebay.webdataset.split_by_node",
    "world_size": "use nodesplitter=forebay.webdataset.split_by_node",
    "workers": "give num_workers= to WebLoader, or to torch's DataLoader",
}

# Arguments of ours that torch's loader, below `WebLoader`, calls something else.
WEBLOADER: dict[str, str] = {
    "workers": "use num_workers=",
    "prefetch": "use prefetch_factor=",
    "worker_type": "use multiprocessing_context=",
    "transform": "use .map(function) after the loader",
    "seed": "give seed= to the WebDataset",
    "fields": "use .decode(...) of the WebDataset, or forebay.DataLoader",
    "device": "move batches in the loop, or use forebay.DataLoader",
}

# What torch's loader has as attributes, and a loader here has not.
LOADERS_OWN: Mapping[str, str] = {
    "dataset": "there is no data set object below a forebay.DataLoader; iterate over the loader",
    "sampler": "there is no sampler: the order follows from shuffle=, seed= and set_epoch",
    "batch_sampler": "there is no sampler: the order follows from shuffle=, seed= and set_epoch",
    "batch_size": "it is the argument batch_size=, and len(batch['__key__']) of each batch",
    "num_workers": "reading and decoding have no workers; see workers=",
    "collate_fn": "there is none: see transform=",
    "decode": "use fields=, or forebay.WebDataset for webdataset's chain",
    "shuffle": "use the argument shuffle=True, or forebay.WebDataset for webdataset's chain",
    "map": "use map= of a field or transform=, or forebay.WebDataset for webdataset's chain",
    "batched": "use the argument batch_size=, or forebay.WebDataset for webdataset's chain",
    "to_tuple": "use fields=, or forebay.WebDataset for webdataset's chain",
    "with_epoch": "use the argument epoch_samples=, or forebay.WebDataset for webdataset's chain",
    "state": "use state_dict()",
}

# The same for a chain: methods of webdataset's pipeline, and attributes of loaders.
CHAINS_OWN: Mapping[str, str] = {
    "append": "use .compose(stage), which returns another chain",
    "pipe": "use .compose(stage), which returns another chain",
    "pipeline": "stages are not listed; use .compose(stage) to add one",
    "stage": "stages are not listed; use .compose(stage) to add one",
    "invoke": "iterate over the chain",
    "iterator": "iterate over the chain",
    "iterator1": "iterate over the chain",
    "create_url_iterator": "name the shards as urls=, and choose among them by nodesplitter=",
    "update_cache_info": "the daemon caches; set FOREBAY_CACHE and FOREBAY_CAPACITY",
    "repetitions": "use .repeat(n), or .with_epoch(n)",
    "nsamples": "use .with_epoch(n)",
    "length": "use .with_length(n), and len(chain)",
    "seed": "it is the argument seed=",
    "batch": "use .batched(size)",
    "unbatch": "use .unbatched()",
    "filter": "use .select(function)",
    "apply": "use .then(function)",
    "num_workers": "it is an argument of WebLoader, or of torch's DataLoader",
    "batch_size": "use .batched(size), and WebLoader(dataset, batch_size=None)",
    "with_seed": "use the argument seed=",
    "state": "use state_dict()",
}

_UNDER_TORCH = (
    "torch's DataLoader cannot read from a forebay.DataLoader, which is a loader itself; iterate "
    "over it directly, or give torch's a forebay.torch.IterableDataset with batch_size=None, or a "
    "forebay.IndexedDataset"
)


def explained(
    instead: Mapping[str, str],
) -> Callable[[Callable[_Arguments, None]], Callable[_Arguments, None]]:
    """Return a decorator of a constructor: unknown arguments are answered by `instead`."""

    def decorate(init: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
        parameters = list(inspect.signature(init).parameters.values())
        known = [one.name for one in parameters[1:]]
        positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)

        @functools.wraps(init)
        def checked(*args: _Arguments.args, **kw: _Arguments.kwargs) -> None:
            for name in kw:
                if name not in known:
                    raise unknown_argument(type(args[0]).__name__, name, known, instead)
            if len(args) > positional:
                raise UnknownArgument(
                    f"{type(args[0]).__name__} takes {', '.join(known[: positional - 1])} by "
                    f"position, and {known[positional - 1]}= and all others by name"
                )
            init(*args, **kw)

        return checked

    return decorate


def unknown_argument(
    owner: str, name: str, known: Iterable[str], instead: Mapping[str, str]
) -> UnknownArgument:
    """Return the error for an argument that `owner` does not have."""
    known = list(known)
    advice = instead.get(name) or _alike(name, known, "=")
    advice = advice or f"it has {', '.join(f'{one}=' for one in known)}"
    return UnknownArgument(f"{owner} has no argument {name}=: {advice}", {"option": name})


def unknown_attribute(owner: type, name: str, instead: Mapping[str, str]) -> UnknownName:
    """Return the error for an attribute that objects of a class do not have."""
    what = f"{owner.__name__!r} object has no attribute {name!r}"
    # Python and frameworks look for private ones, and expect their absence.
    advice = None if name.startswith("_") else instead.get(name) or _alike(name, dir(owner))
    return UnknownName(f"{what}: {advice}" if advice else what, {"name": name})


def _alike(name: str, known: Iterable[str], mark: str = "") -> str | None:
    """Return the question for the nearest of the known names, if one is near."""
    close = difflib.get_close_matches(name, [one for one in known if one[0] != "_"], 1)
    return f"did you mean {close[0]}{mark}?" if close else None


def by_number() -> UnknownArgument:
    """Return the error for a sample requested by its number, as torch's samplers do."""
    return UnknownArgument(f"samples of a forebay.DataLoader have no numbers: {_UNDER_TORCH}")


def refuse_torchs_sampler() -> None:
    """Reject torch's loader as the caller that asks a loader for its length.

    Raises
    ------
    UnknownArgument
        Naming the alternatives.
    """
    caller = sys._getframe(1).f_back
    module = "" if caller is None else str(caller.f_globals.get("__name__"))
    if module.startswith(("torch.utils.data.", "torchdata.")):
        raise UnknownArgument(_UNDER_TORCH)


def refuse_collation(owner: str) -> None:
    """Reject torch's loader as the caller if it would make batches of batches.

    Raises
    ------
    Invalid
        Naming ``batch_size=None``.
    """
    caller = sys._getframe(1).f_back
    if caller is None or not str(caller.f_globals.get("__name__")).endswith("_utils.fetch"):
        return
    # Torch's fetcher, while it is made or while it takes.
    fetcher = caller.f_locals.get("self")
    if caller.f_locals.get("auto_collation", getattr(fetcher, "auto_collation", False)):
        raise Invalid(
            f"{owner} makes the batches, and torch's DataLoader would batch them again; give it "
            "batch_size=None, and batch_size= to the data set",
            {"option": "batch_size"},
        )


def refuse_dataset(urls: Any) -> None:
    """Reject a data set or loader object in place of shards.

    Raises
    ------
    Invalid
        With the place of such an object.
    """
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(urls, (data.Dataset, data.DataLoader)):
        raise Invalid(
            f"urls= takes shards, not a {type(urls).__name__}: name the shards that it reads, or "
            "give the object to torch's DataLoader or forebay.WebLoader",
            {"option": "urls"},
        )
