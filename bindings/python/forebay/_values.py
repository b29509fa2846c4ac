"""Plain values as users write them: whole numbers, tuples of numbers, text, yes or no.

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
        raise Invalid(
            f"{option}={_shown(number)} is out of range; use {low} to {high}", {"option": option}
        )
    return number


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:
        return "<more digits than Python writes>"


def number(option: str, value: Any) -> float:
    """Return `value`, of Python or NumPy, if it is a finite number.

    Raises
    ------
    Invalid
        If it is anything else.
    """
    try:
        # Python makes numbers of text and of bools, which are slips here.
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Invalid(f"{option}={_shown(value)} is no finite number", {"option": option})
    return found


def scalar(option: str, value: Any) -> int | float:
    """Return `value`, of Python or NumPy, if it is a number that an element of an array can be.

    Unlike `number`, it keeps whole numbers exact, and knows NaN, infinities and bools.

    Raises
    ------
    Invalid
        If it is anything else.
    """
    try:
        found: int | float = operator.index(value)
    except TypeError:
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise Invalid(f"{option}={value!r} is no number", {"option": option}) from None
    if not -(2**63) <= found <= U64_MAX:
        raise Invalid(
            f"{option}={_shown(found)} is out of range: no array holds it", {"option": option}
        )
    return found


def numbers(option: str, values: Any, count: int) -> tuple[float, ...]:
    """Return `values` as a tuple, if they are `count` finite numbers.

    Raises
    ------
    Invalid
        If they are anything else.
    """
    try:
        found = tuple(number(option, value) for value in values)
        if len(found) == count:
            return found
    except (TypeError, Invalid):
        pass
    raise Invalid(
        f"{option}={_shown(values)} does not fit; give {count} finite numbers", {"option": option}
    )


def flag(option: str, value: Any) -> bool:
    """Return `value`, of Python or NumPy, if it is true or false.

    Raises
    ------
    Invalid
        If it is anything else: nearly every value of Python, "no" too, would pass for true.
    """
    try:
        known = value in (False, True)
    except ValueError:
        # An array is neither.
        known = False
    if not known:
        raise Invalid(f"{option}={value!r} is neither True nor False", {"option": option})
    return bool(value)


def text(option: str, value: Any, advice: str) -> str:
    """Return `value`, if it is text that can leave Python.

    Raises
    ------
    Invalid
        If it is anything else, or holds a lone surrogate.
    """
    try:
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeEncodeError:
        pass
    raise Invalid(f"{option}={value!r} is no such text; {advice}", {"option": option})


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
