"""Rows of different length in one tensor: padded, or one after the other.

A row has its sample's own length until its batch is delivered. `select` and `map` see no
padding, and a batch with rejected rows is no wider than the rest need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import Invalid
from forebay.frameworks import Framework, holds


@dataclass(frozen=True)
class Padded:
    """Rows in a tensor of shape ``(batch, width, ...)``, and their lengths, int64 ``(batch,)``."""

    values: Any
    lengths: Any
    # True if every batch has this width, whatever is in it.
    is_fixed: bool

    def rows(self) -> list[Any]:
        """Return each row without its padding."""
        pairs = zip(self.values, self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in pairs]

    def take(self, framework: Framework, rows: list[int]) -> Padded:
        """Return these rows, as wide as they need."""
        lengths = framework.take(self.lengths, rows)
        values = self.values
        if not self.is_fixed:
            values = values[:, : max(lengths.tolist(), default=0)]
        return Padded(framework.take(values, rows), lengths, self.is_fixed)

    def whole(self, _framework: Framework) -> Any:
        """Return the user's tensor."""
        return self.values


@dataclass(frozen=True)
class Nested:
    """Rows one after the other, shape ``(all lengths together, ...)``, and their lengths."""

    values: Any
    lengths: Any

    def rows(self) -> list[Any]:
        """Return each row."""
        found, begin = [], 0
        for length in self.lengths.tolist():
            found.append(self.values[begin : begin + length])
            begin += length
        return found

    def take(self, framework: Framework, rows: list[int]) -> Nested:
        """Return these rows."""
        own = self.rows()
        # An empty slice at the start, because torch joins no empty list.
        values = framework.join([self.values[:0], *(own[row] for row in rows)])
        return Nested(values, framework.take(self.lengths, rows))

    def whole(self, framework: Framework) -> Any:
        """Return the user's tensor."""
        return framework.nested(self.values, self.lengths)


@dataclass(frozen=True)
class Packed(Nested):
    """The same, delivered as they lie."""

    def whole(self, _framework: Framework) -> Any:
        """Return the user's tensor."""
        return self.values


Ragged = Padded | Nested


def row(framework: Framework, value: Any, max_len: int | None, before: Any | None) -> Any | None:
    """Return a sample's result of `map` as a row, cut to `max_len`; None if its dtype is unknown.

    Raises
    ------
    Invalid
        If it has no length, or differs from a row `before` it in more than that.
    """
    if isinstance(value, (list, tuple)) and not value:
        return None
    found = _array(framework, value, max_len)
    if not found.shape:
        raise Invalid("map= gave a single number where rows are padded or nested; give an array")
    alike = before is None or (
        before.dtype == found.dtype and tuple(before.shape[1:]) == tuple(found.shape[1:])
    )
    if not alike:
        raise Invalid(
            f"map= gave {_shown(found)} and, for a sample before it, {_shown(before)}; give arrays "
            "of one dtype that differ only in their first dimension"
        )
    return found[:max_len]


def _array(framework: Framework, value: Any, max_len: int | None) -> Any:
    if isinstance(value, str):
        # Drops a character cut in the middle.
        text = value.encode()[:max_len].decode(errors="ignore")
        return framework.numbers(list(text.encode()), "uint8")
    try:
        return framework.array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Invalid(
            f"map= gave {type(value).__name__} where rows are padded or nested ({error}); give "
            "arrays, lists of numbers or text"
        ) from error


def padded(
    framework: Framework, rows: Sequence[Any | None], value: float, max_len: int | None
) -> Padded:
    """Pad rows of one form with `value` to the longest, or to `max_len`; None has length 0.

    Raises
    ------
    Invalid
        If their dtype cannot hold the value.
    """
    arrays = _whole(framework, rows)
    dtype = _dtype(arrays[0]) if arrays else "float32"
    if not holds(dtype, value):
        raise Invalid(
            f"pad_value={value!r} does not fit {dtype}; give one that the results of map= can hold"
        )
    lengths = [len(array) for array in arrays]
    width = max(lengths, default=0) if max_len is None else max_len
    values = framework.pad(arrays, width, value)
    return Padded(values, framework.numbers(lengths, "int64"), max_len is not None)


def nested(framework: Framework, rows: Sequence[Any | None]) -> Nested:
    """Join rows of one form; None has length 0."""
    arrays = _whole(framework, rows)
    lengths = framework.numbers([len(array) for array in arrays], "int64")
    return Nested(framework.join(arrays or [framework.empty()]), lengths)


def _whole(framework: Framework, rows: Sequence[Any | None]) -> list[Any]:
    """Return the rows, with an empty one for each unknown row."""
    known = next((array for array in rows if array is not None), None)
    none = framework.empty() if known is None else known[:0]
    return [none if array is None else array for array in rows]


def _dtype(array: Any) -> str:
    # torch writes its dtypes as torch.int64.
    return str(array.dtype).rpartition(".")[2]


def _shown(array: Any) -> str:
    return f"{_dtype(array)} {tuple(array.shape)}"
