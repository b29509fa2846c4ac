"""Where the user's functions run beside the loop: in threads, or in processes of their own.

One rule: whoever waits for a worker learns of its end. A worker that dies is an error with its exit
code, one whose parent dies ends, and Ctrl-C is the parent's business alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection
from typing import Any, Protocol

from forebay import _sharing
from forebay._usercode import Decoded, Made, UserCode, ends
from forebay.errors import Closed, Invalid

# How long a worker that was told to end may take before it is killed, in seconds: by itself it ends
# in milliseconds.
_GRACE = 1.0


# What is done in this process with a batch that a worker made.
Finish = Callable[[Made], Made]


class Task(Protocol):
    """A batch under way."""

    def result(self) -> Made:
        """The batch, once it is made; or what making it raised."""

    def cancel(self) -> Any:
        """Nobody waits for it any more."""


class Workers(Protocol):
    """Makes batches, several at once."""

    def submit(self, decode: Callable[[], Decoded]) -> Task:
        """Begin with a batch. There are never more under way than there are workers."""

    def end(self) -> None:
        """End all workers, whatever they are at."""


class Threads:
    """Workers that are threads of this process."""

    def __init__(self, count: int, code: UserCode, finish: Finish) -> None:
        self._pool = ThreadPoolExecutor(count, "forebay-worker")
        self._code, self._finish = code, finish

    def submit(self, decode: Callable[[], Decoded]) -> Future[Made]:
        """Begin with a batch."""
        stream = self._code.framework.stream()

        def make() -> Made:
            with stream():
                return self._finish(self._code(decode()))

        return self._pool.submit(make)

    def end(self) -> None:
        """Let threads end after the batch they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Processes:
    """Workers that are processes, each started anew when it is first needed.

    Parameters
    ----------
    count : int
        How many, at most.
    code : UserCode
        What they run; it goes to them by pickle.
    finish : callable
        What is done here with each batch that comes back.
    """

    def __init__(self, count: int, code: UserCode, finish: Finish) -> None:
        if multiprocessing.current_process().daemon:
            raise Invalid(
                "worker_type='process' cannot start processes here: this is itself a worker of "
                "torch's or of a pool, which may have none; use worker_type='thread'",
                {"option": "worker_type"},
            )
        self._context = multiprocessing.get_context("spawn")
        self._count, self._code, self._finish = count, code, finish
        self._workers: list[_Worker] = []

    def submit(self, decode: Callable[[], Decoded]) -> Task:
        """Begin with a batch: it is decoded here, and copied to a worker."""
        try:
            decoded = decode()
            worker = self._free()
            worker.task = _AtWorker(self, worker, ends(decoded), self._finish)
            try:
                _sharing.send(worker.connection, decoded)
            except ConnectionError:
                # It died: whoever waits for the batch hears how.
                pass
            except Exception:
                # Nobody knows how far it came.
                self.drop(worker)
                raise
        except Exception as error:
            # It is this batch's turn only after those before it.
            return _Failed(error)
        return worker.task

    def end(self) -> None:
        """End all of them at once."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()

    def drop(self, worker: _Worker) -> None:
        """End a worker; another comes in its place."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.process.terminate()
        worker.end()

    def _free(self) -> _Worker:
        """A worker that has nothing to do, started or waited for."""
        while True:
            for worker in self._workers:
                if worker.task is None:
                    return worker
            if len(self._workers) < self._count:
                self._workers.append(_Worker(self._context, self._code))
                return self._workers[-1]
            # At least one has a batch that nobody waits for any more: no more are waited for than
            # there are workers. Whose answer comes first is not known, so each is kept.
            lines: dict[Any, _Worker] = {}
            for worker in self._workers:
                lines |= dict.fromkeys(worker.lines(), worker)
            for worker in {lines[line] for line in connection.wait(list(lines))}:
                if worker.task is not None:
                    worker.task.fetch()


class _Worker:
    """A process, and the line to it."""

    def __init__(self, context: Any, code: UserCode) -> None:
        self.connection, theirs = context.Pipe()
        self.task: _AtWorker | None = None
        # A daemon: it does not outlive this process, and need not be waited for.
        self.process = context.Process(
            target=_serve, args=(theirs, code), name="forebay-worker", daemon=True
        )
        try:
            with _interrupts_held_back():
                self.process.start()
        finally:
            theirs.close()

    def lines(self) -> list[Any]:
        """What says that it has answered, or will not."""
        # The line alone would not do: what the worker started may hold the other end of it.
        return [self.connection, self.process.sentinel]

    def end(self) -> None:
        """See to it that the process is gone."""
        self.connection.close()
        self.process.join(_GRACE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


class _AtWorker:
    """A batch that a worker process is at."""

    def __init__(
        self, pool: Processes, worker: _Worker, places: dict[str, str], finish: Finish
    ) -> None:
        self._pool, self._worker, self._places, self._finish = pool, worker, places, finish
        self._answer: tuple[bool, Any] | None = None
        self._failure: Exception | None = None

    def fetch(self) -> None:
        """Wait for the worker's answer and keep it: the worker is free for another batch."""
        worker = self._worker
        try:
            if worker.connection not in connection.wait(worker.lines()):
                raise EOFError
            self._answer = _sharing.receive(worker.connection)
        except (EOFError, OSError) as error:
            # A process that is gone has an exit code as soon as somebody asks for it.
            worker.process.join(_GRACE)
            self._failure = error if worker.process.exitcode is None else self._died(error)
            self._pool.drop(worker)
        except Exception as error:
            # It came, and cannot be made again here.
            self._failure = error
            self._pool.drop(worker)
        worker.task = None

    def result(self) -> Made:
        if self._answer is None and self._failure is None:
            self.fetch()
        if self._failure is not None:
            raise self._failure
        assert self._answer is not None
        is_made, found = self._answer
        if is_made:
            return self._finish(found)
        raised, trace = found
        raise raised from WorkerTraceback(trace)

    def cancel(self) -> None:
        """Nothing to do: the worker's answer is taken off the line before its next batch."""

    def _died(self, how_known: Exception) -> Closed:
        process = self._worker.process
        code = process.exitcode
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by signal {-code} ({_signal_name(-code)})"
        at = ", ".join(f"{name}={value}" for name, value in self._places.items())
        died = Closed(
            f"a worker process ended {how} while it ran code of yours ({at}); SIGKILL is mostly "
            "memory that ran out, and exit code 1 at the first batch a script that lacks `if "
            '__name__ == "__main__":`: its standard error tells more',
            self._places | {"pid": str(process.pid), "exit_code": str(code)},
        )
        died.__cause__ = how_known
        return died


class _Failed:
    """A batch that never came to a worker."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> Made:
        raise self._error

    def cancel(self) -> None:
        pass


class WorkerTraceback(Exception):
    """Not an error of its own: where in a worker process the one that it is the cause of arose."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """What is started here does not hear Ctrl-C; this process does, a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(line: connection.Connection, code: UserCode) -> None:
    """A worker's life: batch after batch, until its parent hangs up."""
    # The user's functions may start programs that are to be interruptible.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            decoded = _sharing.receive(line)
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, Any] = True, code(decoded)
        except Exception as error:
            answer = False, _told(error)
        try:
            try:
                _sharing.send(line, answer)
            except OSError:
                raise
            except Exception as error:
                # The batch is something that cannot go to another process.
                _sharing.send(line, (False, _told(error)))
        except OSError:
            return


def _told(error: Exception) -> tuple[Exception, str]:
    """An exception as it can be sent, with its traceback as text."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # It is of a class that pickle cannot make again.
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__dict__.update(
            {name: getattr(error, name) for name in ("places", "__notes__") if hasattr(error, name)}
        )
        return told, trace
    return error, trace


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Whatever the user's function is at: nobody is there who waits for it.
        parent.join()
        os._exit(1)
