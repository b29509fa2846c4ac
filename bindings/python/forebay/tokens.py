"""Batches by tokens: ``DataLoader(batch_by=Tokens("tokens", budget=65536))``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from forebay._values import U32_MAX, text, whole, word
from forebay.errors import Invalid
from forebay.fields import ArrayDtype

__all__ = ["Tokens"]

TooLong = Literal["raise", "truncate", "alone"]

# Samples composed together, at most; more than a batch may have is a mistake in a unit.
_LOOKAHEAD_MAX = 1 << 20


@dataclass(frozen=True)
class Tokens:
    """Batches of one rank that hold at most `budget` tokens, whatever number of samples that is.

    Parameters
    ----------
    field : str or sequence of str
        Name in ``fields=`` of an `Npy` or `Text` whose rows are the tokens. Further names are rows
        of the same lengths, such as labels, which are laid out in the same way.
    budget : int
        Tokens of a batch of one rank, at most. Padded: number of rows times the longest; with
        ``pack=True``: the sum of all lengths.
    length : str, optional
        Column of the manifest's member index with the number of tokens of each sample, as
        ``forebay index --columns json:tokens`` writes it. None takes sizes of members in bytes.
    dtype : str, optional
        Type of one token in one-dimensional ``.npy`` files, such as "uint16", for lengths from
        sizes. Rows without a header have it from their field.
    buckets : sequence of int, optional
        Widths of padded batches, ascending: each is as wide as the first that its rows fit in, and
        rows of two buckets never meet. None: as wide as the longest row.
    lookahead : int
        Samples of the epoch's order that are composed together. More pad less and balance better;
        their samples come from anywhere among them.
    too_long : {"raise", "truncate", "alone"}
        Treatment of a sample of more than `budget` tokens: an `Invalid` that names it, before
        anything is read; cut to the budget; or a batch of its own. A field's ``max_len`` cuts
        samples before that.

    Raises
    ------
    Invalid
        For invalid values.
    """

    field: str | Sequence[str]
    _: KW_ONLY
    budget: int = 65536
    length: str | None = None
    dtype: ArrayDtype | None = None
    buckets: Sequence[int] | None = None
    lookahead: int = 8192
    too_long: TooLong = "raise"

    def __post_init__(self) -> None:
        if not self.names() or len(set(self.names())) < len(self.names()):
            raise Invalid(
                f"field={self.field!r}; name one field, or several once each", {"option": "field"}
            )
        whole("budget", self.budget, 1, U32_MAX)
        whole("lookahead", self.lookahead, 1, _LOOKAHEAD_MAX)
        word("too_long", self.too_long, TooLong)
        if self.length is not None:
            text("length", self.length, "name a column of the member index")
        if self.dtype is not None:
            word("dtype", self.dtype, ArrayDtype)
        self.widths()

    def names(self) -> tuple[str, ...]:
        """Return the names of the fields; lengths are those of the first."""
        named: Any = (self.field,) if isinstance(self.field, str) else self.field
        return tuple(text("field", name, "name a field of fields=") for name in named)

    def widths(self) -> tuple[int, ...]:
        """Return the buckets, none by default.

        Raises
        ------
        Invalid
            If they do not ascend, or one exceeds the budget.
        """
        given = () if self.buckets is None else tuple(self.buckets)
        found = tuple(whole("buckets", width, 1, self.budget) for width in given)
        if list(found) != sorted(set(found)):
            raise Invalid(
                f"buckets={self.buckets!r} do not ascend; give widths such as (512, 1024, 4096)",
                {"option": "buckets"},
            )
        return found
