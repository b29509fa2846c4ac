"""One iteration of a loader: an epoch, from where the loader stands to its end.

One rule: a batch counts as handed out when ``next`` returns it, not before. Whatever interrupts
the way there (Ctrl-C, a time limit, a bad sample) leaves the position where it was, and the next
``next`` goes on from it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from forebay import _native
from forebay._options import ON_ERROR
from forebay.errors import ForebayError, Invalid

if TYPE_CHECKING:
    from forebay.loader import DataLoader

_log = logging.getLogger("forebay")


class _Over(Exception):
    """Not an error: the epoch ends here, by itself or because `on_error` stops it."""

    def __init__(self, stopped: bool) -> None:
        super().__init__()
        self.stopped = stopped


class Epoch(Iterator[Any]):
    """Hands out the batches of one epoch; see `forebay.DataLoader`."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._run: _native.Loader | None = None
        self._pending: deque[Future[Any]] = deque()
        self._errors = 0
        self._full = False
        self._over = False

    def __next__(self) -> Any:
        """The next batch.

        Raises
        ------
        StopIteration
            At the epoch's end.
        ForebayError
            What `on_error` raises, and what keeps batches from coming.
        """
        if self._over:
            raise StopIteration
        self._loader._is_current(self)
        native = self._begun()
        try:
            self._fill(native)
            batch = self._pending[0].result()
        except _Over as over:
            return self._finish(over.stopped)
        except BaseException:
            # The position is still before the batch that failed: start there again if asked.
            self._abandon()
            raise
        self._pending.popleft()
        self._loader._handed_out()
        return batch

    def _begun(self) -> _native.Loader:
        """The native loader, started where the loader stands; anew after a fork or an error."""
        native = self._loader._opened()
        if self._run is not native:
            self._abandon()
            native.start(*self._loader._position())
            self._run = native
        return native

    def _abandon(self) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._run, self._full = None, False

    def _finish(self, stopped: bool) -> Any:
        self._abandon()
        self._over = self._loader._end(self, stopped)
        if self._over:
            # Not chained: the end of an epoch is no consequence of an error.
            raise StopIteration from None
        # The state was saved after an epoch's last batch: go on with the next.
        self._errors = 0
        return next(self)

    def _fill(self, native: _native.Loader) -> None:
        """Keep as many batches under way as there are workers; wait for the first alone."""
        pool = self._loader._pool()
        limit = max(1, self._loader._options.workers)
        while not self._full and len(self._pending) < limit:
            if self._pending and not native.is_ready():
                return
            self._pending.append(self._pull(native, pool))

    def _pull(self, native: _native.Loader, pool: Executor | None) -> Future[Any]:
        try:
            batch = self._receive(native)
        except Exception as error:
            # It is this batch's turn only after those before it.
            self._full = True
            return _settled(_raiser(error))
        if pool is None:
            return _settled(lambda: self._loader._assembler()(batch))
        return pool.submit(self._loader._assembler(), batch)

    def _receive(self, native: _native.Loader) -> _native.Batch:
        found = native.next()
        if isinstance(found, _native.Batch):
            self._judge(found.errors())
            return found
        batches, _, errors = found
        self._judge(errors)
        self._loader._learn(batches)
        raise _Over(stopped=False)

    def _judge(self, errors: list[ForebayError]) -> None:
        """Do with each error what `on_error` says."""
        options = self._loader._options
        for error in errors:
            verdict = options.on_error
            if callable(verdict):
                verdict = verdict(error)
                if verdict not in ON_ERROR:
                    raise Invalid(
                        f"on_error returned {verdict!r}; return 'raise', 'skip' or 'stop'"
                    ) from error
            if verdict == "raise":
                raise error
            if verdict == "stop":
                self._loader._may_stop()
                _log.warning("the epoch stops at an error: %s", error)
                raise _Over(stopped=True)
            self._errors += 1
            _log.warning("skipped: %s", error)
            if options.max_errors is not None and self._errors > options.max_errors:
                raise type(error)(
                    f"{error}; it is error {self._errors} of this epoch, above max_errors="
                    f"{options.max_errors}: look at the data, or raise max_errors",
                    error.places,
                )


def _raiser(error: Exception) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


def _settled(make: Callable[[], Any]) -> Future[Any]:
    """What `make` returns or raises, as a future that is done. Ctrl-C passes through."""
    future: Future[Any] = Future()
    try:
        future.set_result(make())
    except Exception as error:
        future.set_exception(error)
    return future
