"""How a decoded tensor becomes a torch, NumPy or JAX one: by DLPack, without a copy.

A framework is imported when the first iteration begins, never before, and only the one in use.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, Literal

from forebay import _native
from forebay.errors import Invalid

Name = Literal["torch", "jax", "numpy"]

# NumPy before this hands every DLPack tensor out read-only.
_NUMPY_OLDEST = (2, 1)


class Framework:
    """What the loader asks of a framework."""

    name: ClassVar[str]
    # The class of its tensors.
    _tensor_type: Any

    def tensor(self, native: _native.Tensor) -> Any:
        """The same memory as the framework's own tensor."""
        raise NotImplementedError

    def stack(self, rows: list[Any]) -> Any | None:
        """One tensor of tensors that agree in shape and dtype, or of numbers; else None."""
        first = rows[0]
        if all(isinstance(row, self._tensor_type) for row in rows):
            alike = all(row.shape == first.shape and row.dtype == first.dtype for row in rows)
            return self._join(rows) if alike else None
        dtype = _dtype_of(rows)
        return None if dtype is None else self._numbers(rows, dtype)

    def _join(self, rows: list[Any]) -> Any:
        raise NotImplementedError

    def _numbers(self, rows: list[Any], dtype: str) -> Any | None:
        raise NotImplementedError


def _dtype_of(rows: list[Any]) -> str | None:
    """What plain numbers, of Python or NumPy, become: the dtypes that WebDataset gives them."""
    kinds = {type(row) for row in rows}
    if kinds == {bool}:
        return "bool"
    if kinds <= {int, float}:
        if not all(-(2**63) <= row < 2**63 for row in rows if type(row) is int):
            return None
        return "int64" if kinds == {int} else "float64"
    # Nobody can have made a number of NumPy's without it.
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or len(kinds) > 1 or not isinstance(rows[0], numpy.generic):
        return None
    dtype = rows[0].dtype
    return str(dtype.name) if dtype.kind in "biufc" else None


def choose(name: Name | None) -> Framework:
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


class _Torch(Framework):
    name = "torch"

    def __init__(self) -> None:
        self._torch: Any = _require("torch")
        self._tensor_type = self._torch.Tensor

    def tensor(self, native: _native.Tensor) -> Any:
        return self._torch.from_dlpack(native)

    def _join(self, rows: list[Any]) -> Any:
        return self._torch.stack(rows)

    def _numbers(self, rows: list[Any], dtype: str) -> Any | None:
        known = getattr(self._torch, dtype, None)
        return None if known is None else self._torch.tensor(rows, dtype=known)


class _NumPy(Framework):
    name = "numpy"

    def __init__(self) -> None:
        self._numpy: Any = _require("numpy")
        self._tensor_type = self._numpy.ndarray
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

    def _join(self, rows: list[Any]) -> Any:
        return self._numpy.stack(rows)

    def _numbers(self, rows: list[Any], dtype: str) -> Any | None:
        return self._numpy.asarray(rows, dtype)


class _Jax(Framework):
    name = "jax"

    def __init__(self) -> None:
        self._tensor_type = _require("jax").Array
        self._numpy: Any = _require("jax.numpy", "jax")
        self._dlpack: Any = _require("jax.dlpack", "jax")

    def tensor(self, native: _native.Tensor) -> Any:
        return self._dlpack.from_dlpack(native)

    def _join(self, rows: list[Any]) -> Any:
        return self._numpy.stack(rows)

    def _numbers(self, rows: list[Any], dtype: str) -> Any | None:
        # By way of NumPy: JAX narrows its dtypes in silence, and warns of those it is asked for.
        return self._numpy.asarray(_require("numpy").asarray(rows, dtype))
