"""Batches that Lightning took and has not trained on.

Without a length Lightning takes one batch ahead, to know the last one, and saves the loader's state
meanwhile. Such a batch comes again after a resume.
"""

from __future__ import annotations

import sys
from types import FrameType

# Packages of Lightning, by their first name.
_PACKAGES = ("lightning.", "pytorch_lightning.")

# Callers searched for Lightning's loop: it saves the state a few calls further up, torchdata's
# loader between them included.
_CALLERS = 24


def ahead() -> int:
    """Return the number of batches that a Lightning loop holds back, if one saves a state now."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame is None:
            return 0
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and module.startswith(_PACKAGES):
            fetcher = getattr(frame.f_locals.get("self"), "_data_fetcher", None)
            if fetcher is not None:
                # Only the fetcher that takes batches ahead keeps some.
                return len(getattr(fetcher, "batches", ()))
        frame = frame.f_back
    return 0
