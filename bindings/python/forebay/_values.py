"""Plain values as users write them: whole numbers, tuples of numbers, text, true or false.

A rejected value is named, with the accepted ones.
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
        For any other value.
    """
    try:
        # A bool is a whole number to Python, and a mistake here.
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise Invalid(f"{option}={value!r} is not a whole number", {"option": option}) from None
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
        For any other value.
    """
    try:
        # Python converts text and bools to numbers; here they are mistakes.
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Invalid(f"{option}={_shown(value)} is not a finite number", {"option": option})
    return found


def scalar(option: str, value: Any) -> int | float:
    """Return `value`, of Python or NumPy, if it is a number that an array element can hold.

    Unlike `number`, it keeps whole numbers exact, and accepts NaN, infinities and bools.

    Raises
    ------
    Invalid
        For any other value.
    """
    try:
        found: int | float = operator.index(value)
    except TypeError:
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise Invalid(f"{option}={value!r} is not a number", {"option": option}) from None
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
        For any other value.
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
        For any other value: nearly every value of Python, "no" too, would count as true.
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
    """Return `value`, if it is text that can be encoded.

    Raises
    ------
    Invalid
        For any other value, or a lone surrogate.
    """
    try:
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeEncodeError:
        pass
    raise Invalid(f"{option}={value!r} is not valid text; {advice}", {"option": option})


def word(option: str, value: _Word, choices: Any) -> _Word:
    """Return `value`, if it is among `choices`, a ``Literal``.

    Raises
    ------
    Invalid
        For any other value.
    """
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        wanted = ", ".join(map(repr, known))
        raise Invalid(f"{option}={value!r} is unknown; use one of {wanted}", {"option": option})
    return value
