"""Workers that run the user's functions: threads, or processes.

A waiter learns of a worker's end. A worker that dies is an error with its exit code, a worker
whose parent dies ends, and only the parent handles Ctrl-C.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection
from typing import Any, Protocol

from forebay import _sharing
from forebay._sendable import Parcel
from forebay._usercode import Decoded, Made, UserCode, ends
from forebay.errors import Closed, ForebayError, Invalid

# Seconds before a worker that was asked to end is killed; normally it ends in milliseconds.
_GRACE = 1.0

# Seconds in which a worker that closed its connection has an exit code: a process that ends runs
# its exit handlers, and may write a core dump.
_EXIT = 10.0

# Name of a worker process.
_NAME = "forebay-worker"

# Exit code of a process that would become a worker and, before it is one, runs a script that
# starts workers. No shell and no signal uses it.
_UNGUARDED = 111


# Last step in this process for a batch that a worker made.
Finish = Callable[[Made], Made]


class Task(Protocol):
    """A batch in flight."""

    def result(self) -> Made:
        """Return the batch once it is made, or raise its exception."""

    def wait(self, seconds: float | None) -> bool:
        """Wait for so long at most, or without a limit; return True once it is made or failed."""

    def cancel(self) -> Any:
        """Abandon the batch."""


class Workers(Protocol):
    """Maker of several batches at once."""

    def submit(self, decode: Callable[[], Decoded]) -> Task:
        """Start a batch, as soon as a worker is free for it."""

    def end(self) -> None:
        """End all workers at once."""


# User code that a thread of ours runs.
_SERVING = threading.local()


def serves(code: UserCode) -> bool:
    """Return true in a thread that runs this user code for a loader."""
    return getattr(_SERVING, "code", None) is code


class Threads:
    """Workers that are threads of this process."""

    def __init__(self, count: int, code: UserCode, finish: Finish) -> None:
        self._pool = ThreadPoolExecutor(count, "forebay-worker")
        self._code, self._finish = code, finish

    def submit(self, decode: Callable[[], Decoded]) -> Task:
        """Start a batch."""
        stream = self._code.framework.stream()

        def make() -> Made:
            _SERVING.code = self._code
            with stream():
                return self._finish(self._code(decode()))

        return _OfThread(self._pool.submit(make))

    def end(self) -> None:
        """Let threads end after their present batch."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _OfThread:
    """A batch of a worker thread."""

    def __init__(self, future: Future[Made]) -> None:
        self._future = future
        # Set by a cancelled batch at once: `futures.wait` waits until a worker has noted that, and
        # ended workers note nothing. The callback knows the event alone: with this object it would
        # keep the batch until the garbage collector runs.
        over = self._over = threading.Event()
        future.add_done_callback(lambda _: over.set())

    def result(self) -> Made:
        try:
            return self._future.result()
        except futures.CancelledError:
            if not self._future.cancelled():
                # The user's own.
                raise
            raise closed() from None

    def wait(self, seconds: float | None) -> bool:
        return self._over.wait(seconds)

    def cancel(self) -> None:
        self._future.cancel()


class Processes:
    """Workers that are processes, each started when first needed.

    Parameters
    ----------
    count : int
        Number of processes, at most.
    code : UserCode
        Code to run; it is sent by pickle.
    finish : callable
        Last step in this process for each returned batch.
    """

    def __init__(self, count: int, code: UserCode, finish: Finish) -> None:
        if multiprocessing.current_process().daemon:
            raise Invalid(
                "worker_type='process' cannot start processes here: this is itself a worker of "
                "torch's or of a pool, which may not start any; use worker_type='thread'",
                {"option": "worker_type"},
            )
        self._context = multiprocessing.get_context("spawn")
        self._count, self._code, self._finish = count, code, finish
        self._workers: list[_Worker] = []
        # Batches that no worker has yet, the next one first.
        self._waiting: deque[_AtWorker] = deque()

    def submit(self, decode: Callable[[], Decoded]) -> Task:
        """Start a batch: it is decoded here, and copied to a worker, once one is free."""
        task = _AtWorker(self, decode, self._finish)
        self._waiting.append(task)
        self.serve(0)
        return task

    def serve(self, seconds: float | None) -> None:
        """Take the answers that are there, and give waiting batches to idle workers.

        Answers come in any order: a slow batch keeps its own worker only. The first one is waited
        for so long at most, or without a limit.
        """
        lines: dict[Any, _Worker] = {}
        for worker in self._workers:
            if worker.task is not None:
                lines |= dict.fromkeys(worker.lines(), worker)
        limit = seconds if lines else 0
        for worker in {lines[line] for line in connection.wait(list(lines), limit)}:
            if worker.task is not None:
                worker.task.fetch()
        while self._waiting and self._has_idle():
            self._waiting.popleft().begin()

    def withdraw(self, task: _AtWorker) -> None:
        """Forget a batch, unless a worker has it."""
        if task in self._waiting:
            self._waiting.remove(task)

    def end(self) -> None:
        """End all of them at once."""
        workers, self._workers = self._workers, []
        left = [*self._waiting, *(worker.task for worker in workers if worker.task is not None)]
        self._waiting.clear()
        for task in left:
            # Another thread may wait for it.
            task.abandon()
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()

    def drop(self, worker: _Worker) -> None:
        """End a worker; another takes its place."""
        if worker in self._workers:
            self._workers.remove(worker)
        worker.process.terminate()
        worker.end()

    def idle(self) -> _Worker:
        """Return an idle worker, started if need be."""
        for worker in self._workers:
            if worker.task is None:
                return worker
        self._workers.append(_Worker(self._context, self._code))
        return self._workers[-1]

    def _has_idle(self) -> bool:
        busy = sum(worker.task is not None for worker in self._workers)
        return busy < self._count


class _Worker:
    """A process and its connection."""

    def __init__(self, context: Any, code: UserCode) -> None:
        self.connection, theirs = context.Pipe()
        self.task: _AtWorker | None = None
        # True once it has answered, and so has begun to serve.
        self.has_served = False
        # A daemon process: it does not outlive this process, and need not be awaited.
        self.process = context.Process(
            target=_serve, args=(theirs, Parcel(code)), name=_NAME, daemon=True
        )
        try:
            with _interrupts_held_back():
                self.process.start()
        finally:
            theirs.close()

    def lines(self) -> list[Any]:
        """Return the objects that signal its answer, or its end."""
        # The connection alone would not suffice: programs started by the worker may hold its other
        # end.
        return [self.connection, self.process.sentinel]

    def end(self) -> None:
        """Make sure that the process has ended."""
        self.connection.close()
        self.process.join(_GRACE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


class _AtWorker:
    """A batch at a worker process."""

    def __init__(self, pool: Processes, decode: Callable[[], Decoded], finish: Finish) -> None:
        self._pool, self._decode, self._finish = pool, decode, finish
        self._worker: _Worker | None = None
        self._places: dict[str, str] = {}
        self._answer: tuple[bool, Any] | None = None
        self._failure: Exception | None = None

    def begin(self) -> None:
        """Decode the batch and give it to an idle worker."""
        try:
            decoded = self._decode()
            worker = self._worker = self._pool.idle()
            worker.task, self._places = self, ends(decoded)
            try:
                _sharing.send(worker.connection, decoded)
            except ConnectionError:
                # It died: the waiter of the batch gets the reason.
                pass
            except Exception:
                # Its progress is unknown.
                self._pool.drop(worker)
                raise
        except Exception as error:
            # This batch's turn comes after those before it.
            self._failure = error

    def fetch(self) -> None:
        """Wait for the worker's answer and keep it: the worker is free for another batch."""
        worker = self._worker
        assert worker is not None, "a worker has the batch"
        if self._is_over():
            # Another thread ended the workers.
            return
        try:
            if worker.connection not in connection.wait(worker.lines()):
                raise EOFError
            self._answer = _sharing.receive(worker.connection)
            worker.has_served = True
        except (EOFError, OSError) as error:
            # Another error than an end may be of this process, as a lack of descriptors.
            has_ended = isinstance(error, (EOFError, ConnectionError)) or error.errno is None
            # A dead process has an exit code once it is joined.
            worker.process.join(_EXIT if has_ended else _GRACE)
            lives = worker.process.exitcode is None
            self._failure = self._died(worker, error) if has_ended or not lives else error
            self._pool.drop(worker)
        except Exception as error:
            # It arrived, but cannot be rebuilt here.
            self._failure = error
            self._pool.drop(worker)
        worker.task = None

    def wait(self, seconds: float | None) -> bool:
        if not self._is_over():
            self._pool.serve(seconds)
        while seconds is None and not self._is_over():
            self._pool.serve(None)
        return self._is_over()

    def _is_over(self) -> bool:
        return self._answer is not None or self._failure is not None

    def result(self) -> Made:
        self.wait(None)
        if self._failure is not None:
            raise self._failure
        assert self._answer is not None
        is_made, found = self._answer
        if is_made:
            return self._finish(found)
        raised, trace = found
        raise raised from WorkerTraceback(trace)

    def cancel(self) -> None:
        """Abandon it; the answer of a worker that has it is read before its next batch."""
        self._pool.withdraw(self)

    def abandon(self) -> None:
        """End every wait for it: its workers end."""
        if not self._is_over():
            self._failure = closed()

    def _died(self, worker: _Worker, how_known: Exception) -> ForebayError:
        process = worker.process
        code = process.exitcode
        if code == _UNGUARDED and not worker.has_served:
            return unguarded()
        how = f"with exit code {code}"
        if code is None:
            how = "its connection, and lives on,"
        elif code < 0:
            how = f"by signal {-code} ({_signal_name(-code)})"
        at = ", ".join(f"{name}={value}" for name, value in self._places.items())
        died = Closed(
            f"a worker process ended {how} while it ran your code ({at}); SIGKILL usually means "
            "lack of memory, and exit code 1 at the first batch a script that lacks `if "
            '__name__ == "__main__":`; see its standard error',
            self._places
            | {"pid": str(process.pid)}
            | ({} if code is None else {"exit_code": str(code)}),
        )
        died.__cause__ = how_known
        return died


def closed() -> Closed:
    """Return the error of a loader that is closed."""
    return Closed("the loader is closed; make a new one")


class WorkerTraceback(Exception):
    """Not an error of its own: the worker's traceback of the error that it is the cause of."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def unguarded() -> Invalid:
    """Return the error for a script that starts worker processes while they import it."""
    return Invalid(
        "worker_type='process': each worker process imports this script, which lacks `if __name__ "
        '== "__main__":` and would start workers of its own; put what runs into a function and '
        "call it below that line, or use worker_type='thread'",
        {"option": "worker_type"},
    )


def refuse_in_unborn_worker() -> None:
    """Reject a loader with worker processes in a process that still imports the script.

    A worker of ours ends here, with the exit code that tells its parent.

    Raises
    ------
    Invalid
        In processes that others spawned.
    """
    process = multiprocessing.current_process()
    # `multiprocessing` marks a process so until it has imported the script.
    if not getattr(process, "_inheriting", False):
        return
    if process.name == _NAME:
        os._exit(_UNGUARDED)
    raise unguarded()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hide Ctrl-C from processes started here; this process receives it a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(line: connection.Connection, parcel: Parcel) -> None:
    """Serve batch after batch until the parent closes the connection."""
    # The user's functions may start programs that must be interruptible.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code: UserCode | None = None
    while True:
        try:
            decoded = _sharing.receive(line)
        except (EOFError, OSError):
            return
        try:
            if code is None:
                code = parcel.opened()
            answer: tuple[bool, Any] = True, code(decoded)
        except Exception as error:
            answer = False, _told(error)
        try:
            try:
                _sharing.send(line, answer)
            except OSError:
                raise
            except Exception as error:
                # The batch cannot be sent to another process.
                _sharing.send(line, (False, _told(error)))
        except OSError:
            return


def _told(error: Exception) -> tuple[Exception, str]:
    """Return an exception that can be sent, with its traceback as text."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Pickle cannot rebuild an exception of this class.
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__dict__.update(
            {name: getattr(error, name) for name in ("places", "__notes__") if hasattr(error, name)}
        )
        return told, trace
    return error, trace


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The parent is gone: whatever the user's function does, nobody waits for it.
        parent.join()
        os._exit(1)
