"""What can go wrong, one class per kind of thing the caller has to do about it.

The kinds are those of the native side, by the same names: each text says what happened, where
(``url``, ``key``, ``offset`` ...) and what to do next.
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
    """Anything Forebay reports.

    Attributes
    ----------
    kind : str
        The class's name, the same in Rust, in logs and in metrics.
    places : dict of str to str
        Where it happened: ``url``, ``key``, ``field``, ``offset``, ``path`` and the like.
    """

    kind: ClassVar[str] = "ForebayError"

    def __init__(self, message: str, places: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.places: dict[str, str] = dict(places or {})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A user's own subclass is of the kind it derives from.
        if cls.__module__ == __name__:
            cls.kind = cls.__name__


class NotFound(ForebayError):
    """The named thing does not exist: fix the name."""


class PermissionDenied(ForebayError):
    """You may not do this: fix credentials, modes or policy."""


class Unavailable(ForebayError):
    """Retries or the time limit were spent: try again later, or mend the endpoint."""


class Corrupt(ForebayError):
    """Bytes differ from what they must be: the origin's copy needs repair."""


class BadSample(ForebayError):
    """One sample cannot be used; the rest of its shard is good. See ``on_error``."""


class Full(ForebayError):
    """A budget of disk or memory is spent: raise it, free some, or ask for less."""


class Invalid(ForebayError, ValueError):
    """The request makes no sense: fix the argument that is named."""


class Closed(ForebayError):
    """The other side is gone, or this object was closed: open again."""
