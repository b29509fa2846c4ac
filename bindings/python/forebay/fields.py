"""What becomes of each field of a sample: the values of ``DataLoader(fields={...})``.

Every field names its sources, the file extensions it comes from: ``"jpg;jpeg;png"`` takes the
first that a sample has. A sample that has none is a `BadSample`, unless ``optional=True``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay.errors import Invalid

__all__ = ["Bytes", "Field", "Float", "Image", "Int", "Json", "Npy", "Text"]

Mapper = Callable[[Any], Any]


class Field:
    """One field of a sample. Use a subclass.

    Parameters
    ----------
    source : str
        File extensions without the leading dot, alternatives separated by ``;``. Case does not
        matter.
    optional : bool
        Whether a sample may lack the field. Lists then hold ``None`` for it, tensors a row of
        zeros, and ``batch["<name>_present"]`` (bool, shape ``(batch,)``) says which rows have it.
    map : callable, optional
        Called with each sample's value, in the loader's workers. Results that are tensors of one
        shape and dtype are stacked; all others stay a list.
    """

    def __init__(self, source: str, *, optional: bool = False, map: Mapper | None = None) -> None:
        if not isinstance(source, str):
            raise Invalid(f"a field's source is text such as 'jpg;png', not {source!r}")
        self.sources = [part.strip().lower() for part in source.split(";") if part.strip()]
        if not self.sources:
            raise Invalid("a field needs a source: name its file extension, as in 'jpg;jpeg;png'")
        if map is not None and not callable(map):
            raise Invalid(f"map= takes a function of one value, not {map!r}")
        self.optional = bool(optional)
        self.map = map

    def _kind(self) -> dict[str, Any]:
        raise Invalid("use one of Image, Int, Float, Text, Json, Npy and Bytes")

    def __repr__(self) -> str:
        given = [repr(";".join(self.sources))]
        given += [f"{name}={value!r}" for name, value in self._kind().items() if name != "type"]
        given += ["optional=True"] if self.optional else []
        given += [f"map={self.map!r}"] if self.map else []
        return f"forebay.{type(self).__name__}({', '.join(given)})"


class Image(Field):
    """A JPEG or PNG image: a tensor of shape ``(batch, 3, height, width)``.

    Parameters
    ----------
    source : str
        As for `Field`.
    size : int or (int, int), optional
        Height and width in pixels; one number for a square. None keeps each image's own size,
        which gives a list of tensors unless they agree.
    crop : {"random", "center", None}
        ``"random"``: a part of random size and shape, as torchvision's ``RandomResizedCrop``, a
        function of seed, epoch and position alone. ``"center"``: the middle. None: the whole
        image, squeezed to `size` if that is given.
    flip : bool
        Mirror half of the samples, drawn at random.
    dtype : {"uint8", "float16", "bfloat16", "float32"}
        uint8 is 0...255; the others are 0...1, then normalised.
    layout : {"NCHW", "NHWC"}
        Whether channels come before or after height and width.
    mean, std : (float, float, float), optional
        Per channel (red, green, blue), on the scale 0...1: subtracted, then divided by. Both or
        neither.
    scale, ratio : (float, float)
        For ``"random"``: share of the image's area, and width divided by height.
    resize : int, optional
        For ``"center"``: length of the shorter side in pixels before the cut. None cuts without
        resizing and pads smaller images with black.
    optional, map
        As for `Field`.

    Raises
    ------
    Invalid
        For values that make no sense, when the loader is made.
    """

    def __init__(
        self,
        source: str = "jpg;jpeg;png",
        *,
        size: int | tuple[int, int] | None = None,
        crop: str | None = None,
        flip: bool = False,
        dtype: str = "uint8",
        layout: str = "NCHW",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: tuple[float, float] | None = None,
        ratio: tuple[float, float] | None = None,
        resize: int | None = None,
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.size = _size(size)
        self.crop = _crop(crop, scale, ratio, resize)
        self.flip = bool(flip)
        self.dtype = _one_of("dtype", dtype, ("uint8", "float16", "bfloat16", "float32"))
        self.layout = _one_of("layout", layout, ("NCHW", "NHWC"))
        self.mean = _channels("mean", mean)
        self.std = _channels("std", std)

    def _kind(self) -> dict[str, Any]:
        return {
            "type": "image",
            "size": self.size,
            "crop": self.crop,
            "flip": self.flip,
            "dtype": self.dtype,
            "layout": self.layout,
            "mean": self.mean,
            "std": self.std,
        }


class Int(Field):
    """A decimal integer: int64, shape ``(batch,)``. With `path`, one inside a JSON document.

    Parameters
    ----------
    source : str
        As for `Field`.
    path : str, optional
        Where in the document, as in ``"a.b.0"``.
    optional, map
        As for `Field`.
    """

    def __init__(
        self,
        source: str,
        *,
        path: str | None = None,
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.path = path

    def _kind(self) -> dict[str, Any]:
        return {"type": "int", "path": self.path}


class Float(Field):
    """A decimal number: float32 or float64, shape ``(batch,)``. With `path`, one inside JSON.

    Parameters
    ----------
    source : str
        As for `Field`.
    path : str, optional
        Where in the document, as in ``"a.b.0"``.
    dtype : {"float32", "float64"}
        What it becomes.
    optional, map
        As for `Field`.
    """

    def __init__(
        self,
        source: str,
        *,
        path: str | None = None,
        dtype: str = "float32",
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.path = path
        self.dtype = _one_of("dtype", dtype, ("float32", "float64"))

    def _kind(self) -> dict[str, Any]:
        return {"type": "float", "path": self.path, "dtype": self.dtype}


class Text(Field):
    """UTF-8 text: a list of str."""

    def _kind(self) -> dict[str, Any]:
        return {"type": "text"}


class Json(Field):
    """A JSON document, or the part of it at `path`: a list of Python objects.

    Parameters
    ----------
    source : str
        As for `Field`.
    path : str, optional
        The part wanted, as in ``"a.b.0"``.
    optional, map
        As for `Field`.
    """

    def __init__(
        self,
        source: str = "json",
        *,
        path: str | None = None,
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.path = path

    def _kind(self) -> dict[str, Any]:
        return {"type": "json", "path": self.path}


class Npy(Field):
    """A NumPy array file: a tensor of shape ``(batch, ...)`` if all agree in shape and dtype.

    Parameters
    ----------
    source : str
        As for `Field`.
    ragged : {"list"}
        What becomes of a batch whose arrays differ: a list with one tensor per sample.
    optional, map
        As for `Field`.
    """

    def __init__(
        self,
        source: str = "npy",
        *,
        ragged: str = "list",
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.ragged = _one_of("ragged", ragged, ("list",))

    def _kind(self) -> dict[str, Any]:
        return {"type": "npy", "ragged": self.ragged}


class Bytes(Field):
    """The bytes as they are: a list of bytes, or of memoryviews.

    Parameters
    ----------
    source : str
        As for `Field`.
    copy : bool
        False gives read-only memoryviews of the daemon's shared memory, without any copy. They
        stay valid for as long as you keep them, after ``close()`` and without the daemon. While
        you keep many batches of them, further ones are copied so that the loader can go on.
    optional, map
        As for `Field`.
    """

    def __init__(
        self,
        source: str,
        *,
        copy: bool = True,
        optional: bool = False,
        map: Mapper | None = None,
    ) -> None:
        super().__init__(source, optional=optional, map=map)
        self.copy = bool(copy)

    def _kind(self) -> dict[str, Any]:
        return {"type": "bytes"}


def specification(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """The fields as the native side reads them.

    Raises
    ------
    Invalid
        For names or values that cannot be fields.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise Invalid("fields= takes a dict such as {'image': forebay.Image('jpg')}, or None")
    for name, field in fields.items():
        if not isinstance(name, str) or not name or name.startswith("__"):
            raise Invalid(f"{name!r} cannot name a field: use text that does not start with '__'")
        if not isinstance(field, Field):
            raise Invalid(
                f"field {name!r} is {field!r}; use forebay.Image, Int, Float, Text, Json, Npy or "
                "Bytes",
                {"field": name},
            )
        if name.endswith("_present") and name[: -len("_present")] in fields:
            raise Invalid(f"the name {name!r} is taken for an optional field; choose another")
    return [
        {
            "name": name,
            "source": field.sources,
            "optional": field.optional,
            "kind": field._kind(),
        }
        for name, field in fields.items()
    ]


def _one_of(option: str, value: Any, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if value == choice:
            return choice
    wanted = ", ".join(map(repr, choices))
    raise Invalid(f"{option}={value!r} is not known; use one of {wanted}", {"option": option})


def _size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else size
    if pair is None:
        return None
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        height, width = pair
        if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
            return height, width
    raise Invalid(f"size={size!r} is no size; give pixels, as in 224 or (height, width)")


def _crop(
    crop: str | None,
    scale: tuple[float, float] | None,
    ratio: tuple[float, float] | None,
    resize: int | None,
) -> dict[str, Any]:
    if crop is not None:
        _one_of("crop", crop, ("random", "center"))
    if crop != "random" and (scale is not None or ratio is not None):
        raise Invalid("scale= and ratio= belong to crop='random'; drop them")
    if crop != "center" and resize is not None:
        raise Invalid("resize= belongs to crop='center'; drop it")
    if crop is None:
        return {"mode": "none"}
    if crop == "center":
        if resize is not None and (not isinstance(resize, int) or resize < 1):
            raise Invalid(f"resize={resize!r} is no length; give pixels, as in 256")
        return {"mode": "center", "resize": resize}
    given: dict[str, Any] = {"mode": "random"}
    for name, range_ in (("scale", scale), ("ratio", ratio)):
        if range_ is not None:
            given[name] = _numbers(name, range_, 2)
    return given


def _channels(name: str, values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else _numbers(name, values, 3)


def _numbers(name: str, values: Any, count: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or any(number != number for number in numbers):
        raise Invalid(f"{name}={values!r} does not fit; give {count} numbers", {"option": name})
    return numbers
