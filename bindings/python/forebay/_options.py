"""Arguments of a loader, checked before anything is opened.

Every mistake that can be detected here is rejected here, naming the argument.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from forebay import _bins, _filters, _foreign, _leases, _listing, _native, _paths, join
from forebay._device import Wish
from forebay._launch import daemon as launch
from forebay._layout import Layout
from forebay._sendable import check_program, check_sendable
from forebay._stop import items
from forebay._values import U32_MAX, U64_MAX, flag, number, text, whole, word
from forebay.errors import ForebayError, Invalid
from forebay.fields import Bytes, Field, Rows, cropped, specification
from forebay.frameworks import Name, no_nested
from forebay.join import Join, Joined, Urls
from forebay.streams import Mixture, Stream
from forebay.tokens import Tokens

Sources = Urls | Join | Sequence[Stream]
Verdict = Literal["raise", "skip", "stop"]
OnChange = Literal["raise", "serve"]
Verify = Literal["arrival", "always"]
OnError = Verdict | Callable[[ForebayError], Verdict]
Order = Literal["none", "window", "global"]
Shuffle = bool | Order
Split = Literal["static", "dynamic"]
WorkerType = Literal["thread", "process"]

# Batches ready ahead cost slab and output memory each; more than this is a mistake in a unit.
_PREFETCH_MAX = 1024

# Workers of one loader; more than any node has cores is a mistake in a unit.
_WORKERS_MAX = 1024


@dataclass(frozen=True)
class Options:
    """Checked arguments; see `forebay.DataLoader` for their meaning."""

    urls: list[str]
    # Shards that complete the samples of `urls`.
    joined: Joined | None
    counts: list[int] | None
    # Bytes of each shard, if its manifest has them.
    sizes: list[int] | None
    mixture: Mixture | None
    # Manifest of all shards, if one was given for them and none is a part of a join.
    manifest: str | None
    # Samples that pass `where`; `counts` then counts these.
    filtered: _filters.Filtered | None
    # Batches by tokens, in place of `batch_size`.
    binned: _bins.Binned | None
    batch_size: int
    fields: Mapping[str, Field] | None
    transform: Callable[[dict[str, Any]], Any] | None
    select: Callable[[dict[str, Any]], Any] | None
    drop_empty: bool | None
    workers: int
    worker_type: WorkerType
    shuffle: Order
    window: int
    seed: int
    drop_last: bool
    pad_last: bool
    epoch_samples: int | None
    on_error: OnError
    max_errors: int | None
    on_change: OnChange
    verify: Verify
    rank: int | None
    world_size: int | None
    lanes: int | None
    split: Split
    uneven: bool
    device: Wish
    pin_memory: bool
    framework: Name | None
    prefetch: int
    timeout: float
    allow_pipe: bool
    daemon: str | None
    job: str
    # Name of the job, if given.
    group: str | None

    def selection(self) -> _native.Selection | None:
        """Return the samples to read; None for all."""
        return None if self.filtered is None else self.filtered.selection

    def places(self) -> _native.Locator | None:
        """Return the places of all samples, for a job that wants some; None without an index."""
        if self.manifest is None or (self.fields is None and self.filtered is None):
            return None
        way = (self.daemon, launch(), self.timeout)
        return _native.Locator.open(self.manifest, self.urls, way)

    def cut(self) -> _native.Cut | None:
        """Return the lengths of the samples; None for batches of samples."""
        return None if self.binned is None else self.binned.cut

    def batches(self) -> str:
        """Return the size of batches, for people."""
        if self.binned is None:
            return f"batch_size={self.batch_size}"
        return f"{self.binned.layout.budget} tokens"

    def layout(self) -> Layout | None:
        """Return the layout of batches by tokens."""
        return None if self.binned is None else self.binned.layout

    def spec(self) -> list[dict[str, Any]] | None:
        """Return the fields for the native side."""
        return None if self.fields is None else specification(self.fields)

    def views(self) -> list[str]:
        """Return the fields delivered as views of the slab."""
        fields = (self.fields or {}).items()
        return [name for name, field in fields if isinstance(field, Bytes) and not field.copy]

    def drops_empty(self, world_size: int) -> bool:
        """Return True if batches without samples are not delivered.

        Ranks that step together would wait for the one that is a batch ahead.
        """
        together = world_size > 1 and self.split == "static"
        return not together if self.drop_empty is None else self.drop_empty

    def settled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loader's arguments such that they mean the same in any folder."""
        folder = _paths.here()
        return dict(arguments) | {
            "urls": self._sources(),
            "manifest": _paths.file(arguments["manifest"], folder),
            "daemon": _paths.address(arguments["daemon"], folder),
        }

    def described(self) -> dict[str, Any]:
        """Return what states hold of the data, besides the shards and their counts."""
        return {
            "streams": None if self.mixture is None else self.mixture.described(),
            "where": None if self.filtered is None else self.filtered.identity,
            "join": None if self.joined is None else self.joined.identity,
            "batch_by": None if self.binned is None else self.binned.identity,
        }

    def _sources(self) -> Sources:
        """Return the expanded shards in the form of an argument."""
        joined = self.joined or Joined([], [])
        if self.mixture is None:
            return joined.source(0, self.urls)
        streams, first = self.mixture.settled(self.urls), 0
        for stream in streams:
            urls = cast(list[str], stream.urls)
            stream.urls = joined.source(first, urls)
            first += len(urls)
        return streams


def check(
    *,
    urls: Sources,
    batch_size: int,
    batch_by: Tokens | None,
    pack: bool,
    fields: Mapping[str, Field] | None,
    transform: Callable[[dict[str, Any]], Any] | None,
    select: Callable[[dict[str, Any]], Any] | None,
    drop_empty: bool | None,
    workers: int,
    worker_type: WorkerType,
    shuffle: Shuffle,
    window: int,
    seed: int,
    drop_last: bool,
    pad_last: bool,
    epoch_samples: int | None,
    manifest: str | os.PathLike[str] | None,
    where: str | None,
    on_error: OnError,
    max_errors: int | None,
    on_change: OnChange,
    verify: Verify,
    rank: int | None,
    world_size: int | None,
    lanes: int | None,
    split: str,
    uneven: bool,
    device: Any,
    pin_memory: bool | None,
    framework: Name | None,
    prefetch: int,
    timeout: float,
    allow_pipe: bool,
    daemon: str | None,
    job: str | None,
) -> Options:
    """Check every argument of a loader.

    Raises
    ------
    Invalid
        Naming the first invalid one.
    """
    if drop_last and pad_last:
        raise Invalid("drop_last and pad_last exclude each other; choose one")
    if transform is not None and not callable(transform):
        raise Invalid(f"transform= takes a function of the batch, not {transform!r}")
    if select is not None and not callable(select):
        raise Invalid(f"select= takes a function of a sample, not {select!r}")
    _errors(on_error, max_errors)
    word("on_change", on_change, OnChange)
    word("verify", verify, Verify)
    if framework is not None:
        word("framework", framework, Name)
    if pin_memory and framework in ("jax", "numpy"):
        raise _wrong("pin_memory", pin_memory, f"{framework} cannot pin memory; leave it unset")
    _split(split, uneven)
    if (rank is None) != (world_size is None):
        raise Invalid("rank and world_size come together; give both or neither")
    tokens = _bins.refused(batch_by, pack, {"batch_size": batch_size, "split": split})
    if fields is not None:
        specification(fields)
        fields = cropped(fields)
        # Packed rows are no nested tensor.
        packed = tokens.names() if tokens is not None and pack else ()
        for name, field in fields.items():
            is_nested = isinstance(field, Rows) and field.is_nested and name not in packed
            if framework in ("jax", "numpy") and is_nested:
                raise no_nested(framework, name)
    layout = None
    if tokens is not None:
        fields, layout = _bins.laid_out(tokens, pack, fields)
    word("worker_type", worker_type, WorkerType)
    if worker_type == "process":
        _processes(workers, framework, fields, select, transform)
    wish = Wish(device)
    wish.check(fields, framework, worker_type)
    limit = time_limit(timeout)
    address = daemon_address(daemon)
    pipes = flag("allow_pipe", allow_pipe)
    streams = _streams(urls)
    sources = [cast(Urls, urls)] if streams is None else [stream.named() for stream in streams]
    lists, joined = join.expanded(sources, lambda urls: _expand(urls, pipes, address, limit))
    listed = [url for urls in lists for url in urls]
    counts: list[int] | None = None
    sizes: list[int] | None = None
    way = (address, launch(), limit)
    if manifest is not None:
        counts, sizes = _native.listed(_path("manifest", manifest), listed, way)
    if split == "dynamic":
        given = {"drop_last": drop_last, "pad_last": pad_last, "shuffle": shuffle}
        _leases.refuse(given | {"epoch_samples": epoch_samples, "lanes": lanes})
        if streams is not None:
            raise Invalid(
                "split='dynamic' assigns shards of one data set, not of a mixture; give URLs, or "
                "leave split unset",
                {"option": "split"},
            )
    where = _filters.checked(where)
    mixture = None
    if streams is not None:
        mixture = Mixture(streams, [len(urls) for urls in lists])
        if counts is None:
            counts, sizes = _listed_of_streams(streams, lists, way)
        if mixture.has_weights and epoch_samples is None:
            raise Invalid(
                "streams with weights have no end of their own; give epoch_samples=",
                {"option": "epoch_samples"},
            )
        if not mixture.has_weights and counts is None:
            raise Invalid(
                "streams without weights need sample counts; give manifest= (make one with "
                "`forebay index`), or each stream its own",
                {"option": "manifest"},
            )
    parts = _parts(streams, lists, manifest, where)
    filtered = _filters.filtered(parts, counts, way)
    if filtered is not None:
        counts = filtered.selection.counts()
        if sizes is not None:
            # Shards of which no sample passes are not read.
            sizes = [size if count else 0 for size, count in zip(sizes, counts, strict=True)]
    binned = None
    if tokens is not None and layout is not None:
        binned = _bins.binned(tokens, layout, fields or {}, parts, filtered, way)
    return Options(
        urls=listed,
        joined=joined,
        counts=counts,
        sizes=sizes,
        mixture=mixture,
        # Its member index is opened with the job, maybe in another folder.
        manifest=None if manifest is None or joined else _settled(manifest),
        filtered=filtered,
        binned=binned,
        batch_size=_batch_size(batch_size) if tokens is None else 1,
        fields=None if fields is None else dict(fields),
        transform=transform,
        select=select,
        drop_empty=None if drop_empty is None else flag("drop_empty", drop_empty),
        workers=whole("workers", workers, 0, _WORKERS_MAX),
        worker_type=worker_type,
        shuffle=_shuffle(shuffle),
        window=whole("window", window, 1, U32_MAX),
        seed=whole("seed", seed, 0, U64_MAX),
        drop_last=flag("drop_last", drop_last),
        pad_last=flag("pad_last", pad_last),
        epoch_samples=_maybe("epoch_samples", epoch_samples, 1, U64_MAX),
        on_error=on_error,
        max_errors=_maybe("max_errors", max_errors, 0, U64_MAX),
        on_change=on_change,
        verify=verify,
        rank=_maybe("rank", rank, 0, U32_MAX),
        world_size=_maybe("world_size", world_size, 1, U32_MAX),
        lanes=_maybe("lanes", lanes, 1, U32_MAX),
        split=cast(Split, split),
        uneven=uneven,
        device=wish,
        pin_memory=pin_memory is not None and flag("pin_memory", pin_memory),
        framework=framework,
        prefetch=whole("prefetch", prefetch, 1, _PREFETCH_MAX),
        timeout=limit,
        allow_pipe=pipes,
        daemon=address,
        job=job_name(job),
        group=job or None,
    )


def _streams(urls: Sources) -> list[Stream] | None:
    """Return the streams of a mixture; None for one data set."""
    listed = [urls] if isinstance(urls, Stream) else urls
    if isinstance(listed, (str, os.PathLike)) or not isinstance(listed, Sequence):
        return None
    if any(isinstance(one, Join) for one in listed):
        raise Invalid(
            "urls= is a list with a forebay.Join; give the join alone, or a forebay.Stream of each "
            "data set",
            {"option": "urls"},
        )
    streams = [one for one in listed if isinstance(one, Stream)]
    if streams and len(streams) < len(listed):
        raise Invalid(
            "urls= names streams and URLs; make a forebay.Stream of each data set",
            {"option": "urls"},
        )
    return streams or None


def _listed_of_streams(
    streams: list[Stream], lists: list[list[str]], way: _native.Way
) -> tuple[list[int] | None, list[int] | None]:
    """Return samples and bytes of each shard, if every stream's manifest has them."""
    if any(stream.manifest is None for stream in streams):
        return None, None
    counts: list[int] = []
    sizes: list[int] | None = []
    for stream, urls in zip(streams, lists, strict=True):
        samples, lengths = _native.listed(_path("manifest", stream.manifest), urls, way)
        counts += samples
        sizes = None if sizes is None or lengths is None else sizes + lengths
    return counts, sizes


def _parts(
    streams: list[Stream] | None,
    lists: list[list[str]],
    manifest: str | os.PathLike[str] | None,
    where: str | None,
) -> list[_filters.Part]:
    """Return the data sets of a loader with their manifests and filters."""
    owns: Sequence[Stream | None] = [None] if streams is None else streams
    parts = []
    for stream, urls in zip(owns, lists, strict=True):
        listing = manifest if manifest is not None or stream is None else stream.manifest
        own = None if stream is None else stream.where
        filters = [one for one in (where, own) if one is not None]
        path = None if listing is None else _path("manifest", listing)
        parts.append(_filters.Part(urls, path, filters))
    return parts


def _wrong(option: str, value: Any, advice: str) -> Invalid:
    return Invalid(f"{option}={value!r} is not known; {advice}", {"option": option})


def _errors(on_error: OnError, max_errors: int | None) -> None:
    if not callable(on_error):
        word("on_error", on_error, Verdict)
    if max_errors is not None and on_error in ("raise", "stop"):
        raise Invalid(
            f"max_errors= counts errors that are skipped, and on_error={on_error!r} skips none; "
            "use on_error='skip', or leave max_errors unset",
            {"option": "max_errors"},
        )


def _processes(
    workers: int,
    framework: Name | None,
    fields: Mapping[str, Field] | None,
    select: Callable[..., Any] | None,
    transform: Callable[..., Any] | None,
) -> None:
    """Reject options that cannot run in worker processes."""
    if workers == 0:
        raise Invalid(
            "worker_type='process' needs workers=; give their number", {"option": "workers"}
        )
    if framework == "jax":
        raise Invalid(
            "framework='jax' goes with worker_type='thread' only: JAX in each worker would take "
            "the devices of this process; use framework='numpy' and jax.device_put",
            {"option": "worker_type"},
        )
    check_program()
    check_sendable("select", select)
    check_sendable("transform", transform)
    for name, field in (fields or {}).items():
        check_sendable(f"map of field {name!r}", field.map)
        check_sendable(f"field {name!r}", field)


def _split(split: str, uneven: bool) -> None:
    word("split", split, Split)
    if flag("uneven", uneven) and split != "dynamic":
        raise Invalid(
            "uneven=True belongs to split='dynamic'; with split='static' all ranks have equally "
            "many batches: leave it unset",
            {"option": "uneven"},
        )


def _batch_size(batch_size: Any) -> int:
    if batch_size is None:
        raise Invalid(
            "batch_size=None: a loader delivers batches; give their size, or use "
            "forebay.IndexedDataset or forebay.WebDataset for single samples",
            {"option": "batch_size"},
        )
    return whole("batch_size", batch_size, 1, U32_MAX)


def _maybe(option: str, value: Any, low: int, high: int) -> int | None:
    return None if value is None else whole(option, value, low, high)


def time_limit(timeout: Any) -> float:
    """Return a time limit in seconds, above 0."""
    seconds = number("timeout", timeout)
    if seconds <= 0:
        raise Invalid(
            f"timeout={timeout!r}; give seconds above 0: every wait has an end here",
            {"option": "timeout"},
        )
    return seconds


def _shuffle(shuffle: Shuffle) -> Order:
    if isinstance(shuffle, str):
        return word("shuffle", shuffle, Order)
    return "window" if flag("shuffle", shuffle) else "none"


def job_name(job: str | None) -> str:
    """Return a job's name for admins: the one given, or program and process."""
    if job:
        return text("job", job, "give a name")
    return f"{os.path.basename(sys.argv[0] or 'python')}:{os.getpid()}"


def daemon_address(daemon: str | None) -> str | None:
    """Return the address of the daemon: the one given, ``FOREBAY_DAEMON``, or None."""
    named = daemon or os.environ.get("FOREBAY_DAEMON") or None
    if named is None or named == "embedded":
        return named
    if isinstance(named, str) and named.startswith("unix:") and len(named) > len("unix:"):
        return str(_paths.address(named, _paths.here()))
    raise _wrong("daemon", named, "use 'embedded' or 'unix:/path/to/forebayd.sock', or leave it")


def _expand(urls: Urls, allow_pipe: bool, daemon: str | None, timeout: float) -> list[str]:
    _foreign.refuse_dataset(urls)
    if isinstance(urls, (str, os.PathLike)):
        spec = _path("urls", urls)
        return _listing.expand(spec, allow_pipe, daemon, timeout)
    try:
        listed = [_path("urls", url) for url in items(urls)]
    except TypeError:
        raise Invalid(f"urls={urls!r}: give a URL or a list of URLs", {"option": "urls"}) from None
    return _native.expand_list(listed, allow_pipe)


def _settled(manifest: str | os.PathLike[str]) -> str:
    """Return the manifest's URL, or its path as absolute."""
    return cast(str, _paths.file(_path("manifest", manifest), _paths.here()))


def _path(option: str, value: Any) -> str:
    named = os.fspath(value) if isinstance(value, os.PathLike) else value
    return text(option, named, "give a URL or a path, in UTF-8")
