"""Plain values as users write them: whole numbers, tuples of numbers, one of a few words.

One rule: what is refused is named, with what would be accepted.
"""

from __future__ import annotations

import math
import operator
from typing import Any, TypeVar, get_args

from forebay.errors import Invalid

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

_Word = TypeVar("_Word")


def whole(option: str, value: Any, low: int, high: int) -> int:
    """Return `value`, of Python or NumPy, if it is a whole number from `low` to `high`.

    Raises
    ------
    Invalid
        If it is anything else.
    """
    try:
        # A bool is a whole number to Python, and a slip to whoever wrote it.
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise Invalid(f"{option}={value!r} is no whole number", {"option": option}) from None
    if not low <= number <= high:
        raise Invalid(f"{option}={number} is out of range; use {low} to {high}", {"option": option})
    return number


def numbers(option: str, values: Any, count: int) -> tuple[float, ...]:
    """Return `values` as a tuple, if they are `count` finite numbers.

    Raises
    ------
    Invalid
        If they are anything else.
    """
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        found = ()
    if len(found) != count or not all(map(math.isfinite, found)):
        raise Invalid(
            f"{option}={values!r} does not fit; give {count} finite numbers", {"option": option}
        )
    return found


def word(option: str, value: _Word, choices: Any) -> _Word:
    """Return `value`, if it is among `choices`, a ``Literal``.

    Raises
    ------
    Invalid
        If it is anything else.
    """
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        wanted = ", ".join(map(repr, known))
        raise Invalid(f"{option}={value!r} is not known; use one of {wanted}", {"option": option})
    return value
