"""Conversion of decoded tensors to torch, NumPy or JAX: by DLPack, without a copy.

A framework is imported at the first iteration, never before, and only the one in use.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, ClassVar, Literal

from forebay import _native
from forebay.errors import Invalid

Name = Literal["torch", "jax", "numpy"]

# Earlier versions of NumPy return every DLPack tensor read-only.
_NUMPY_OLDEST = (2, 1)

# Numbers of Python itself, without derived classes.
_PLAIN = (bool, int, float)


class Framework:
    """Interface of a framework to the loader."""

    name: ClassVar[str]
    # Class of its tensors.
    _tensor_type: Any

    def tensor(self, native: _native.Tensor) -> Any:
        """Return the same memory as the framework's own tensor."""
        raise NotImplementedError

    def stack(self, rows: list[Any]) -> Any | None:
        """Stack tensors of one shape and dtype, or numbers, into one tensor; None otherwise."""
        first = rows[0]
        if all(isinstance(row, self._tensor_type) for row in rows):
            alike = all(row.shape == first.shape and row.dtype == first.dtype for row in rows)
            return self._join(rows) if alike else None
        plain = [row for row in rows if type(row) in _PLAIN]
        dtype = self._dtype(plain, [row for row in rows if type(row) not in _PLAIN])
        if dtype is None or not all(_fits(number, dtype) for number in plain):
            return None
        return self.numbers([row if type(row) in _PLAIN else row.item() for row in rows], dtype)

    def numbers(self, rows: list[Any], dtype: str) -> Any | None:
        """Return one tensor of numbers; None if the dtype does not exist."""
        raise NotImplementedError

    def take(self, tensor: Any, rows: list[int]) -> Any:
        """Return a tensor of these rows."""
        raise NotImplementedError

    def stream(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a context that orders another thread's work on a GPU after this one's."""
        return nullcontext

    def refuse_nested(self, field: str) -> None:
        """Reject a field with nested tensors, if the framework has none.

        Raises
        ------
        Invalid
            With the alternative.
        """
        raise no_nested(self.name, field)

    def nested(self, values: Any, lengths: Any) -> Any:
        """Return a nested tensor over adjacent rows in `values`, which it keeps."""
        raise NotImplementedError

    def array(self, value: Any) -> Any:
        """Return a result of user code as an array of numbers, in the CPU's memory."""
        raise NotImplementedError

    def empty(self) -> Any:
        """Return an array without elements, for an unknown dtype and shape."""
        raise NotImplementedError

    def pad(self, rows: list[Any], width: int, value: float) -> Any:
        """Return a tensor ``(rows, width, ...)`` of arrays of one form, filled up with `value`."""
        raise NotImplementedError

    def join(self, rows: list[Any]) -> Any:
        """Join arrays of one form into a tensor."""
        raise NotImplementedError

    def widened(self, values: Any, width: int, value: float) -> Any:
        """Return padded rows ``(rows, any, ...)`` cut, or filled up with `value`, to `width`."""
        raise NotImplementedError

    def places(self, lengths: list[int]) -> Any:
        """Return 0, 1, … for each of adjacent rows of these lengths, int64."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return choose, (self.name,)

    def _dtype(self, plain: list[Any], scalars: list[Any]) -> str | None:
        """Return the dtype of numbers: that of the scalars among them, or else WebDataset's.

        The results of ``min(value, 10)`` then have the same dtype in every batch.
        """
        if not scalars:
            kinds = {type(row) for row in plain}
            return "bool" if kinds == {bool} else "float64" if float in kinds else "int64"
        # NumPy's numbers exist only if it is imported.
        numpy: Any = sys.modules.get("numpy")
        numbers = () if numpy is None else (numpy.number, numpy.bool_)
        for row in scalars:
            if not isinstance(row, numbers) and not isinstance(row, self._tensor_type):
                return None
            if row.shape or row.dtype != scalars[0].dtype:
                return None
        # torch writes its dtypes as torch.int64.
        return str(scalars[0].dtype).rpartition(".")[2]

    def _join(self, rows: list[Any]) -> Any:
        raise NotImplementedError


def _fits(number: bool | int | float, dtype: str) -> bool:
    """Return true if a plain number has the kind and is within the range of `dtype`."""
    if isinstance(number, bool) or dtype == "bool":
        return isinstance(number, bool) and dtype == "bool"
    if "float" in dtype or "complex" in dtype:
        # A whole number outside int64 must not be rounded.
        return isinstance(number, float) or _fits(number, "int64")
    integer = re.fullmatch(r"(u?)int(\d+)", dtype)
    if integer is None or isinstance(number, float):
        return False
    unsigned, bits = integer[1], int(integer[2])
    low, high = (0, 1 << bits) if unsigned else (-1 << bits - 1, 1 << bits - 1)
    return low <= number < high


def holds(dtype: str, number: bool | int | float) -> bool:
    """Return true if an element of `dtype` can hold this number; for floats, nearly."""
    if "float" in dtype or "complex" in dtype:
        return True
    if not math.isfinite(number) or number != int(number):
        return False
    return int(number) in (0, 1) if dtype == "bool" else _fits(int(number), dtype)


def no_nested(name: str, field: str) -> Invalid:
    """Return the error for a field that needs nested tensors of framework `name`."""
    return Invalid(
        f"field {field!r}: {name} has no nested tensors; use ragged='pad', which also gives "
        "lengths, or framework='torch'",
        {"field": field},
    )


def choose(name: Name | None) -> Framework:
    """Return the framework called `name`; by default torch if the program uses it, else NumPy.

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
        if native.device is None:
            return self._torch.from_dlpack(native)
        # Memory of torch's own allocator, which knows its streams. The copy takes a GPU some 50
        # microseconds for 256 photos.
        torch, device = self._torch, f"cuda:{native.device}"
        tensor = torch.empty(native.shape, dtype=getattr(torch, native.dtype), device=device)
        native.copy_to(tensor.data_ptr(), torch.cuda.current_stream(device).cuda_stream)
        return tensor

    def stream(self) -> Callable[[], AbstractContextManager[Any]]:
        torch = self._torch
        if not torch.cuda.is_initialized():
            return nullcontext
        stream = torch.cuda.current_stream()
        return lambda: torch.cuda.stream(stream)

    def take(self, tensor: Any, rows: list[int]) -> Any:
        return tensor[self._torch.tensor(rows, dtype=self._torch.int64)]

    def refuse_nested(self, field: str) -> None:
        if not hasattr(self._torch.nested, "nested_tensor_from_jagged"):
            raise Invalid(
                f"field {field!r}: torch {self._torch.__version__} has no jagged nested tensors; "
                "install a newer one, or use ragged='pad'",
                {"field": field},
            )

    def nested(self, values: Any, lengths: Any) -> Any:
        offsets = self._torch.zeros(len(lengths) + 1, dtype=self._torch.int64)
        self._torch.cumsum(lengths, 0, out=offsets[1:])
        return self._torch.nested.nested_tensor_from_jagged(values, offsets)

    def array(self, value: Any) -> Any:
        return self._torch.as_tensor(value)

    def empty(self) -> Any:
        return self._torch.empty(0, dtype=self._torch.float32)

    def pad(self, rows: list[Any], width: int, value: float) -> Any:
        first = rows[0] if rows else self.empty()
        made = self._torch.full((len(rows), width, *first.shape[1:]), value, dtype=first.dtype)
        return _written(rows, made)

    def join(self, rows: list[Any]) -> Any:
        return self._torch.cat(rows)

    def widened(self, values: Any, width: int, value: float) -> Any:
        made = values.new_full((len(values), width, *values.shape[2:]), value)
        made[:, : values.shape[1]] = values[:, :width]
        return made

    def places(self, lengths: list[int]) -> Any:
        torch = self._torch
        # Torch imports it, where it is installed. Its own operations wake threads for so many
        # numbers, which takes milliseconds on a busy node.
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            return torch.from_numpy(_places(numpy, lengths))
        sizes = torch.tensor(lengths, dtype=torch.int64)
        firsts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        return torch.arange(len(firsts)) - firsts

    def _join(self, rows: list[Any]) -> Any:
        return self._torch.stack(rows)

    def numbers(self, rows: list[Any], dtype: str) -> Any | None:
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

    def take(self, tensor: Any, rows: list[int]) -> Any:
        return tensor[self._numpy.asarray(rows, self._numpy.intp)]

    def array(self, value: Any) -> Any:
        return _numeric(self._numpy.asarray(value))

    def empty(self) -> Any:
        return self._numpy.empty(0, "float32")

    def pad(self, rows: list[Any], width: int, value: float) -> Any:
        first = rows[0] if rows else self.empty()
        made = self._numpy.full((len(rows), width, *first.shape[1:]), value, first.dtype)
        return _written(rows, made)

    def join(self, rows: list[Any]) -> Any:
        return self._numpy.concatenate(rows)

    def widened(self, values: Any, width: int, value: float) -> Any:
        shape = (len(values), width, *values.shape[2:])
        made = self._numpy.full(shape, value, values.dtype)
        made[:, : values.shape[1]] = values[:, :width]
        return made

    def places(self, lengths: list[int]) -> Any:
        return _places(self._numpy, lengths)

    def _join(self, rows: list[Any]) -> Any:
        return self._numpy.stack(rows)

    def numbers(self, rows: list[Any], dtype: str) -> Any | None:
        return self._numpy.asarray(rows, dtype)


class _Jax(Framework):
    name = "jax"

    def __init__(self) -> None:
        self._tensor_type = _require("jax").Array
        self._numpy: Any = _require("jax.numpy", "jax")
        self._dlpack: Any = _require("jax.dlpack", "jax")
        # Assembles rows: JAX's arrays cannot be written.
        self._host = _NumPy()

    def tensor(self, native: _native.Tensor) -> Any:
        return self._dlpack.from_dlpack(native)

    def take(self, tensor: Any, rows: list[int]) -> Any:
        return tensor[_require("numpy").asarray(rows, "int32")]

    def array(self, value: Any) -> Any:
        return self._host.array(value)

    def empty(self) -> Any:
        return self._host.empty()

    def pad(self, rows: list[Any], width: int, value: float) -> Any:
        return self._numpy.asarray(self._host.pad(rows, width, value))

    def join(self, rows: list[Any]) -> Any:
        return self._numpy.asarray(self._host.join(rows))

    def widened(self, values: Any, width: int, value: float) -> Any:
        # By the host: JAX compiles anew for each shape that it is given.
        values = _require("numpy").asarray(values)
        return self._numpy.asarray(self._host.widened(values, width, value))

    def places(self, lengths: list[int]) -> Any:
        return self._numpy.asarray(self._host.places(lengths))

    def _join(self, rows: list[Any]) -> Any:
        return self._numpy.stack(rows)

    def numbers(self, rows: list[Any], dtype: str) -> Any | None:
        # Through NumPy: JAX narrows dtypes silently, and warns of requested ones.
        return self._numpy.asarray(_require("numpy").asarray(rows, dtype))


def _places(numpy: Any, lengths: list[int]) -> Any:
    """Return 0, 1, … for each of adjacent rows."""
    sizes = numpy.asarray(lengths, "int64")
    firsts = numpy.repeat(sizes.cumsum() - sizes, sizes)
    return numpy.arange(len(firsts), dtype="int64") - firsts


def _written(rows: list[Any], made: Any) -> Any:
    """Return `made`, with each row written to its place."""
    for place, row in enumerate(rows):
        made[place, : len(row)] = row
    return made


def _numeric(array: Any) -> Any:
    """Return the array, if it has numbers: NumPy makes one of anything."""
    if array.dtype.kind in "OSUMm":
        raise TypeError(f"not numeric: {array.dtype}")
    return array
