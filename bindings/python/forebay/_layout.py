"""Layout of batches by tokens: rows padded to a width, or one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay._ragged import Nested, Packed, Padded, Ragged
from forebay.errors import Invalid
from forebay.frameworks import Framework

# Keys of packed batches.
PACKED = ("cu_seqlens", "position_ids", "max_seqlen")


@dataclass(frozen=True)
class Layout:
    """Layout of the rows of a batch; it may be sent to another process."""

    names: tuple[str, ...]
    is_packed: bool
    budget: int
    widths: tuple[int, ...]
    # Length at which padded rows are cut, and the value behind their ends.
    max_len: int | None
    pad_values: tuple[float, ...]

    def laid(self, framework: Framework, name: str, rows: Ragged) -> Any:
        """Return the rows of a field with the layout; those of other fields unchanged."""
        if name not in self.names:
            return rows
        if isinstance(rows, Nested):
            return Packed(rows.values, rows.lengths)
        lengths: list[int] = rows.lengths.tolist()
        longest, most = max(lengths, default=0), self.max_len
        is_cut = most is not None and longest > most
        if is_cut and most is not None:
            longest, lengths = most, [min(length, most) for length in lengths]
        width = next((width for width in self.widths if width >= longest), longest)
        self._check(name, width * len(lengths), lengths)
        if not is_cut and not self.widths:
            return rows
        value = self.pad_values[self.names.index(name)]
        found = framework.numbers(lengths, "int64") if is_cut else rows.lengths
        return Padded(framework.widened(rows.values, width, value), found, is_fixed=False)

    def extras(self, framework: Framework, rows: Mapping[str, Ragged]) -> dict[str, Any]:
        """Return what a packed batch has besides its fields, for attention of variable length.

        Raises
        ------
        Invalid
            If rows are not as long as was known of them, or differ among the fields.
        """
        if not self.is_packed:
            return {}
        lengths: list[int] = rows[self.names[0]].lengths.tolist()
        self._check(self.names[0], sum(lengths), lengths)
        for name in self.names[1:]:
            if rows[name].lengths.tolist() != lengths:
                raise Invalid(
                    f"rows of {name!r} and {self.names[0]!r} differ in length, and are packed "
                    "alike; leave it out of batch_by=",
                    {"field": name},
                )
        ends = list(itertools.accumulate(lengths, initial=0))
        return {
            "cu_seqlens": framework.numbers(ends, "int32"),
            "position_ids": framework.places(lengths),
            "max_seqlen": max(lengths, default=0),
        }

    def _check(self, name: str, tokens: int, lengths: list[int]) -> None:
        # A longer sample is alone, by choice.
        if tokens > self.budget and len(lengths) > 1:
            raise Invalid(
                f"a batch has {tokens} tokens, more than its budget of {self.budget}: the lengths "
                "known beforehand are not those of the rows; index the data set again, or give "
                "the length= or dtype= that the rows have",
                {"field": name},
            )
