"""One iteration of a loader: an epoch, from the loader's position to its end.

A batch, with its errors, counts as delivered when ``next`` returns it. Any interruption
before (Ctrl-C, a timeout, a bad sample) leaves the position unchanged, and the next ``next``
continues from it.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from forebay import _native
from forebay._foreign import refuse_collation
from forebay._options import Verdict
from forebay._stop import inside
from forebay._usercode import Made
from forebay._workers import Task, serves
from forebay.errors import ForebayError, Full, Invalid, NotFound

if TYPE_CHECKING:
    from forebay.loader import DataLoader

_log = logging.getLogger("forebay")

# Seconds after which batches that came meanwhile are started, while the first one is made.
_REFILL = 0.05


class _Over(Exception):
    """Not an error: the epoch ends here, by itself or because `on_error` stops it."""

    def __init__(self, stopped: bool, samples: int | None = None) -> None:
        super().__init__()
        self.stopped = stopped
        # Samples of the epoch over all ranks, as far as this rank knows.
        self.samples = samples


class Empty(NotFound):
    """A data set without samples."""

    kind = NotFound.kind

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(
            "the data set has no samples; shards hold members such as 0001.jpg and 0001.cls, "
            "which `tar -t` lists",
            {"url": urls[0], "shards": str(len(urls))},
        )


@dataclass(frozen=True)
class Pending:
    """A batch in flight, or its replacement; its errors are not judged yet."""

    take: Callable[[], Made]
    errors: list[ForebayError] = field(default_factory=list)
    samples: int = 0
    task: Task | None = None

    def is_made(self, seconds: float | None) -> bool:
        """Wait for a worker, for so long at most; return True once `take` would not wait."""
        return self.task is None or self.task.wait(seconds)


def _cancel(pending: Iterable[Pending], process: int) -> None:
    """Cancel the tasks of batches that were begun in `process`."""
    # After a fork a worker that does not exist here may hold a task's lock for ever.
    if process == _native.forks():
        for one in pending:
            if one.task is not None:
                one.task.cancel()


class Epoch(Iterator[Any]):
    """Iterator over the batches of one epoch; see `forebay.DataLoader`.

    Threads that share it take turns.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._run: _native.Loader | None = None
        self._pending: deque[Pending] = deque()
        self._process = _native.forks()
        # Workers make no batches of an iteration that nobody has any more.
        weakref.finalize(self, _cancel, self._pending, self._process).atexit = False
        self._errors = 0
        # Errors skipped in the batch at the position: `on_error` is asked once about each, however
        # often that batch is started again.
        self._skips: list[tuple[type, str]] = []
        self._full = False
        self._over = False
        # Thread that takes a batch now.
        self._taker: int | None = None

    def __next__(self) -> Any:
        """Return the next batch.

        Raises
        ------
        StopIteration
            At the epoch's end.
        ForebayError
            Errors raised by `on_error`, and those that prevent batches.
        """
        refuse_collation("forebay.DataLoader")
        me = threading.get_ident()
        if self._taker == me or serves(self._loader._assembler().code):
            raise Invalid(
                "a function of the loader asks for the loader's next batch while its own is made; "
                "take batches in the loop alone"
            )
        with self._loader._turns.lock:
            self._taker = me
            try:
                return self._taken()
            finally:
                self._taker = None

    def _taken(self) -> Any:
        made = self._advanced()
        while made is None or made.dropped:
            made = self._advanced()
        return made.batch

    def _advanced(self) -> Made | None:
        """Return the next batch; None if the iteration continues with another epoch."""
        if self._over:
            raise StopIteration
        self._loader._is_current(self)
        native = self._begun()
        self._loader._acknowledge()
        try:
            self._fill(native)
            first = self._pending[0]
            self._judge(first.errors)
            while not first.is_made(None if self._is_filled() else _REFILL):
                self._fill(native)
            made = first.take()
        except _Over as over:
            # A natural end has reported its errors; one made by `on_error` skips none.
            if not over.stopped:
                self._count(first.errors)
                self._refuse_empty(over.samples)
            self._finish(over.stopped)
            return None
        except BaseException as error:
            # The position is still before the failed batch: start there again if asked.
            self._abandon()
            if not isinstance(error, Exception):
                # Ctrl-C, or an exit: nobody may come back for the workers' results.
                self._loader._end_workers()
            if isinstance(error, StopIteration):
                # User code must not end the epoch by mistake.
                raise inside(error) from error
            raise
        self._pending.popleft()
        self._count(first.errors)
        own = self._loader._own_native()
        if made.slowest and own is not None:
            own.note_slow(json.dumps(made.slowest))
        self._loader._handed_out(first.samples - made.left_out, made.left_out, made.dropped)
        return made

    def _count(self, errors: list[ForebayError]) -> None:
        self._errors += len(errors)
        self._skips.clear()
        self._loader._skipped(errors)

    def _refuse_empty(self, samples: int | None) -> None:
        place = self._loader._place
        # Under split="dynamic" a rank knows its own samples only; the others may be faster.
        others = self._loader._leases is not None and place is not None and place.world_size > 1
        if samples == 0 and not others:
            self._abandon()
            raise Empty(self._loader._options.urls)

    def _begun(self) -> _native.Loader:
        """Start the native loader at the loader's position; again after a fork or an error."""
        native = self._loader._opened()
        if self._run is not native:
            self._abandon()
            self._loader._start_run(native)
            self._run = native
        return native

    def leave(self) -> None:
        """Let go of the batches in flight, unless one is being taken: the loader goes elsewhere."""
        if self._taker is None:
            self._abandon()

    def _abandon(self) -> None:
        _cancel(self._pending, self._process)
        self._process = _native.forks()
        self._pending.clear()
        self._run, self._full = None, False

    def _finish(self, stopped: bool) -> None:
        self._abandon()
        self._over = self._loader._end(self, stopped)
        if self._over:
            # Not chained: the end of an epoch is not caused by an error.
            raise StopIteration from None
        # The state was saved after an epoch's last batch: continue with the next epoch.
        self._errors = 0

    def _fill(self, native: _native.Loader) -> None:
        """Keep a batch in flight for each worker, and as many more as are kept ready; wait for the
        first only.

        With fewer, workers would idle behind a batch with slow samples.
        """
        while not self._is_filled():
            if self._pending and not native.is_ready():
                return
            self._pending.append(self._pull(native))

    def _is_filled(self) -> bool:
        """Return True if no further batch is to be started now."""
        options = self._loader._options
        limit = options.workers + options.prefetch if options.workers else 1
        return self._full or len(self._pending) >= limit

    def _pull(self, native: _native.Loader) -> Pending:
        try:
            found = native.next()
        except Exception as error:
            # This batch's turn comes after those before it.
            self._full = True
            return Pending(partial(_raise, error))
        if not isinstance(found, _native.Batch):
            samples, errors = found
            self._full = True
            self._loader._learn(samples)
            return Pending(partial(_raise, _Over(stopped=False, samples=samples)), errors)
        samples = found.samples()
        assembler, workers = self._loader._assembler(), self._loader._pool()
        if workers is None:
            return Pending(partial(assembler, found), found.errors(), samples)
        task = workers.submit(partial(assembler.decoded, found))
        return Pending(task.result, found.errors(), samples, task)

    def _judge(self, errors: list[ForebayError]) -> None:
        """Treat each error as `on_error` says."""
        most = self._loader._options.max_errors
        for place, error in enumerate(errors):
            known, number = (type(error), str(error)), self._errors + place + 1
            if self._skips[place : place + 1] == [known]:
                continue
            del self._skips[place:]
            verdict = self._verdict(error)
            if verdict == "raise":
                raise error
            if verdict == "stop":
                self._loader._may_stop()
                _log.warning("an error stops the epoch: %s", error)
                raise _Over(stopped=True)
            _log.warning("skipped: %s", error)
            if most is not None and number > most:
                raise type(error)(
                    f"{error}; it is error {number} of this epoch, above max_errors={most}: "
                    "look at the data, or raise max_errors",
                    error.places,
                )
            self._skips.append(known)

    def _verdict(self, error: ForebayError) -> Verdict:
        if isinstance(error, Full):
            # Lack of memory is not the samples' fault: they are never skipped.
            return "raise"
        decide = self._loader._options.on_error
        if not callable(decide):
            return decide
        verdict = decide(error)
        if verdict not in get_args(Verdict):
            raise Invalid(
                f"on_error returned {verdict!r}; return 'raise', 'skip' or 'stop'"
            ) from error
        return verdict


def _raise(error: Exception) -> NoReturn:
    raise error
