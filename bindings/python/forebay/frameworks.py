"""How a decoded tensor becomes a torch, NumPy or JAX one: by DLPack, without a copy.

The frameworks are imported when the first batch is delivered, never before.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from forebay import _native
from forebay.errors import Invalid

NAMES = ("torch", "jax", "numpy")

# NumPy before this hands every DLPack tensor out read-only.
_NUMPY_OLDEST = (2, 1)


class Framework(Protocol):
    """What the loader asks of a framework."""

    name: str

    def tensor(self, native: _native.Tensor) -> Any:
        """The same memory as the framework's own tensor."""

    def stack(self, rows: list[Any]) -> Any | None:
        """One tensor of tensors that agree in shape and dtype; None for anything else."""


def choose(name: str | None) -> Framework:
    """The framework called `name`; without one, torch if the program uses it, else NumPy.

    Raises
    ------
    Invalid
        If the framework is not installed.
    """
    if name is None:
        name = "torch" if "torch" in sys.modules else "numpy"
    makers: dict[str, Callable[[], Framework]] = {"torch": _Torch, "jax": _Jax, "numpy": _NumPy}
    return makers[name]()


def _require(name: str, package: str | None = None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name
        raise Invalid(
            f"{package} cannot be imported ({error}); install it, or choose another framework="
        ) from error


class _Torch:
    name = "torch"

    def __init__(self) -> None:
        self._torch: Any = _require("torch")

    def tensor(self, native: _native.Tensor) -> Any:
        return self._torch.from_dlpack(native)

    def stack(self, rows: list[Any]) -> Any | None:
        first = rows[0]
        if not all(isinstance(row, self._torch.Tensor) for row in rows):
            return None
        if any(row.shape != first.shape or row.dtype != first.dtype for row in rows):
            return None
        return self._torch.stack(rows)


class _NumPy:
    name = "numpy"

    def __init__(self) -> None:
        self._numpy: Any = _require("numpy")
        have = tuple(int(part) for part in self._numpy.__version__.split(".")[:2])
        if have < _NUMPY_OLDEST:
            raise Invalid(f"NumPy {self._numpy.__version__} is too old; install numpy>=2.1")

    def tensor(self, native: _native.Tensor) -> Any:
        if native.dtype != "bfloat16":
            return self._numpy.from_dlpack(native)
        try:
            ml_dtypes: Any = importlib.import_module("ml_dtypes")
        except ImportError:
            raise Invalid(
                "NumPy has no bfloat16; install ml_dtypes, or use framework='torch' or 'float16'"
            ) from None
        native.as_uint16()
        return self._numpy.from_dlpack(native).view(ml_dtypes.bfloat16)

    def stack(self, rows: list[Any]) -> Any | None:
        first = rows[0]
        if not all(isinstance(row, self._numpy.ndarray) for row in rows):
            return None
        if any(row.shape != first.shape or row.dtype != first.dtype for row in rows):
            return None
        return self._numpy.stack(rows)


class _Jax:
    name = "jax"

    def __init__(self) -> None:
        self._jax: Any = _require("jax")
        self._numpy: Any = _require("jax.numpy", "jax")
        self._dlpack: Any = _require("jax.dlpack", "jax")

    def tensor(self, native: _native.Tensor) -> Any:
        return self._dlpack.from_dlpack(native)

    def stack(self, rows: list[Any]) -> Any | None:
        first = rows[0]
        if not all(isinstance(row, self._jax.Array) for row in rows):
            return None
        if any(row.shape != first.shape or row.dtype != first.dtype for row in rows):
            return None
        return self._numpy.stack(rows)
