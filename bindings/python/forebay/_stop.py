"""`StopIteration` that leaves user code: an error, never the silent end of an epoch.

As in generators (PEP 479) it becomes a `RuntimeError`, with the `StopIteration` as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType, TracebackType
from typing import Any, TypeVar

_Item = TypeVar("_Item")

# Modules of iterators that call functions of their user and pass on what those raise: `map`,
# `filter`, `itertools.takewhile`, …
_CALLING = frozenset({"builtins", "itertools"})

# Names of the method that may end an iteration, also the one of Python 2 under its alias.
_ENDING = frozenset({"__next__", "next"})


class StoppedInside(RuntimeError):
    """`StopIteration` of user code.

    torch makes a worker's error anew from its class and text. The cause is therefore part of the
    construction.
    """

    def __init__(self, message: str, cause: StopIteration | None = None) -> None:
        super().__init__(message)
        self.__cause__ = StopIteration() if cause is None else cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.__cause__), self.__dict__


def inside(error: StopIteration) -> StoppedInside:
    """Return the error for a `StopIteration` that left user code, with its notes and places."""
    made = StoppedInside(
        f"your code raised StopIteration({error.value!r}), which would have ended the epoch in "
        "silence; catch it there, or call next() with a default",
        error,
    )
    named = ("places", "__notes__")
    made.__dict__.update({name: getattr(error, name) for name in named if hasattr(error, name)})
    return made


def of_generator(error: RuntimeError) -> RuntimeError:
    """Return the error for one of a generator; other errors stay as they are."""
    if type(error) is RuntimeError and isinstance(error.__cause__, StopIteration):
        return inside(error.__cause__)
    return error


class Guard:
    """Block around user code that no `StopIteration` leaves."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, StopIteration):
            raise inside(error) from error


class Guarded:
    """Function of a user that no `StopIteration` leaves. It pickles as far as the function does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kw: Any) -> Any:
        """Call the function."""
        with Guard():
            return self.function(*args, **kw)


def items(stream: Iterable[_Item]) -> Iterator[_Item]:
    """Return an iterator of a user that does not end because a function inside it raises
    `StopIteration`.

    Generators take care of that themselves. `map` and the like do not, and a class that ends in its
    own ``__next__`` means it.
    """
    source = iter(stream)
    if type(source).__module__ not in _CALLING or isinstance(source, GeneratorType):
        return source
    return _items(source)


def _items(source: Iterator[_Item]) -> Iterator[_Item]:
    while True:
        try:
            item = next(source)
        except StopIteration as end:
            trace = end.__traceback__ and end.__traceback__.tb_next
            if trace is None or trace.tb_frame.f_code.co_name in _ENDING:
                return
            raise inside(end) from end
        yield item
