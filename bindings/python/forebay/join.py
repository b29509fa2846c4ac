"""Shards of several parts with the same keys: ``DataLoader(Join([images, embeddings]))``.

Shard i of each part belongs together, and sample n of it is one sample with the fields of all
parts. The order is that of the first part.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from forebay import _paths
from forebay.errors import Invalid

__all__ = ["Join"]

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# Names that a field's source can contain: `;` separates alternatives there.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")

# Largest number of parts: each costs a read per sample.
_PARTS_MAX = 16


class Join:
    """Shards of several parts, whose samples of one key form one sample.

    All parts have equally many shards, and shard i of each has the same keys in the same order.
    Keys are compared as samples are read. A sample whose keys differ is `Corrupt` with both shards
    and the place of their first difference.

    Parameters
    ----------
    parts : list of URLs, or dict of str to URLs
        Two parts or more; each is a str, path or list of them as `urls` of `forebay.DataLoader`. A
        dict names parts: the fields of part "clip" are ``"clip.npy"`` and so on; those of part ""
        keep their names. The first part gives the order; `manifest`, `where` and ``"__url__"`` are
        about its shards.
    on : {"key"}
        Property by which samples are joined.

    Raises
    ------
    Invalid
        For fewer than two parts, an invalid name, or another `on`. When a loader is made: for parts
        with different numbers of shards. While iterating: if two parts have a field that is
        requested.
    """

    def __init__(self, parts: Sequence[Urls] | Mapping[str, Urls], *, on: str = "key") -> None:
        if on != "key":
            raise Invalid(f"on={on!r}; samples are joined by their keys: on='key'", _option("on"))
        if isinstance(parts, Mapping):
            self.names = [_name(name) for name in parts]
            self.parts = list(parts.values())
        elif isinstance(parts, Sequence) and not isinstance(parts, (str, bytes)):
            self.names, self.parts = [""] * len(parts), list(parts)
        else:
            raise Invalid(
                f"forebay.Join takes a list of parts, or a dict of them, not {parts!r}",
                _option("parts"),
            )
        if not 2 <= len(self.parts) <= _PARTS_MAX:
            raise Invalid(
                f"forebay.Join takes 2 to {_PARTS_MAX} parts, not {len(self.parts)}; each part is "
                "a URL or a list of URLs",
                _option("parts"),
            )
        # Relative paths mean the folder in which the join was made.
        self._folder = _paths.here()

    def shards(self, expand: Callable[[Urls], list[str]]) -> list[list[str]]:
        """Return the shards of each part, as `expand` lists them.

        Raises
        ------
        Invalid
            For parts with different numbers of shards.
        """
        found = [expand(named(urls, self._folder)) for urls in self.parts]
        counts = [len(urls) for urls in found]
        if len(set(counts)) > 1:
            raise Invalid(
                f"parts of a join have different numbers of shards: {counts}; shard i of each "
                "belongs together",
                _option("urls"),
            )
        return found

    def __repr__(self) -> str:
        parts: Any = self.parts
        if any(self.names):
            parts = dict(zip(self.names, self.parts, strict=True))
        return f"forebay.Join({parts!r})"


class Group(TypedDict):
    """Consecutive shards of a loader that others complete, for the native side."""

    first: int
    shards: int
    parts: list[str]


@dataclass(frozen=True)
class Joined:
    """Shards that complete the samples of a loader's own."""

    urls: list[str]
    groups: list[Group]

    @property
    def identity(self) -> dict[str, Any]:
        """Names of the parts, and a hash of their shards."""
        shards = hashlib.sha256(json.dumps(self.urls).encode()).hexdigest()
        return {"parts": [group["parts"] for group in self.groups], "shards": shards}

    def source(self, first: int, urls: list[str]) -> list[str] | Join:
        """Return `urls`, which begin with shard `first`, and what they are joined to."""
        others = 0
        for group in self.groups:
            shards, parts = group["shards"], group["parts"]
            if group["first"] == first:
                lists = [
                    self.urls[others + part * shards : others + (part + 1) * shards]
                    for part in range(len(parts) - 1)
                ]
                join = Join([urls, *lists])
                join.names = parts
                return join
            others += shards * (len(parts) - 1)
        return urls


def expanded(
    sources: Sequence[Urls | Join], expand: Callable[[Urls], list[str]]
) -> tuple[list[list[str]], Joined | None]:
    """Return the shards of each source that the order is made of, and those that complete them.

    Raises
    ------
    Invalid
        As `Join.shards`.
    """
    lists: list[list[str]] = []
    others: list[str] = []
    groups: list[Group] = []
    first = 0
    for source in sources:
        if isinstance(source, Join):
            own, *more = source.shards(expand)
            groups.append({"first": first, "shards": len(own), "parts": source.names})
            others += [url for urls in more for url in urls]
        else:
            own = expand(source)
        lists.append(own)
        first += len(own)
    return lists, Joined(others, groups) if groups else None


def named(urls: Any, folder: str | None) -> Any:
    """Return URLs as they read in the current folder; `folder` is the one they were given in."""
    if folder == _paths.here():
        return urls
    if isinstance(urls, (str, os.PathLike)):
        return _paths.text(os.fspath(urls), folder)
    return [_paths.url(os.fspath(url), folder) for url in urls]


def _name(name: Any) -> str:
    if name == "" or (isinstance(name, str) and _NAME.fullmatch(name)):
        return str(name)
    raise Invalid(
        f"{name!r} names no part of a join; use lower-case letters, digits, '_', '-' and '.', or "
        '"" for the part whose fields keep their names',
        _option("parts"),
    )


def _option(name: str) -> dict[str, Any]:
    return {"option": name}
