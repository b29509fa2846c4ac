"""Batches that Lightning took and has not trained on.

Without a length Lightning takes one batch ahead, to know the last one, and saves the loader's state
meanwhile. Such a batch comes again after a resume.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from forebay.errors import Invalid

# Packages of Lightning, by their first name.
_PACKAGES = ("lightning.", "pytorch_lightning.")

# Modules of the classes that take batches ahead.
_FETCHERS = ("lightning.pytorch.loops.fetchers", "pytorch_lightning.loops.fetchers")

# Module below which a forked process has its parent's callers, which are not its own.
_FORK = "multiprocessing.process"

# Packages of loaders that ask a data set for its length.
_LOADERS = ("torch.utils.data.", "torchdata.")

# Callers searched for Lightning's classes, a few calls further up, torchdata's loader between them
# included.
_CALLERS = 24

# Batches it may hold back: it prefetches one unless told otherwise.
HELD_MAX = 64


def held() -> int:
    """Return the number of batches that Lightning holds back once it has the present one."""
    if not any(name in sys.modules for name in _FETCHERS):
        return 0
    for module, caller in _callers():
        if module in _FETCHERS:
            fetcher = caller()
            batches: list[Any] | None = getattr(fetcher, "batches", None)
            # With a length it hands every batch on at once.
            if batches is None or fetcher.length is not None:
                return 0
            return len(batches) + 1
    return 0


def refuse_workers_ahead() -> None:
    """Reject torchdata's workers below a training loop of Lightning, for want of a length.

    Such a worker counts a batch as delivered that Lightning holds back, and nothing corrects it.

    Raises
    ------
    Invalid
        With the alternatives.
    """
    with_workers = False
    for module, caller in _callers():
        if module.startswith(_LOADERS):
            loader = caller()
            has_state = hasattr(loader, "state_dict") and hasattr(loader, "num_workers")
            with_workers = with_workers or (has_state and loader.num_workers > 0)
        is_lightning = with_workers and _is_lightning(module)
        # Of Lightning's loops only the one that trains loads states of loaders.
        if is_lightning and hasattr(caller(), "_combined_loader_states_to_load"):
            raise Invalid(
                "Lightning takes one batch ahead where the length is unknown, and workers of "
                "StatefulDataLoader would save states behind it: a resumed run would skip a "
                "batch; give manifest= or epoch_samples=, num_workers=0, or a "
                "forebay.DataLoader itself",
                {"option": "manifest"},
            )


def _is_lightning(module: str) -> bool:
    return module.startswith(_PACKAGES)


def _callers() -> Iterator[tuple[str, Any]]:
    """Yield the callers of this package: each one's module, and a function of its `self`."""
    frame = sys._getframe(2)
    for _ in range(_CALLERS):
        before = frame.f_back
        if before is None:
            return
        frame = before
        module = frame.f_globals.get("__name__")
        if module == _FORK:
            return
        # Reading a frame's variables takes longer than its module.
        yield str(module), lambda frame=frame: frame.f_locals.get("self")
