"""Treatment of errors: the functions that ``handler=`` takes.

A handler raises, or returns True to skip the error and continue, or False to end the stream
there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NoReturn

__all__ = [
    "Handler",
    "ignore_and_continue",
    "ignore_and_stop",
    "reraise_exception",
    "warn_and_continue",
    "warn_and_stop",
]

Handler = Callable[[Exception], bool]

# From the warning to the stage's caller: a line within this package is of no use.
_CALLERS = 2


def reraise_exception(error: Exception) -> NoReturn:
    """Raise the error."""
    raise error


def ignore_and_continue(error: Exception) -> bool:
    """Skip the error and continue."""
    return True


def warn_and_continue(error: Exception) -> bool:
    """Warn, skip the error and continue."""
    warnings.warn(repr(error), stacklevel=_CALLERS)
    return True


def ignore_and_stop(error: Exception) -> bool:
    """End the stream."""
    return False


def warn_and_stop(error: Exception) -> bool:
    """Warn, and end the stream."""
    warnings.warn(repr(error), stacklevel=_CALLERS)
    return False
