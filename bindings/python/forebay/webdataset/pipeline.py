"""Fluent chain of data sets and loaders, and its repetition.

Every iteration is an epoch with its own number, and its random draws are its own.
"""

from __future__ import annotations

import copy
import random
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from forebay import _foreign, _lookahead
from forebay._stop import of_generator
from forebay._turns import InTurns, Turns
from forebay._values import U64_MAX, whole
from forebay.errors import Invalid
from forebay.webdataset import environment, place, position, stages
from forebay.webdataset.collate import Collate, default_collation_fn
from forebay.webdataset.decoding import Decoder, FieldDecoder
from forebay.webdataset.handlers import Handler, reraise_exception
from forebay.webdataset.place import Epoch
from forebay.webdataset.position import Position
from forebay.webdataset.shards import INITIAL

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset
else:
    # torch's loader expects this class, so it must exist before the loader does.
    try:
        from torch.utils.data import IterableDataset
    except ImportError:
        from typing import Generic

        class IterableDataset(Generic[TypeVar("_Sample")]):
            """Stands in for torch's class without torch."""


_Self = TypeVar("_Self", bound="Pipeline")

# Held while an iteration finds its epoch.
_BEGINNING = Turns()

_CACHED = "the daemon caches, for all jobs and epochs; leave it out"


class Pipeline(IterableDataset[Any]):
    """A stream of samples and its stages.

    Every stage makes a new pipeline and leaves this one as it is; `with_epoch`, `with_length` and
    `repeat` change this one.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        environment.check()
        if seed is None:
            seed = environment.seed()
        self._seed = 0 if seed is None else whole("seed", seed, -U64_MAX, U64_MAX)
        self._stages: list[Any] = []
        # Repetitions of the source in one iteration, None for ever.
        self._repetitions: int | None = 1
        self._samples: int | None = None
        self._length: int | None = None
        # Start of the next iteration.
        self._next = Position(epoch=0)
        self._at: Position | None = None
        # Delivered samples that the caller holds back.
        self._held = 0
        # Iterations that `close` ends, shared with every pipeline made from this one.
        self._under_way: weakref.WeakSet[InTurns[Any]] = weakref.WeakSet()
        # True if a worker knows the epoch's number: its copy of this does not count other
        # iterations of torch's loader.
        self._told = False

    def _source(self, epoch: Epoch) -> Iterator[Any]:
        raise NotImplementedError

    # Iteration

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or continue the loaded one."""
        with _BEGINNING.lock:
            worker = place.worker()
            begin = self._begun(worker)
        stream = self._cut(self._repeated(begin, worker), worker)
        iteration = InTurns(self._play(begin, stream))
        self._under_way.add(iteration)
        return iteration

    def _begun(self, worker: place.Worker) -> Position:
        """Return the start of the iteration that begins."""
        begin = self._next
        if begin.workers not in (None, worker.workers):
            raise Invalid(
                f"the state that was loaded is of one of {begin.workers} workers, and here are "
                f"{worker.workers}; load it in as many, or choose another epoch by set_epoch"
            )
        if begin.base_seed is None:
            base_seed = 0 if self._told else worker.base_seed
            begin = replace(begin, base_seed=base_seed)
        self._next, self._at, self._held = Position(begin.epoch + 1), begin, 0
        return begin

    def _play(self, begin: Position, stream: Iterator[Any]) -> Generator[Any, None, None]:
        handed_out = begin.samples
        try:
            for sample in islice(stream, begin.samples, None):
                handed_out += 1
                self._at, self._held = replace(begin, samples=handed_out), _lookahead.held()
                yield sample
        except RuntimeError as error:
            told = of_generator(error)
            if told is error:
                raise
            raise told from told.__cause__
        self._at, self._held = None, 0
        if begin.samples and handed_out == begin.samples:
            # The state was saved after an epoch's last sample: continue with the next epoch.
            yield from iter(self)

    def _cut(self, stream: Iterator[Any], worker: place.Worker) -> Iterator[Any]:
        if self._samples is None or self._repetitions == 1:
            return stream
        # An epoch's samples are those of all workers together.
        share, more = divmod(self._samples, worker.workers)
        return islice(stream, share + (worker.number < more))

    def _repeated(self, begin: Position, worker: place.Worker) -> Iterator[Any]:
        repetition = 0
        while self._repetitions is None or repetition < self._repetitions:
            epoch = Epoch(worker, self._seed, begin.base_seed or 0, begin.epoch, repetition)
            stream = self._source(epoch)
            for step, stage in enumerate(self._stages):
                stream = stages.through(stage, stream, epoch, step)
            empty = True
            for sample in stream:
                empty = False
                yield sample
            if empty:
                return
            repetition += 1

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration plays."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, here and in workers that start then.

        After `load_state_dict`, choosing the loaded epoch keeps the loaded position.

        Parameters
        ----------
        epoch : int
            0 or more.
        """
        if whole("epoch", epoch, 0, U64_MAX) != self._next.epoch:
            self._next = Position(epoch)
            self._at, self._held = None, 0
        self._told = True

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next sample, after those that this object delivered.

        It is this worker's own, for as many ranks and workers. The user's functions must be
        repeatable for it to be found again.

        Returns
        -------
        dict
            Numbers and text only: fit for JSON, pickle and ``torch.save``.
        """
        at = self._at or self._next
        earlier = replace(at, samples=max(0, at.samples - self._held))
        return position.save(earlier, self._described())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`: the next iteration plays its epoch and skips the
        delivered part.

        Parameters
        ----------
        state : dict
            From `state_dict` of the same pipeline.

        Raises
        ------
        Invalid
            Naming the difference.
        """
        self._next = position.load(state, self._described())
        self._at, self._held = None, 0

    def _described(self) -> dict[str, Any]:
        """Return the options that its order is a function of, as far as they are known."""
        worker = place.worker()
        return {
            "seed": self._seed,
            "steps": [type(stage).__name__ for stage in self._stages],
            "repetitions": self._repetitions,
            "samples": self._samples,
            "rank": worker.rank,
            "world_size": worker.world_size,
            "worker": worker.number,
            "workers": worker.workers,
        }

    def __len__(self) -> int:
        """Return the length set by `with_length`.

        Raises
        ------
        TypeError
            Without it: the samples are not counted.
        """
        if self._length is None:
            raise TypeError("the length of a stream is unknown; set one by with_length")
        return self._length

    def __bool__(self) -> bool:
        # A stream is true, however long it is.
        return True

    if not TYPE_CHECKING:
        # Hidden from type checkers, which report unknown names by themselves.
        def __getattr__(self, name: str) -> NoReturn:
            raise _foreign.unknown_attribute(type(self), name, _foreign.CHAINS_OWN)

    def __getstate__(self) -> dict[str, Any]:
        mine = place.rank()
        state = self.__dict__ | {"_of": mine if mine.world_size > 1 else None}
        del state["_under_way"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        place.told_by_parent(state.pop("_of"))
        self.__dict__.update(state)
        self._under_way = weakref.WeakSet()

    def __copy__(self: _Self) -> _Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._at, twin._held = None, 0
        return twin

    def __enter__(self: _Self) -> _Self:
        """Return the pipeline itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the current iterations of this pipeline and of those made from it."""
        for iteration in list(self._under_way):
            iteration.close()

    # Repetition

    def with_epoch(self: _Self, nsamples: int = -1, nbatches: int = -1) -> _Self:
        """Make each iteration `nsamples` long, from a stream repeated without end.

        Parameters
        ----------
        nsamples, nbatches : int
            Items of each rank, over all workers together; the larger of the two. Neither: without
            end.
        """
        self._repetitions, self._samples = None, _limit(max(nsamples, nbatches))
        return self

    def repeat(self: _Self, nepochs: int = -1, nbatches: int = -1) -> _Self:
        """Play the stream `nepochs` times in each iteration, or without end.

        Parameters
        ----------
        nepochs : int
            Number of repetitions; without end if it is not above 0.
        nbatches : int
            Items at most, counted as by `with_epoch`, if `nepochs` is not 1.
        """
        self._repetitions, self._samples = (nepochs if nepochs > 0 else None), _limit(nbatches)
        return self

    def with_length(self: _Self, n: int, silent: bool = True) -> _Self:
        """Make ``len()`` return `n`. It changes nothing else.

        Parameters
        ----------
        n : int
            0 or more.
        silent : bool
            Has no effect: there is no warning.
        """
        self._length = whole("n", n, 0, sys.maxsize)
        return self

    # Stages

    def compose(self: _Self, *steps: Any) -> _Self:
        """Add stages: functions from an iterator to an iterable, or objects with ``run``."""
        for step in steps:
            stages.check(step)
        twin = copy.copy(self)
        twin._stages = [*self._stages, *steps]
        return twin

    def then(self: _Self, f: Callable[..., Any], *args: Any, **kw: Any) -> _Self:
        """Add a function of the stream and of the arguments given here."""
        return self.compose(stages.Then(f, args, kw))

    def shuffle(
        self: _Self,
        size: int,
        *,
        initial: int = INITIAL,
        rng: random.Random | None = None,
        seed: int | None = None,
    ) -> _Self:
        """Draw samples at random from a buffer.

        Parameters
        ----------
        size : int
            Samples in the buffer; below 1, nothing is shuffled.
        initial : int
            Samples to wait for before the first is drawn.
        rng : random.Random, optional
            Source of draws. Default: a generator of this epoch and worker.
        seed : int, optional
            In place of the pipeline's seed.
        """
        if size < 1:
            return self
        return self.compose(stages.shuffle(size, initial, seed, rng))

    def decode(
        self: _Self,
        *args: str | FieldDecoder,
        pre: list[FieldDecoder] | None = None,
        post: list[FieldDecoder] | None = None,
        only: str | list[str] | None = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
    ) -> _Self:
        """Decode every field that a decoder knows.

        Parameters
        ----------
        *args : str or callable
            Image formats for `imagehandler`, and functions of a field's name (with a dot before it)
            and bytes; None as a result leaves the field to the next.
        pre, post : list of callable, optional
            Asked before and after them; by default the one for ``.gz``, and those for text,
            numbers, JSON, arrays and pickles by their suffixes.
        only : str or list of str, optional
            The fields to decode.
        partial : bool
            True accepts fields that are not bytes.
        handler : callable
            Called with a `BadSample` for each sample that cannot be decoded.
        """
        return self.map(Decoder(args, pre, post, only, partial), handler)

    def map(self: _Self, f: stages.Function, handler: Handler = reraise_exception) -> _Self:
        """Apply `f` to each sample; samples with the result None are left out."""
        return self.compose(stages.Map(f, handler))

    def map_dict(self: _Self, handler: Handler = reraise_exception, **kw: Any) -> _Self:
        """Apply a function to each of the named fields."""
        return self.compose(stages.MapDict(kw, handler))

    def map_tuple(self: _Self, *args: Any, handler: Handler = reraise_exception) -> _Self:
        """Apply a function to each value of a tuple; None leaves one as it is."""
        return self.compose(stages.MapTuple(args, handler))

    def select(self: _Self, predicate: stages.Function) -> _Self:
        """Keep the samples for which `predicate` is true."""
        return self.compose(stages.Select(predicate))

    def rename(
        self: _Self, handler: Handler = reraise_exception, keep: bool = True, **kw: Any
    ) -> _Self:
        """Rename fields: ``rename(image="jpg;png")``. Without `keep`, others are dropped."""
        return self.compose(stages.Rename.of(kw, keep, handler))

    def rename_keys(
        self: _Self,
        *args: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **kw: str,
    ) -> _Self:
        """Rename fields by patterns: ``rename_keys(image="*.jpg")`` or pairs of the two."""
        patterns = (*args, *kw.items())
        return self.compose(
            stages.RenameKeys(patterns, keep_unselected, must_match, duplicate_is_error)
        )

    def extract_keys(
        self: _Self,
        *args: str | list[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
    ) -> _Self:
        """Make tuples of the fields that match patterns; ``;`` separates alternatives."""
        patterns = tuple(tuple(one.split(";") if isinstance(one, str) else one) for one in args)
        return self.compose(stages.ExtractKeys(patterns, duplicate_is_error, ignore_missing))

    def to_tuple(
        self: _Self,
        *args: str | list[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> _Self:
        """Make tuples of fields: ``to_tuple("jpg;png", "cls")`` or ``to_tuple("jpg;png cls")``."""
        return self.compose(stages.ToTuple.of(args, missing_is_error, none_is_error, handler))

    def xdecode(
        self: _Self, *args: Any, must_decode: bool = True, defaults: Any = None, **kw: Any
    ) -> _Self:
        """Decode fields by functions of a file: pairs of a pattern and one, or suffixes by name."""
        return self.compose(stages.XDecode.of(args, must_decode, defaults, kw))

    def batched(
        self: _Self,
        batchsize: int,
        collation_fn: Collate | None = default_collation_fn,
        partial: bool = True,
    ) -> _Self:
        """Make batches.

        Parameters
        ----------
        batchsize : int
            Samples in a batch.
        collation_fn : callable, optional
            Makes a batch of a list of samples. None: the list is the batch.
        partial : bool
            True keeps a shorter last batch; otherwise it is dropped.
        """
        return self.compose(stages.Batched(batchsize, collation_fn, partial))

    def unbatched(self: _Self) -> _Self:
        """Take batches apart into samples."""
        return self.compose(stages.unbatched())

    def listed(self: _Self, batchsize: int, partial: bool = True) -> _Self:
        """Make lists of samples."""
        return self.batched(batchsize, None, partial)

    def unlisted(self: _Self) -> _Self:
        """Take lists of samples apart."""
        return self.compose(stages.unlisted())

    def slice(self: _Self, *args: int | None) -> _Self:
        """Take a part of the stream, as ``itertools.islice`` does."""
        return self.compose(stages.Slice(args))

    def rsample(self: _Self, p: float = 0.5) -> _Self:
        """Keep each sample with the probability `p`."""
        return self.compose(stages.Sampled(p))

    def mcached(self) -> NoReturn:
        """Reject: the daemon caches."""
        raise Invalid(f"mcached: {_CACHED}")

    def lmdb_cached(self, *_: Any, **__: Any) -> NoReturn:
        """Reject: the daemon caches."""
        raise Invalid(f"lmdb_cached: {_CACHED}")

    def log_keys(self, *_: Any) -> NoReturn:
        """Reject, with the alternative."""
        raise Invalid("log_keys: use .map with a function that writes sample['__key__']")


def _limit(samples: int) -> int | None:
    return samples if samples > 0 else None
