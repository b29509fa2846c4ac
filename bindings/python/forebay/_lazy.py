"""Columns whose rows are made when accessed.

They read like lists, and keep the source of their rows alive. Making a thousand Python objects
takes longer than everything else of a batch, so a batch does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

Row = TypeVar("Row")


class Lazy(Sequence[Row]):
    """A read-only sequence that makes each row anew at each access.

    Parameters
    ----------
    of
        The rows, if they exist: torch's loaders rebuild sequences from their rows. Otherwise their
        number, and `row` makes each from its number, counted from 0.
    """

    def __init__(self, of: Sequence[Row] | int, row: Callable[[int], Row] | None = None) -> None:
        if isinstance(of, int):
            assert row is not None
            self._row, self._len = row, of
        else:
            self._row, self._len = list(of).__getitem__, len(of)

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(self._len))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._row(row) for row in range(*index.indices(self._len))]
        row = index + self._len if index < 0 else index
        if not 0 <= row < self._len:
            raise IndexError(f"row {index} of {self._len}")
        return self._row(row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, (list(self),)

    def __repr__(self) -> str:
        return repr(list(self))


def texts(of: Any) -> Lazy[str]:
    """Return the strings of a native column of texts."""
    return Lazy(len(of), of.get)


def views(
    memories: list[memoryview], pieces: bytes, places: list[slice | None]
) -> Lazy[memoryview | None]:
    """Return slices of `memories`, None if absent; a slice costs a tenth of a new memoryview.

    `pieces` has the number of each row's memory.
    """

    def view(row: int) -> memoryview | None:
        place = places[row]
        return None if place is None else memories[pieces[row]][place]

    return Lazy(len(places), view)
