"""Shards that a text names: the one way from a pattern to URLs, with its warning."""

from __future__ import annotations

import os
import sys
import warnings

from forebay import _launch, _native

_HERE = os.path.join(os.path.dirname(__file__), "")


def expand(spec: str, allow_pipe: bool, daemon: str | None, timeout: float) -> list[str]:
    """Return the shards of `spec`; warn of keys that match and that no URL can name."""
    urls, left_out = _native.expand(spec, allow_pipe, daemon, _launch.daemon(), timeout)
    if left_out is not None:
        warnings.warn(left_out, stacklevel=_callers())
    return urls


def _callers() -> int:
    """Return the distance to the first caller outside of this package."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    return level
