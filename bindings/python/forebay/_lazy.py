"""Columns whose rows are made when accessed.

They read like lists, and keep the source of their rows alive. Making a thousand Python objects
takes longer than everything else of a batch, so a batch does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

Row = TypeVar("Row")


def _itself(row: Row) -> Row:
    return row


class Lazy(Sequence[Row]):
    """A read-only sequence that makes each row anew at each access.

    Parameters
    ----------
    of
        Sources of the rows, one for each.
    row
        Function that makes a row from its source. By default the sources are the rows: torch's
        loaders rebuild sequences from their rows.
    """

    def __init__(self, of: Sequence[Any], row: Callable[[Any], Row] = _itself) -> None:
        self._of, self._row = of, row

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, self._of)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._row(of) for of in self._of[index]]
        rows = len(self._of)
        if not -rows <= index < rows:
            raise IndexError(f"row {index} of {rows}")
        return self._row(self._of[index])

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
    return Lazy(range(len(of)), of.get)


def views(
    memories: list[memoryview], pieces: bytes, places: list[slice | None]
) -> Lazy[memoryview | None]:
    """Return slices of `memories`, None if absent; a slice costs a tenth of a new memoryview.

    `pieces` has the number of each row's memory; none if all rows are present and lie in the first.
    """
    if not places:
        return Lazy([])
    if not pieces:
        # No function of Python's own runs for a row.
        return Lazy(places, memories[0].__getitem__)

    def view(row: int) -> memoryview | None:
        place = places[row]
        return None if place is None else memories[pieces[row]][place]

    return Lazy(range(len(places)), view)
