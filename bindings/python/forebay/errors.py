"""Errors, one class per action of the caller.

The kinds are those of the native side, by the same names. Each text says what happened, where
(``url``, ``key``, ``offset`` ...) and what to do next. A class has the built-in one of its meaning
as a second base, so that code written for files, and handlers written for webdataset, catch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "BadSample",
    "Closed",
    "Corrupt",
    "ForebayError",
    "Full",
    "Invalid",
    "NotFound",
    "PermissionDenied",
    "Unavailable",
]


class ForebayError(Exception):
    """Base class of every error of Forebay.

    Attributes
    ----------
    kind : str
        The class's name, the same in Rust, in logs and in metrics.
    places : dict of str to str
        Places of the error: ``url``, ``key``, ``field``, ``offset``, ``path`` and the like.
    """

    kind: ClassVar[str] = "ForebayError"

    def __init__(self, message: str, places: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.places: dict[str, str] = dict(places or {})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A user's own subclass has the kind of its base.
        if cls.__module__ == __name__:
            cls.kind = cls.__name__


class NotFound(ForebayError, FileNotFoundError):
    """The name does not exist: fix the name."""


class PermissionDenied(ForebayError, PermissionError):
    """Access is denied: fix credentials, modes or access rules."""


class Unavailable(ForebayError, OSError):
    """Retries or the timeout ran out: try again later, or mend the endpoint."""


class Corrupt(ForebayError):
    """Bytes are wrong: the origin's copy needs repair."""


class BadSample(ForebayError, ValueError):
    """One sample cannot be used; the rest of its shard is good. See ``on_error``."""


class Full(ForebayError):
    """A budget of disk or memory is used up: raise it, free some, or ask for less."""


class Invalid(ForebayError, ValueError):
    """The request is invalid: fix the named argument."""


class Closed(ForebayError):
    """The other side is gone, or this object was closed: open again."""
