"""Functions that worker processes can load.

A worker process imports the modules of the functions it receives by pickle. Mistakes that can be
found before it starts are found here; the worker itself reports the rest.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from multiprocessing import process, reduction
from types import BuiltinFunctionType, FunctionType
from typing import Any

from forebay.errors import Invalid

# Names of the program's own module, here and in a spawned process.
_MAIN = frozenset({"__main__", "__mp_main__"})

_ADVICE = "move it to a module (a file of its own, named in an import), or use worker_type='thread'"


def check_sendable(what: str, value: Any) -> None:
    """Reject an object that worker processes could not receive, or not load.

    Raises
    ------
    Invalid
        Naming the object and the reason.
    """
    pickler = _Pickler(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(value)
    except Exception as error:
        raise Invalid(
            f"{what}={value!r} cannot be sent to a worker process ({error}); make it a "
            "function of a module, or use worker_type='thread'",
            {"option": "worker_type"},
        ) from error
    if not pickler.of_main:
        return
    why = _why_not_imported()
    if why is not None:
        raise Invalid(
            f"{what}={value!r} uses {pickler.of_main[0]!r} of __main__, which worker processes "
            f"cannot import: {why}; {_ADVICE}",
            {"option": "worker_type"},
        )


class _Pickler(pickle.Pickler):
    """Pickler that notes functions and classes of `__main__`."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.of_main: list[str] = []

    def reducer_override(self, value: Any) -> Any:
        """Note `value`, and leave it to pickle."""
        is_named = isinstance(value, (type, FunctionType, BuiltinFunctionType))
        if is_named and getattr(value, "__module__", None) in _MAIN:
            self.of_main.append(value.__qualname__)
        return NotImplemented


def check_program() -> None:
    """Reject a program that worker processes would try to import, in vain, before all else.

    Raises
    ------
    Invalid
        With the place of its text.
    """
    main = sys.modules.get("__main__")
    has_name = getattr(getattr(main, "__spec__", None), "name", None) is not None
    file = getattr(main, "__file__", None)
    if not has_name and file is not None and not _is_file(file):
        raise Invalid(
            f"worker_type='process': worker processes import the program, and its text comes from "
            f"{file}, which is not a file; save it as one, or use worker_type='thread'",
            {"option": "worker_type"},
        )


def _is_file(path: str) -> bool:
    folder: str | None = getattr(process, "ORIGINAL_DIR", None)
    return os.path.isfile(os.path.join(folder or "", path))


def _why_not_imported() -> str | None:
    """Return the reason that a spawned process cannot import `__main__`; None if it can."""
    if getattr(process.current_process(), "_inheriting", False):
        # It is being imported, by the name of a spawned process.
        return None
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        # `multiprocessing` does not import the `__main__.py` of a package again.
        is_package = name == "__main__" or name.endswith(".__main__")
        return "it is the __main__.py of a package or an archive" if is_package else None
    file = getattr(main, "__file__", None)
    if file is None:
        return "it is a notebook, an interactive session or `python -c`"
    if os.path.splitext(os.path.basename(file))[0] == "ipython":
        return "it is an IPython session"
    return None


class Parcel:
    """User code on its way to a worker process, which unpacks it where it can report a failure."""

    def __init__(self, code: Any) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # In the middle of a process's start, so that locks and shared tensors may travel too.
        return _Packed, (bytes(reduction.ForkingPickler.dumps(self._code)),)

    def opened(self) -> Any:
        """Return the code."""
        return self._code


class _Packed(Parcel):
    """A parcel that arrived."""

    def opened(self) -> Any:
        """Return the code, loaded from the modules of its functions.

        Raises
        ------
        Invalid
            If one of them cannot be loaded.
        """
        try:
            return pickle.loads(self._code)
        except Exception as error:
            raise Invalid(
                f"a worker process cannot load your functions ({type(error).__name__}: {error}); "
                'define them outside of `if __name__ == "__main__":` in a file that can be '
                "imported, or use worker_type='thread'",
                {"option": "worker_type"},
            ) from error
