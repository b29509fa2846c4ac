"""From a native batch to the dict that users get."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from forebay import _native
from forebay.fields import Field
from forebay.frameworks import Framework

_log = logging.getLogger("forebay")


class Texts(Sequence[str]):
    """A read-only sequence of str, each made when it is looked at."""

    def __init__(self, of: _native.Texts | Sequence[str]) -> None:
        # torch's loaders make sequences anew out of their items.
        self._get = of.get if isinstance(of, _native.Texts) else list(of).__getitem__
        self._len = len(of)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._get(row) for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._get(row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return repr(list(self))


@functools.cache
def _array(bits: int) -> Any:
    """An array type of 2**bits bytes.

    To make a type takes ten times as long as to make a view, and batches come in every length: so
    there is one type for each power of two, and what is longer than the bytes is cut off a view.
    """
    return ctypes.c_ubyte * 2**bits


def lend(view: _native.View) -> memoryview:
    """A read-only memoryview of the slab that keeps the bytes for as long as it is kept."""
    size = len(view)
    array = _array(max(size - 1, 0).bit_length()).from_address(view.address)
    # The memoryview keeps the array, and the array what the bytes belong to.
    array.owner = view
    return memoryview(array).cast("B").toreadonly()[:size]


class Assembler:
    """Turns native batches into dicts of the framework's tensors, lists and lazy sequences."""

    def __init__(
        self,
        fields: Mapping[str, Field] | None,
        framework: Framework,
        pin: bool,
        transform: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        self._fields = fields or {}
        self._framework = framework
        self._pin = pin and _can_pin(framework)
        self._transform = transform

    def __call__(self, native: _native.Batch) -> Any:
        """The batch as the user gets it, after maps and transform."""
        batch: dict[str, Any] = {}
        keys, urls = Texts(native.keys()), Texts(native.urls())
        lent = native.lent()
        memory = None if lent is None else lend(lent)
        for name, kind, rows, present in native.take_columns():
            field = self._fields.get(name)
            values = self._values(kind, rows, present, memory)
            if field is not None and field.map is not None:
                rows = _where(present, list(values))
                values = self._mapped(name, field.map, rows, keys, urls)
            batch[name] = values
            if present is not None or (field is not None and field.optional):
                flags = present if present is not None else [row is not None for row in rows]
                batch[f"{name}_present"] = self._tensor(_native.Batch.flags(flags))
        batch["__key__"], batch["__url__"] = keys, urls
        batch["__valid__"] = self._tensor(native.valid())
        if self._transform is None:
            return batch
        try:
            return self._transform(batch)
        except Exception as error:
            places = {}
            if len(keys):
                places = {"url": urls[0], "key": keys[0], "to_url": urls[-1], "to_key": keys[-1]}
            _note(error, "transform=", places)
            raise

    def _tensor(self, native: _native.Tensor) -> Any:
        tensor = self._framework.tensor(native)
        return tensor.pin_memory() if self._pin else tensor

    def _values(
        self, kind: str, rows: Any, present: list[bool] | None, memory: memoryview | None
    ) -> Any:
        if kind == "tensor":
            return self._tensor(rows)
        if kind == "tensors":
            return _where(present, [self._tensor(row) for row in rows])
        if kind == "json":
            there = present or [True] * len(rows)
            return [json.loads(row) if has else None for row, has in zip(rows, there, strict=True)]
        if kind == "views" and memory is not None:
            # A slice of one memoryview costs a tenth of a memoryview.
            return [None if row is None else memory[row] for row in rows]
        return _where(present, rows)

    def _mapped(
        self, name: str, function: Callable[[Any], Any], rows: list[Any], keys: Texts, urls: Texts
    ) -> Any:
        mapped = []
        for number, row in enumerate(rows):
            try:
                mapped.append(None if row is None else function(row))
            except Exception as error:
                _note(error, "map=", {"url": urls[number], "key": keys[number], "field": name})
                raise
        stacked = self._framework.stack(mapped) if mapped else None
        return mapped if stacked is None else stacked


def _note(error: Exception, what: str, places: dict[str, str]) -> None:
    """Note on an exception of user code for which samples it was raised."""
    note = f"in {what} of " + ", ".join(f"{name}={place}" for name, place in places.items())
    if sys.version_info >= (3, 11):
        error.add_note(note)
    # Those that refuse attributes have the note; what an error of ours says already stays.
    with contextlib.suppress(AttributeError, TypeError):
        error.places = places | getattr(error, "places", {})  # type: ignore[attr-defined]


def _where(present: list[bool] | None, rows: list[Any]) -> list[Any]:
    if present is None:
        return rows
    return [row if there else None for row, there in zip(rows, present, strict=True)]


def _can_pin(framework: Framework) -> bool:
    if framework.name != "torch":
        _log.warning("pin_memory=True has no effect: %s cannot pin memory", framework.name)
        return False
    import torch

    if not torch.cuda.is_available():
        _log.warning("pin_memory=True has no effect: torch sees no GPU here")
        return False
    return True
