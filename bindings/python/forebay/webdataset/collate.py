"""Samples into batches and back.

A batch is a sample whose values are columns; samples that do not fit together are rejected.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from forebay.errors import BadSample, Invalid

__all__ = ["default_collation_fn"]

Collate = Callable[[list[Any]], Any]


def default_collation_fn(samples: Sequence[Any]) -> Any:
    """Collate `samples` into one batch: dicts become a dict, tuples and lists a tuple.

    Numbers become a NumPy array, arrays and tensors are stacked, all else becomes a list.

    Raises
    ------
    BadSample
        If samples differ in their fields, or arrays in their shapes.
    """
    dicts = isinstance(samples[0], dict)
    rows = [_named(sample) for sample in samples]
    for row in rows[1:]:
        if row.keys() != rows[0].keys():
            raise BadSample(
                f"samples of a batch have different fields: {_shown(rows[0])} and {_shown(row)}; "
                "choose fields by to_tuple, or give collation_fn="
            )
    columns = {name: _column(name, [row[name] for row in rows]) for name in rows[0]}
    return columns if dicts else tuple(columns.values())


def _named(sample: Any) -> dict[Any, Any]:
    return sample if isinstance(sample, dict) else dict(enumerate(sample))


def _shown(row: dict[Any, Any]) -> str:
    return f"{sorted(map(str, row))} (key={row.get('__key__')}, url={row.get('__url__')})"


def _column(name: Any, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, (int, float)):
        return importlib.import_module("numpy").array(values)
    # Tensors and arrays exist only if these modules are imported.
    for module, kind, join in (("torch", "Tensor", "stack"), ("numpy", "ndarray", "stack")):
        found: Any = sys.modules.get(module)
        if found is None or not isinstance(first, getattr(found, kind)):
            continue
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise BadSample(
                f"arrays of a batch differ in shape, in the field {name!r}: {sorted(shapes)}; "
                "resize or pad them by map, or give collation_fn="
            )
        return getattr(found, join)(values)
    return values


def batches(source: Iterable[Any], size: int, collate: Collate | None, rest: bool) -> Iterator[Any]:
    """Yield lists of `size` samples, collated; the last may be shorter if `rest`."""
    batch: list[Any] = []
    for sample in source:
        batch.append(sample)
        if len(batch) == size:
            yield batch if collate is None else collate(batch)
            batch = []
    if batch and rest:
        yield batch if collate is None else collate(batch)


def unbatched(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of batches whose values are columns."""
    for batch in source:
        if isinstance(batch, dict):
            names, columns = list(batch), list(batch.values())
        elif isinstance(batch, (list, tuple)):
            names, columns = [], list(batch)
        else:
            raise Invalid(f"unbatched works on dicts and tuples, not {type(batch).__name__}")
        if not columns or len({len(column) for column in columns}) > 1:
            raise Invalid("unbatched found columns of different lengths, or none; is it a batch?")
        for row in range(len(columns[0])):
            values = tuple(column[row] for column in columns)
            yield dict(zip(names, values, strict=True)) if names else values


def unlisted(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of lists of samples."""
    for batch in source:
        if not isinstance(batch, list):
            raise Invalid(f"unlisted works on lists, not {type(batch).__name__}; see unbatched")
        yield from batch
