"""Filters of a loader (``where=``) and the samples that they choose.

A filter is evaluated when the loader is made, on the columns of the manifest's member index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from forebay import _native
from forebay._values import text
from forebay.errors import Invalid


@dataclass(frozen=True)
class Part:
    """Shards that one manifest lists, and the filters on them."""

    urls: list[str]
    manifest: str | None
    # Filters that all are to pass: the loader's and the stream's.
    filters: list[str]


@dataclass(frozen=True)
class Filtered:
    """Samples that pass the filters of a job."""

    selection: _native.Selection
    # Filters of each data set, for the state.
    filters: list[list[str]]

    @cached_property
    def identity(self) -> dict[str, object]:
        """The filters, and a hash of the samples that pass them."""
        return {"filters": self.filters, "samples": self.selection.hash()}


def checked(where: str | None) -> str | None:
    """Return a filter's text.

    Raises
    ------
    Invalid
        For anything that is no text, or an empty one.
    """
    if where is None:
        return None
    if not text("where", where, "write a filter such as 'width >= 512'").strip():
        raise Invalid("where= is empty; write a filter, or leave it unset", {"option": "where"})
    return where


def filtered(parts: Sequence[Part], counts: list[int] | None, way: _native.Way) -> Filtered | None:
    """Return the samples that pass; None if nothing is filtered.

    Parameters
    ----------
    parts : sequence of Part
        The data sets.
    counts : list of int, optional
        Samples of each of their shards.
    way : tuple
        Way to a daemon, which reads manifests in a store.

    Raises
    ------
    Invalid
        For a filter that makes no sense, a manifest without a member index, and filters that no
        sample passes.
    """
    if not any(part.filters for part in parts):
        return None
    selections, first = [], 0
    for part in parts:
        if part.manifest is None or counts is None:
            raise Invalid(
                "where= needs a member index: give each data set a manifest= made by "
                "`forebay index URLS -o MANIFEST --columns json:NAME,…`",
                {"option": "where"},
            )
        own = counts[first : first + len(part.urls)]
        first += len(part.urls)
        selections.append(
            _native.Selection(part.manifest, part.urls, part.filters, way)
            if part.filters
            else _native.Selection.all(own)
        )
    selection = selections[0] if len(selections) == 1 else _native.Selection.join(selections)
    if not any(selection.counts()):
        texts = dict.fromkeys(where for part in parts for where in part.filters)
        raise Invalid(
            "no sample passes the filter; `is null` finds samples that lack a value",
            {"option": "where", "where": " and ".join(texts)},
        )
    return Filtered(selection, [part.filters for part in parts])
