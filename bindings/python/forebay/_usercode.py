"""The user's own functions: `select`, the fields' `map`, `transform`, in that order.

Their exceptions reach the loop unchanged, and name the samples. Their inputs and results do not
depend on where they run (the loop's own thread, other threads, other processes).
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay import _native, _ragged, _slowest
from forebay._layout import Layout
from forebay._lazy import Lazy
from forebay.errors import Invalid
from forebay.fields import Field, Rows
from forebay.frameworks import Framework

# A column's name, its rows, and the presence of the field if it is optional.
Column = tuple[str, Any, list[bool] | None]


@dataclass(frozen=True)
class Decoded:
    """A batch before any user code; everything in it may be sent to another process."""

    columns: list[Column]
    keys: Sequence[str]
    urls: Sequence[str]
    # Byte offsets of samples in their shards; empty if the daemon's release does not report them.
    offsets: list[int]
    valid: Any


@dataclass(frozen=True)
class Made:
    """The user's batch, and the number of samples that `select` rejected, without padding."""

    batch: Any
    left_out: int = 0
    # True if no sample is left in it: it is not delivered, and no other code saw it.
    dropped: bool = False
    # Calls of user code that took longest.
    slowest: list[_slowest.Slow] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class UserCode:
    """User code for a decoded batch."""

    fields: Mapping[str, Field]
    framework: Framework
    select: Callable[[dict[str, Any]], Any] | None
    transform: Callable[[dict[str, Any]], Any] | None
    # True if batches without samples are not delivered.
    drops_empty: bool = False
    # Layout of batches by tokens.
    layout: Layout | None = None

    def __post_init__(self) -> None:
        packed = () if self.layout is None else self.layout.names
        for name, field in self.fields.items():
            if isinstance(field, Rows) and field.is_nested and name not in packed:
                self.framework.refuse_nested(name)

    def __call__(self, decoded: Decoded) -> Made:
        """Run all of it."""
        left_out = 0
        slowest: list[_slowest.Slow] = []
        if self.select is not None:
            chosen = self._chosen(self.select, decoded, slowest)
            if len(chosen) < len(decoded.keys):
                samples = sum(decoded.valid.tolist())
                decoded = self._take(decoded, chosen)
                left_out = samples - sum(decoded.valid.tolist())
        # A batch of padding alone keeps ranks in step.
        emptied = left_out > 0 or not len(decoded.keys)
        if self.drops_empty and emptied and not any(decoded.valid.tolist()):
            return Made(None, left_out, dropped=True, slowest=slowest)
        batch: dict[str, Any] = {}
        rows_of: dict[str, _ragged.Ragged] = {}
        for name, values, present in decoded.columns:
            field = self.fields.get(name)
            if field is not None and field.map is not None:
                rows = where(present, list(values))
                values = self._mapped(name, field, field.map, rows, decoded, slowest)
            if isinstance(values, _ragged.Ragged):
                if self.layout is not None:
                    values = self.layout.laid(self.framework, name, values)
                    rows_of[name] = values
                batch[name] = values.whole(self.framework)
                batch[f"{name}_len"] = values.lengths
            else:
                batch[name] = values
            if present is not None:
                batch[f"{name}_present"] = self.framework.tensor(_native.Batch.flags(present))
        if self.layout is not None:
            batch |= self.layout.extras(self.framework, rows_of)
        batch["__key__"], batch["__url__"] = decoded.keys, decoded.urls
        batch["__valid__"] = decoded.valid
        if self.transform is None:
            return Made(batch, left_out, slowest=slowest)
        start = time.perf_counter()
        try:
            transformed = self.transform(batch)
        except Exception as error:
            _note(error, "transform=", ends(decoded))
            raise
        if len(decoded.keys):
            # It is called with all samples; the first one names them.
            took = [time.perf_counter() - start]
            slowest += _slowest.of_batch(took, decoded.keys, decoded.urls, "transform")
        return Made(transformed, left_out, slowest=slowest)

    def _chosen(
        self,
        select: Callable[[dict[str, Any]], Any],
        decoded: Decoded,
        slowest: list[_slowest.Slow],
    ) -> list[int]:
        """Return the rows that `select` keeps."""
        columns = [(name, where(present, own(rows))) for name, rows, present in decoded.columns]
        chosen = []
        seconds = []
        for row, (key, url) in enumerate(zip(decoded.keys, decoded.urls, strict=True)):
            sample = {name: values[row] for name, values in columns}
            start = time.perf_counter()
            try:
                if select(sample | {"__key__": key, "__url__": url}):
                    chosen.append(row)
            except Exception as error:
                _note(error, "select=", place(decoded, row))
                raise
            seconds.append(time.perf_counter() - start)
        slowest += _slowest.of_batch(seconds, decoded.keys, decoded.urls, "select")
        return chosen

    def _take(self, decoded: Decoded, rows: list[int]) -> Decoded:
        def pick(values: Any) -> Any:
            if isinstance(values, (list, Lazy)):
                return [values[row] for row in rows]
            if isinstance(values, _ragged.Ragged):
                return values.take(self.framework, rows)
            return self.framework.take(values, rows)

        return replace(
            decoded,
            columns=[
                (name, pick(values), None if present is None else [present[row] for row in rows])
                for name, values, present in decoded.columns
            ],
            keys=[decoded.keys[row] for row in rows],
            urls=[decoded.urls[row] for row in rows],
            offsets=[decoded.offsets[row] for row in rows] if decoded.offsets else [],
            valid=pick(decoded.valid),
        )

    def _mapped(
        self,
        name: str,
        field: Field,
        function: Callable[[Any], Any],
        rows: list[Any],
        decoded: Decoded,
        slowest: list[_slowest.Slow],
    ) -> Any:
        ragged = field if isinstance(field, Rows) and field.has_lengths else None
        mapped: list[Any] = []
        before = None
        seconds = []
        for number, row in enumerate(rows):
            start = time.perf_counter()
            try:
                made = None if row is None else function(row)
                if ragged is not None and row is not None:
                    made = _ragged.row(self.framework, made, ragged.max_len, before)
                    before = before if made is None else made
            except Exception as error:
                _note(error, "map=", place(decoded, number) | {"field": name})
                raise
            seconds.append(time.perf_counter() - start)
            mapped.append(made)
        slowest += _slowest.of_batch(seconds, decoded.keys, decoded.urls, "map", name)
        if ragged is not None and ragged.is_nested:
            return _ragged.nested(self.framework, mapped)
        if ragged is not None:
            try:
                return _ragged.padded(self.framework, mapped, ragged.pad_value, ragged.max_len)
            except Invalid as error:
                _note(error, "map=", ends(decoded) | {"field": name})
                raise
        stacked = self.framework.stack(mapped) if mapped else None
        return mapped if stacked is None else stacked


def own(values: Any) -> list[Any]:
    """Return the rows of a column, each with its sample's own length."""
    if isinstance(values, _ragged.Ragged):
        return values.rows()
    return list(values)


def where(present: list[bool] | None, rows: list[Any]) -> list[Any]:
    """Return the rows, with None for missing ones."""
    if present is None:
        return rows
    return [row if there else None for row, there in zip(rows, present, strict=True)]


def place(decoded: Decoded, row: int) -> dict[str, str]:
    """Return the places of a row's sample, as errors name them."""
    found = {"url": decoded.urls[row], "key": decoded.keys[row]}
    return found | {"offset": str(decoded.offsets[row])} if decoded.offsets else found


def ends(decoded: Decoded) -> dict[str, str]:
    """Return the places of the first and the last sample of a batch."""
    if not len(decoded.keys):
        return {}
    last = place(decoded, len(decoded.keys) - 1)
    return place(decoded, 0) | {f"to_{name}": value for name, value in last.items()}


def _note(error: Exception, what: str, places: dict[str, str]) -> None:
    """Note the samples on an exception of user code."""
    note = f"in {what} of " + ", ".join(f"{name}={place}" for name, place in places.items())
    if sys.version_info >= (3, 11):
        error.add_note(note)
    # Exceptions that reject attributes have the note; places of our own errors are kept.
    with contextlib.suppress(AttributeError, TypeError):
        error.places = places | getattr(error, "places", {})  # type: ignore[attr-defined]
