"""Turns of several threads at one iterator: one takes an item, the others wait.

A forked child has locks of its own, since a thread of the parent may hold those.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

from forebay._batch import Assembler
from forebay._workers import serves
from forebay.errors import Invalid

_Item = TypeVar("_Item")


class Turns:
    """Lock of an object that several threads may use.

    A thread may take it again: user code within a turn may save a state or end the iteration.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _TURNS.add(self)

    def of(self, maker: Assembler | None) -> AbstractContextManager[bool]:
        """Return the lock for a caller that changes a loader whose batches `maker` makes.

        Raises
        ------
        Invalid
            In a thread that runs the loader's user code: its turn ends with that code.
        """
        if maker is not None and serves(maker.code):
            raise Invalid(
                "a function of the loader changes or begins the loader's own iteration; do that in "
                "the loop alone"
            )
        return self.lock


_TURNS: weakref.WeakSet[Turns] = weakref.WeakSet()


def _renew() -> None:
    for turns in list(_TURNS):
        turns.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)


class InTurns(Turns, Iterator[_Item]):
    """Iterator over a generator's items; each goes to one thread."""

    def __init__(self, generator: Generator[_Item, None, None]) -> None:
        super().__init__()
        self._generator = generator

    def __next__(self) -> _Item:
        """Return the next item."""
        with self.lock:
            return next(self._generator)

    def close(self) -> None:
        """End the iteration."""
        with self.lock:
            self._generator.close()
