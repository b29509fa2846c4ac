"""From a native batch to the dict that users get."""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import sys
from dataclasses import replace
from typing import Any

from forebay import _native
from forebay._lazy import texts, views
from forebay._ragged import Nested, Padded, Ragged
from forebay._usercode import Column, Decoded, Made, UserCode, where
from forebay.fields import Field, Rows
from forebay.frameworks import Framework

_log = logging.getLogger("forebay")


@functools.cache
def _array(bits: int) -> Any:
    """Return an array type of 2**bits bytes.

    Making a type takes ten times as long as making a view, and batches come in every length. So
    there is one type for each power of two, and the view is cut to the length.
    """
    return ctypes.c_ubyte * 2**bits


def lend(view: _native.View) -> memoryview:
    """Return a read-only memoryview of lent memory that keeps the bytes alive."""
    size = len(view)
    array = _array(max(size - 1, 0).bit_length()).from_address(view.address)
    # The memoryview keeps the array alive, and the array the owner of the bytes.
    array.owner = view
    return memoryview(array).cast("B").toreadonly()[:size]


class Assembler:
    """Turns native batches into dicts of the framework's tensors, lists and lazy sequences."""

    def __init__(self, code: UserCode, pin: bool) -> None:
        self.code = code
        self._pin = pin and _can_pin(code.framework)

    def __call__(self, native: _native.Batch) -> Made:
        """Return the user's batch, made in this thread."""
        return self.finish(self.code(self.decoded(native)))

    def decoded(self, native: _native.Batch) -> Decoded:
        """Return the batch before any user code."""
        columns: list[Column] = []
        memories = [lend(lent) for lent in native.lent()]
        for name, kind, rows, present in native.take_columns():
            field = self.code.fields.get(name)
            if kind in ("padded", "nested"):
                values = self._ragged(kind, rows, field)
            else:
                values = self._values(kind, rows, present, memories)
            if present is None and field is not None and field.optional:
                places = rows[1] if kind == "views" else rows
                present = [place is not None for place in places]
            columns.append((name, values, present))
        return Decoded(
            columns,
            texts(native.keys()),
            texts(native.urls()),
            native.offsets(),
            self._tensor(native.valid()),
        )

    def finish(self, made: Made) -> Made:
        """Do the steps in this process that follow all user code."""
        return replace(made, batch=_pinned(made.batch)) if self._pin else made

    def _tensor(self, native: _native.Tensor) -> Any:
        return self.code.framework.tensor(native)

    def _ragged(self, kind: str, rows: Any, field: Field | None) -> Ragged:
        values, lengths = (self._tensor(part) for part in rows)
        if kind == "nested":
            return Nested(values, lengths)
        is_fixed = isinstance(field, Rows) and field.max_len is not None
        return Padded(values, lengths, is_fixed)

    def _values(
        self, kind: str, rows: Any, present: list[bool] | None, memories: list[memoryview]
    ) -> Any:
        if kind == "tensor":
            return self._tensor(rows)
        if kind == "tensors":
            return where(present, [self._tensor(row) for row in rows])
        if kind == "json":
            there = present or [True] * len(rows)
            return [json.loads(row) if has else None for row, has in zip(rows, there, strict=True)]
        if kind == "views":
            return views(memories, *rows)
        return where(present, rows)


def _pinned(value: Any) -> Any:
    """Return a copy with torch's tensors in pinned memory, those in lists and tuples, too."""
    if isinstance(value, dict):
        return {name: _pinned(part) for name, part in value.items()}
    if type(value) is list:
        return [_pinned(part) for part in value]
    if isinstance(value, tuple):
        parts = [_pinned(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    torch: Any = sys.modules["torch"]
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return value.pin_memory() if on_cpu else value


def _can_pin(framework: Framework) -> bool:
    if framework.name != "torch":
        _log.warning("pin_memory=True has no effect: %s cannot pin memory", framework.name)
        return False
    import torch

    if not torch.cuda.is_available():
        _log.warning("pin_memory=True has no effect: torch sees no GPU here")
        return False
    return True
