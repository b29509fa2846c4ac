"""Stages of the fluent chain.

A stage is made of plain values, so that a chain can be sent to a worker, and keeps no state from
one iteration to the next.
"""

from __future__ import annotations

import functools
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from typing import Any, Protocol

from forebay._stop import items
from forebay._values import number, whole
from forebay.errors import BadSample, Invalid
from forebay.webdataset import collate, shards
from forebay.webdataset.collate import Collate
from forebay.webdataset.decoding import unpickle
from forebay.webdataset.handlers import Handler
from forebay.webdataset.place import Epoch

Sample = dict[str, Any]
Stream = Iterator[Any]
Filter = Callable[[Any], Iterable[Any]]
Function = Callable[[Any], Any]

# Largest buffer or batch: more is a mistake in a unit.
_SIZE_MAX = 2**31 - 1


class Runs(Protocol):
    """A stage in the form of webdataset's ``PipelineStage``."""

    def run(self, source: Any) -> Iterable[Any]:
        """Return samples made from samples."""


@dataclass(frozen=True)
class Stage:
    """A stage of the chain."""

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Process `source` in an epoch, as the chain's stage `number`."""
        raise NotImplementedError


def through(stage: Any, source: Stream, epoch: Epoch, number: int) -> Stream:
    """Run any stage: one of ours, an object with ``run``, or a function of the samples."""
    if isinstance(stage, Stage):
        return stage.run(source, epoch, number)
    return items(stage.run(source) if hasattr(stage, "run") else stage(source))


def check(stage: Any) -> None:
    """Reject objects that are not stages."""
    if not callable(stage) and not callable(getattr(stage, "run", None)):
        raise Invalid(f"{stage!r} is not a stage; give a function that makes samples of samples")


def _callable(what: str, function: Any) -> None:
    if not callable(function):
        raise Invalid(f"{what} takes a function, not {function!r}")


def _of_dicts(what: str, sample: Any) -> Sample:
    if not isinstance(sample, dict):
        raise Invalid(
            f"{what} works on dicts, not on {type(sample).__name__}; put it before to_tuple"
        )
    return sample


def _each(source: Stream, function: Function, handler: Handler) -> Stream:
    """Apply `function` to each sample; the handler gets its errors."""
    for sample in source:
        try:
            result = function(sample)
        except Invalid:
            # The chain is at fault: every sample would fail.
            raise
        except Exception as error:
            if handler(error):
                continue
            return
        yield result


class MissingField(BadSample, KeyError):
    """A sample without a field that a function is for."""

    # KeyError would show the text in quotes.
    __str__ = Exception.__str__


def _lacking(
    wanted: Any, sample: Mapping[str, Any], kind: type[BadSample] = BadSample
) -> BadSample:
    key, url = (str(sample.get(name)) for name in ("__key__", "__url__"))
    return kind(
        f"the sample has no {wanted!r}, but {', '.join(map(str, sample))} (key={key}, url={url})",
        {"key": key, "url": url},
    )


# The names of fields


def _alternatives(names: Any) -> list[str]:
    found = names.split(";") if isinstance(names, str) else list(names)
    if any(" " in name for name in found):
        raise Invalid(f"{names!r} has a space; separate alternatives by ';' alone")
    return found


def _first(sample: Sample, names: Sequence[str], required: bool = True) -> Any:
    for name in names:
        if name in sample:
            return sample[name]
    if required:
        raise _lacking(";".join(names), sample)
    return None


@dataclass(frozen=True)
class ToTuple(Stage):
    """Values of some fields."""

    fields: tuple[tuple[str, ...], ...]
    missing_is_error: bool
    none_is_error: bool
    handler: Handler

    @classmethod
    def of(cls, names: tuple[Any, ...], missing: bool, none: bool | None, handler: Handler) -> Any:
        """Make the stage from the user's names."""
        if len(names) == 1 and isinstance(names[0], str):
            names = tuple(names[0].split())
        if not names:
            raise Invalid("to_tuple takes the names of fields, as in 'jpg;png cls'")
        fields = tuple(tuple(_alternatives(name)) for name in names)
        return cls(fields, missing, missing if none is None else none, handler)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield tuples of values."""
        return _each(source, self._values, self.handler)

    def _values(self, sample: Any) -> tuple[Any, ...]:
        sample = _of_dicts("to_tuple", sample)
        values = tuple(_first(sample, names, self.missing_is_error) for names in self.fields)
        if self.none_is_error and any(value is None for value in values):
            at = next(at for at, value in enumerate(values) if value is None)
            raise _lacking(";".join(self.fields[at]), sample)
        return values


@dataclass(frozen=True)
class Rename(Stage):
    """Fields under other names."""

    names: Mapping[str, Sequence[str]]
    keep: bool
    handler: Handler

    @classmethod
    def of(cls, names: Mapping[str, Any], keep: bool, handler: Handler) -> Any:
        """Make the stage from the user's names."""
        return cls({new: tuple(_alternatives(old)) for new, old in names.items()}, keep, handler)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield dicts with other names."""
        return _each(source, self._renamed, self.handler)

    def _renamed(self, sample: Any) -> Sample:
        sample = _of_dicts("rename", sample)
        renamed = {new: _first(sample, old) for new, old in self.names.items()}
        if not self.keep:
            return renamed
        gone = {name for old in self.names.values() for name in old}
        return {name: value for name, value in sample.items() if name not in gone} | renamed


@dataclass(frozen=True)
class RenameKeys(Stage):
    """Fields under other names, found by patterns."""

    patterns: tuple[tuple[str, str], ...]
    keep_unselected: bool
    must_match: bool
    duplicate_is_error: bool

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield dicts with other names."""
        return (self._renamed(_of_dicts("rename_keys", sample)) for sample in source)

    def _renamed(self, sample: Sample) -> Sample:
        renamed: Sample = {}
        matched = set()
        for name, value in sample.items():
            base = name.rpartition("/")[2].lower()
            # The last matching pattern counts.
            fits = [found for found in self.patterns if fnmatch(base, found[1])]
            if not fits:
                if self.keep_unselected:
                    renamed[name] = value
                continue
            new, pattern = fits[-1]
            matched.add(pattern)
            if new not in renamed:
                renamed[new] = value
            elif self.duplicate_is_error:
                raise _unfit(sample, f"several fields would be named {new!r}")
        missed = {pattern for _, pattern in self.patterns} - matched
        if missed and self.must_match:
            raise _unfit(sample, f"no field matches {', '.join(sorted(missed))}")
        return renamed


@dataclass(frozen=True)
class ExtractKeys(Stage):
    """Values of the fields that match patterns."""

    patterns: tuple[tuple[str, ...], ...]
    duplicate_is_error: bool
    ignore_missing: bool

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield tuples of values."""
        return (self._values(_of_dicts("extract_keys", sample)) for sample in source)

    def _values(self, sample: Sample) -> tuple[Any, ...]:
        values = []
        for patterns in self.patterns:
            fits = [name for name in sample if _fits(name, patterns)]
            if not fits:
                if self.ignore_missing:
                    continue
                raise _unfit(sample, f"no field matches {';'.join(patterns)}")
            if len(fits) > 1 and self.duplicate_is_error:
                raise _unfit(sample, f"{' and '.join(fits)} match {';'.join(patterns)}")
            values.append(sample[fits[0]])
        return tuple(values)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, one) or fnmatch(f".{name}", one) for one in patterns)


def _unfit(sample: Sample, what: str) -> BadSample:
    key, url = (str(sample.get(name)) for name in ("__key__", "__url__"))
    return BadSample(
        f"{what}; the sample has {', '.join(sample)} (key={key}, url={url})",
        {"key": key, "url": url},
    )


# User functions


@dataclass(frozen=True)
class Map(Stage):
    """Function of each sample; samples with the result None are left out."""

    function: Function
    handler: Handler

    def __post_init__(self) -> None:
        _callable("map", self.function)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield the function's results."""
        mapped = _each(source, self._mapped, self.handler)
        return (result for result in mapped if result is not None)

    def _mapped(self, sample: Any) -> Any:
        key = sample.get("__key__") if isinstance(sample, dict) else None
        result = self.function(sample)
        if isinstance(sample, dict) and isinstance(result, dict):
            # A sample keeps its key, whatever the function returns.
            result["__key__"] = key
        return result


@dataclass(frozen=True)
class MapDict(Stage):
    """Functions of some fields."""

    functions: Mapping[str, Function]
    handler: Handler

    def __post_init__(self) -> None:
        if not self.functions:
            raise Invalid("map_dict takes functions by the names of fields, as in cls=int")
        for name, function in self.functions.items():
            _callable(f"map_dict({name}=)", function)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield dicts with those fields mapped."""
        return _each(source, self._mapped, self.handler)

    def _mapped(self, sample: Any) -> Sample:
        mapped = dict(_of_dicts("map_dict", sample))
        for name, function in self.functions.items():
            if name not in mapped:
                raise _lacking(name, sample, MissingField)
            mapped[name] = function(mapped[name])
        return mapped


@dataclass(frozen=True)
class MapTuple(Stage):
    """Functions of a tuple's first values; None leaves one as it is."""

    functions: tuple[Function | None, ...]
    handler: Handler

    def __post_init__(self) -> None:
        for function in self.functions:
            if function is not None:
                _callable("map_tuple", function)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield tuples with those values mapped."""
        return _each(source, self._mapped, self.handler)

    def _mapped(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (list, tuple)):
            raise Invalid(
                f"map_tuple works on tuples, not on {type(sample).__name__}; put it after to_tuple"
            )
        mapped = list(sample)
        for at, function in enumerate(self.functions[: len(mapped)]):
            if function is not None:
                mapped[at] = function(mapped[at])
        return tuple(mapped)


@dataclass(frozen=True)
class Select(Stage):
    """Samples for which a function is true."""

    predicate: Function

    def __post_init__(self) -> None:
        _callable("select", self.predicate)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield those samples."""
        # Not by `filter`, which takes a StopIteration of the function for its end.
        return (sample for sample in source if self.predicate(sample))


@dataclass(frozen=True)
class Then(Stage):
    """Function of the stream and of further arguments."""

    function: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    def __post_init__(self) -> None:
        _callable("then", self.function)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Return the function's result for the stream."""
        return items(self.function(source, *self.arguments, **self.named))


# Fields decoded by patterns


def _read(file: io.BytesIO) -> bytes:
    return file.read()


def _read_text(file: io.BytesIO) -> str:
    return file.read().decode("utf-8")


def _read_pickle(file: io.BytesIO) -> Any:
    return unpickle(file.read())


# Built-in decoders of xdecode.
_BY_PATTERN: tuple[tuple[str, Any], ...] = (
    ("*.bin", _read),
    ("*.txt", _read_text),
    ("*.pyd", _read_pickle),
)


@dataclass(frozen=True)
class XDecode(Stage):
    """Fields decoded by functions of a file, chosen by patterns; False leaves a field as it is."""

    decoders: tuple[tuple[str, Any], ...]
    must_decode: bool

    @classmethod
    def of(cls, args: Iterable[Any], must: bool, defaults: Any, named: Mapping[str, Any]) -> Any:
        """Make the stage from the user's decoders: the last match counts."""
        known = _BY_PATTERN if defaults is None else tuple(defaults)
        return cls((*known, *args, *((f"*.{name}", f) for name, f in named.items())), must)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield dicts of decoded values."""
        return (self._decoded(_of_dicts("xdecode", sample)) for sample in source)

    def _decoded(self, sample: Sample) -> Sample:
        return {name: self._value(sample, name) for name in sample}

    def _value(self, sample: Sample, name: str) -> Any:
        data, base = sample[name], re.sub(r".*/", "", name).lower()
        if name.startswith("__") or base.startswith("__"):
            return data
        decoder = next((f for one, f in self.decoders[::-1] if _fits(base, [one])), None)
        if decoder is None and self.must_decode:
            raise _unfit(sample, f"no decoder matches {name}")
        if decoder is None or decoder is False:
            return data
        return decoder(io.BytesIO(data) if isinstance(data, bytes) else data)


# The whole stream


@dataclass(frozen=True)
class Shuffle(Stage):
    """Samples drawn from a buffer."""

    size: int
    initial: int
    seed: int | None
    draws: random.Random | None

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield the samples in another order, a different one in each epoch."""
        draws = self.draws or epoch.draws(f"shuffle {number}", self.seed)
        return shards.shuffled(source, self.size, self.initial, draws)


@dataclass(frozen=True)
class Sampled(Stage):
    """Each sample with a probability."""

    p: float

    def __post_init__(self) -> None:
        if not 0 <= number("p", self.p) <= 1:
            raise Invalid(f"p={self.p!r} is not a probability; use 0 to 1", {"option": "p"})

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield some of the samples, different ones in each epoch."""
        draws = epoch.draws(f"rsample {number}")
        return (sample for sample in source if draws.random() < self.p)


@dataclass(frozen=True)
class Slice(Stage):
    """A part of the stream, as ``itertools.islice`` takes it."""

    bounds: tuple[int | None, ...]

    def __post_init__(self) -> None:
        try:
            islice((), *self.bounds)
        except (TypeError, ValueError) as error:
            raise Invalid(f"slice{self.bounds!r} is not a part of a stream: {error}") from None

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield that part."""
        return islice(source, *self.bounds)


@dataclass(frozen=True)
class Batched(Stage):
    """Batches of samples."""

    size: int
    collation: Collate | None
    rest: bool

    def __post_init__(self) -> None:
        whole("batchsize", self.size, 1, _SIZE_MAX)
        if self.collation is not None:
            _callable("collation_fn=", self.collation)

    def run(self, source: Stream, epoch: Epoch, number: int) -> Stream:
        """Yield lists, or their collated batches."""
        return collate.batches(source, self.size, self.collation, self.rest)


def shuffle(size: Any, initial: Any, seed: Any, draws: Any) -> Shuffle:
    """A shuffle of checked arguments."""
    if seed is not None and draws is not None:
        raise Invalid("seed= and rng= exclude each other; choose one", {"option": "seed"})
    return Shuffle(
        whole("size", size, 1, _SIZE_MAX), whole("initial", initial, 0, _SIZE_MAX), seed, draws
    )


unbatched = functools.partial(Then, collate.unbatched, (), {})
unlisted = functools.partial(Then, collate.unlisted, (), {})
