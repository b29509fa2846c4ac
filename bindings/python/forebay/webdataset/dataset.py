"""`WebDataset`: the samples of shards, as dicts of bytes, and the chain that begins with them.

An argument of webdataset's is honoured, or rejected with the alternative here. Those that change no
sample are answered by a warning.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from forebay import _foreign, _paths
from forebay._stop import Guard
from forebay._values import flag, whole
from forebay.errors import Invalid
from forebay.webdataset import environment, samples, shards
from forebay.webdataset.handlers import Handler, reraise_exception
from forebay.webdataset.pipeline import Pipeline
from forebay.webdataset.place import Epoch
from forebay.webdataset.shards import Splitter, single_node_only, split_by_worker

# Seconds; bounds every wait, as in `forebay.DataLoader`.
_TIMEOUT = 300.0

_SHARDS_MAX = 2**31 - 1

# From a warning in the constructor to its caller: the decorator's frame lies between.
_CALLER = 3

# Arguments about webdataset's own cache, their default values, and the alternative. Samples are
# the same without them.
_NEEDLESS: dict[str, tuple[Any, str]] = {
    "cache_dir": (None, "the daemon caches; give the directory as FOREBAY_CACHE"),
    "cache_size": (-1, "the daemon caches; give the size as FOREBAY_CAPACITY, as in 200GiB"),
    "url_to_name": (None, "the daemon caches, and no two URLs share a name there; leave it out"),
}

# Unsupported arguments, their default values, and the alternative.
_REFUSED: dict[str, tuple[Any, str]] = {
    "select_files": (None, "members are grouped in the daemon; choose by .select or .to_tuple"),
    "rename_files": (None, "members are grouped in the daemon; rename by .rename or .rename_keys"),
}


class WebDataset(Pipeline):
    """Samples of WebDataset shards, read through the node's cache.

    A sample is a dict: bytes under each field's suffix in lower case, and

    - ``"__key__"``: the members' common name;
    - ``"__url__"``: the shard, as it was named;
    - ``"__local_path__"``: its path, if it is a file here.

    In a program with torch it is a torch ``IterableDataset``.

    Parameters
    ----------
    urls : str, path or iterable of them
        Shards. In a text ``::`` joins parts, ``${var}`` is the variable ``WDS_var``, and braces and
        patterns expand as for `forebay.DataLoader`; a list is taken literally.
    handler : callable
        Called with the error of each bad shard or sample: raises, or returns True to continue after
        it, or False to end the stream there.
    mode : {None, "resampled"}
        The latter is ``resampled=True``.
    resampled : bool
        True draws shards with replacement, without end.
    repeat : bool
        True plays the shards again and again, as `repeat` does.
    shardshuffle : bool or int, optional
        Shards in the buffer that they are drawn from; True means 100. Another order each epoch.
    cache_size, cache_dir, url_to_name
        No effect, with a warning: the daemon caches.
    select_files, rename_files
        Rejected, with the alternative.
    detshuffle : bool
        Every order is a function of the seed here.
    nodesplitter, workersplitter : callable, optional
        Choose this rank's and this worker's part of an iterator of dicts with ``"url"``. None
        keeps all. Default: an error if there are several ranks; every n-th shard for n workers.
    empty_check : bool
        True makes a worker without any sample an error.
    verbose : bool
        True logs each shard that is begun (logger ``forebay``, level INFO).
    seed : int, optional
        Key of every draw. Default: ``WDS_SEED``, else 0.
    allow_pipe, timeout, daemon, job
        As for `forebay.DataLoader`.

    Raises
    ------
    Invalid
        Here, for an invalid argument or variable.
    ForebayError
        While iterating: errors raised by `handler`, and those of no single sample or shard.
    """

    @_foreign.explained(_foreign.WEBDATASET)
    def __init__(
        self,
        urls: Any,
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: bool | int | None = None,
        cache_size: int = -1,
        cache_dir: Any = None,
        url_to_name: Any = None,
        detshuffle: bool = False,
        nodesplitter: Splitter | None = single_node_only,
        workersplitter: Splitter | None = split_by_worker,
        select_files: Any = None,
        rename_files: Any = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        *,
        allow_pipe: bool = False,
        timeout: float = _TIMEOUT,
        daemon: str | None = None,
        job: str | None = None,
    ) -> None:
        given = locals()
        for name, (default, advice) in _REFUSED.items():
            if given[name] != default:
                raise Invalid(f"{name}={given[name]!r}: {advice}", {"option": name})
        for name, (default, advice) in _NEEDLESS.items():
            if given[name] != default:
                warnings.warn(f"{name}={given[name]!r} has no effect: {advice}", stacklevel=_CALLER)
        super().__init__(seed)
        if mode not in (None, "resampled"):
            raise Invalid(
                f"mode={mode!r} is unknown; use 'resampled', or leave it", {"option": "mode"}
            )
        flag("detshuffle", detshuffle)
        pipes = flag("allow_pipe", allow_pipe)
        if pipes and environment.secure():
            raise Invalid(
                "WDS_SECURE=1 forbids allow_pipe=True; unset one", {"option": "allow_pipe"}
            )
        _function("handler", handler)
        _foreign.refuse_dataset(urls)
        _paths.settle_environment()
        with Guard():
            self._urls = shards.listed(urls, pipes, daemon, timeout)
        folder = _paths.here()
        self._reading = samples.Reading(
            handler,
            flag("verbose", verbose),
            pipes,
            timeout,
            _paths.address(daemon, folder),
            job,
            folder,
        )
        self._resampled = flag("resampled", resampled) or mode == "resampled"
        self._mixed = _mixed(shardshuffle)
        self._splitters = (
            _splitter("nodesplitter", nodesplitter),
            _splitter("workersplitter", workersplitter),
        )
        self._empty_check = flag("empty_check", empty_check)
        if flag("repeat", repeat):
            self.repeat()

    def _source(self, epoch: Epoch) -> Iterator[samples.Sample]:
        nodesplitter, workersplitter = self._splitters
        mine = shards.of_this_worker(
            self._urls,
            epoch,
            resample=self._resampled,
            nodesplitter=nodesplitter,
            workersplitter=workersplitter,
            mixed=self._mixed,
        )
        found = samples.read(mine, self._reading)
        return self._not_empty(found, epoch) if self._empty_check else found

    def _not_empty(self, found: Iterable[Any], epoch: Epoch) -> Iterator[Any]:
        empty = True
        for sample in found:
            empty = False
            yield sample
        if empty:
            worker = epoch.worker
            raise Invalid(
                f"worker {worker.number} of {worker.workers}, rank {worker.rank} of "
                f"{worker.world_size}, has no samples; {len(self._urls)} shards are too few for "
                "so many, or are empty: use fewer workers or more shards, or allow it by "
                "empty_check=False",
                {"option": "empty_check"},
            )

    def _described(self) -> dict[str, Any]:
        shown = hashlib.sha256(json.dumps(self._urls).encode()).hexdigest()
        order = {"shards": shown, "resampled": self._resampled, "shardshuffle": self._mixed}
        return super()._described() | order

    def __repr__(self) -> str:
        more = f" and {len(self._urls) - 1} more" if len(self._urls) > 1 else ""
        return f"<forebay.WebDataset {self._urls[0]}{more}: {len(self._stages)} steps>"


def _mixed(shardshuffle: Any) -> int:
    if shardshuffle is None or isinstance(shardshuffle, bool):
        return shards.SHARDS_MIXED if shardshuffle else 0
    return whole("shardshuffle", shardshuffle, 0, _SHARDS_MAX)


def _function(option: str, value: Any) -> None:
    if not callable(value):
        raise Invalid(f"{option}={value!r} is not a function", {"option": option})


def _splitter(option: str, value: Any) -> Splitter | None:
    if value is None or value is False:
        return None
    _function(option, value)
    splitter: Splitter = value
    return splitter
