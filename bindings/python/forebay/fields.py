"""What becomes of each field of a sample: the values of ``DataLoader(fields={...})``.

Every field names its sources, the file extensions it comes from: ``"jpg;jpeg;png"`` takes the
first that a sample has. A sample that has none is a `BadSample`, unless ``optional=True``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

from forebay import _native
from forebay._values import U32_MAX, flag, numbers, scalar, text, whole, word
from forebay.errors import Invalid

__all__ = ["Bytes", "Field", "Float", "Image", "Int", "Json", "Label", "Npy", "Text"]

Mapper = Callable[[Any], Any]
Crop = Literal["random", "center"]
ImageDtype = Literal["uint8", "float16", "bfloat16", "float32"]
Layout = Literal["NCHW", "NHWC"]
FloatDtype = Literal["float32", "float64"]
Quality = Literal["exact", "fast"]
ArrayDtype = Literal[
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
Ragged = Literal["list", "pad", "nested"]
# What a number of a class may be.
INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, repr=False)
class Field:
    """One field of a sample. Use a subclass; each takes these parameters and its own.

    Parameters
    ----------
    source : str
        File extensions, alternatives separated by ``;``. Neither case nor a leading dot matters.
    optional : bool
        Whether a sample may lack the field, or the part of it that `path` names. Lists then hold
        ``None`` for it, tensors a row of zeros (or one of length 0, with `ragged`), and
        ``batch["<name>_present"]`` (bool, shape ``(batch,)``) says which rows have it.
    map : callable, optional
        Called with each value, in the loader's workers. Results that are tensors of one shape and
        dtype, or numbers, become one tensor; all others, and where a value is absent, stay a list.

    Raises
    ------
    Invalid
        For values that make no sense.
    """

    source: str
    _: KW_ONLY
    optional: bool = False
    map: Mapper | None = None

    def __post_init__(self) -> None:
        if self.map is not None and not callable(self.map):
            raise Invalid(f"map= takes a function of one value, not {self.map!r}")
        _native.check_field(json.dumps(self._specification("")))

    def _specification(self, name: str) -> dict[str, Any]:
        """The field as the native side reads it."""
        return {
            "name": name,
            "source": text("source", self.source, "name file extensions, as in 'jpg;png'"),
            "optional": flag("optional", self.optional),
            "kind": self._kind(),
        }

    def _kind(self) -> dict[str, Any]:
        raise Invalid("use one of Image, Int, Float, Label, Text, Json, Npy and Bytes")

    def __repr__(self) -> str:
        given = [repr(self.source)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            # By their text: arrays have no single answer to whether they differ.
            if repr(value) != repr(field.default):
                given.append(f"{field.name}={value!r}")
        return f"forebay.{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Image(Field):
    """A JPEG, PNG or WebP image: a tensor of shape ``(batch, 3, height, width)``.

    Parameters
    ----------
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
    views : int, optional
        How many crops are made of each image, which is decoded once: a tensor of shape
        ``(batch, views, 3, height, width)``, for methods that compare views of one image. Each is
        drawn by itself; the first is the one that there is without `views`.
    quality : {"exact", "fast"}
        ``"exact"``: the pixels that Pillow and torchvision show. ``"fast"``: a JPEG that becomes
        less than half as large is decoded at a half, a quarter or an eighth of its size, and its
        colours are not smoothed. It is worth it for photos much larger than `size`, and differs by
        a few of 255 steps on average.
    exif : bool
        Turn photos upright as the camera noted. Without it the note is ignored, as torchvision and
        Pillow do.
    """

    source: str = "jpg;jpeg;png"
    _: KW_ONLY
    size: int | tuple[int, int] | None = None
    crop: Crop | None = None
    flip: bool = False
    dtype: ImageDtype = "uint8"
    layout: Layout = "NCHW"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    resize: int | None = None
    views: int | None = None
    quality: Quality = "exact"
    exif: bool = False

    def _kind(self) -> dict[str, Any]:
        return {
            "type": "image",
            "size": self._size(),
            "crop": self._crop(),
            "flip": flag("flip", self.flip),
            "dtype": word("dtype", self.dtype, ImageDtype),
            "layout": word("layout", self.layout, Layout),
            "mean": None if self.mean is None else numbers("mean", self.mean, 3),
            "std": None if self.std is None else numbers("std", self.std, 3),
            "views": None if self.views is None else self._views(),
            "quality": word("quality", self.quality, Quality),
            "exif": flag("exif", self.exif),
        }

    def _views(self) -> int:
        return whole("views", self.views, 1, _native.VIEWS_MAX)

    def _size(self) -> tuple[int, int] | None:
        if self.size is None:
            return None
        pair = self.size if isinstance(self.size, (tuple, list)) else (self.size, self.size)
        if len(pair) != 2:
            raise Invalid(
                f"size={self.size!r} is no size; give pixels, as in 224 or (height, width)"
            )
        height, width = (whole("size", side, 1, _native.SIDE_MAX) for side in pair)
        return height, width

    def _crop(self) -> dict[str, Any]:
        crop = None if self.crop is None else word("crop", self.crop, Crop)
        if crop != "random" and (self.scale is not None or self.ratio is not None):
            raise Invalid("scale= and ratio= belong to crop='random'; drop them")
        if crop != "center" and self.resize is not None:
            raise Invalid("resize= belongs to crop='center'; drop it")
        given: dict[str, Any] = {"mode": crop or "none"}
        if self.scale is not None:
            given["scale"] = numbers("scale", self.scale, 2)
        if self.ratio is not None:
            given["ratio"] = numbers("ratio", self.ratio, 2)
        if self.resize is not None:
            given["resize"] = whole("resize", self.resize, 1, _native.SIDE_MAX)
        return given


@dataclass(frozen=True, repr=False)
class Int(Field):
    """A decimal integer: int64, shape ``(batch,)``. With `path`, one inside a JSON document.

    Parameters
    ----------
    path : str, optional
        Where in the document, as in ``"a.b.0"``.
    """

    _: KW_ONLY
    path: str | None = None

    def _kind(self) -> dict[str, Any]:
        return {"type": "int", "path": _path(self.path)}


@dataclass(frozen=True, repr=False)
class Label(Field):
    """The name of a class: its number, int64, shape ``(batch,)``.

    Parameters
    ----------
    classes : sequence of str, or mapping of str to int
        The names; of a sequence, each has its place for its number. A sample with any other name
        is a bad one. White space around a name does not count, case does.
    path : str, optional
        Where in a JSON document the name stands, as in ``"a.b.0"``.
    """

    _: KW_ONLY
    classes: Sequence[str] | Mapping[str, int]
    path: str | None = None

    def _kind(self) -> dict[str, Any]:
        return {"type": "label", "classes": self._classes(), "path": _path(self.path)}

    def _classes(self) -> dict[str, int]:
        if isinstance(self.classes, Mapping):
            named = dict(self.classes)
        elif isinstance(self.classes, str):
            raise Invalid(f"classes={self.classes!r} is one name; give a list of them")
        else:
            named = {}
            for number, name in enumerate(self.classes):
                if named.setdefault(name, number) != number:
                    raise Invalid(f"classes= has {name!r} twice; name each class once")
        return {
            text("a class", name, "use text"): whole("the number of a class", number, *INT64)
            for name, number in named.items()
        }


@dataclass(frozen=True, repr=False)
class Float(Field):
    """A decimal number: float32 or float64, shape ``(batch,)``. With `path`, one inside JSON.

    Parameters
    ----------
    path : str, optional
        Where in the document, as in ``"a.b.0"``.
    dtype : {"float32", "float64"}
        What it becomes.
    """

    _: KW_ONLY
    path: str | None = None
    dtype: FloatDtype = "float32"

    def _kind(self) -> dict[str, Any]:
        dtype = word("dtype", self.dtype, FloatDtype)
        return {"type": "float", "path": _path(self.path), "dtype": dtype}


@dataclass(frozen=True, repr=False)
class Rows(Field):
    """A field whose rows may differ in length. Use `Text` or `Npy`."""

    _: KW_ONLY
    ragged: Ragged = "list"
    pad_value: float = 0
    max_len: int | None = None

    @property
    def has_lengths(self) -> bool:
        """Whether a batch has a ``"<name>_len"`` for it."""
        return self.ragged != "list"

    @property
    def is_nested(self) -> bool:
        """Whether its rows are to become a nested tensor."""
        return self.ragged == "nested"

    def _ragged(self) -> dict[str, Any]:
        mode = word("ragged", self.ragged, Ragged)
        value = scalar("pad_value", self.pad_value)
        longest = None if self.max_len is None else whole("max_len", self.max_len, 1, U32_MAX)
        if mode != "pad" and value != 0:
            raise Invalid("pad_value= belongs to ragged='pad'; drop it")
        if mode == "list" and longest is not None:
            raise Invalid("max_len= belongs to ragged='pad' and ragged='nested'; drop it")
        if mode == "list" or self.map is not None:
            # What map= gives is put together after it, see _ragged.py.
            return {"mode": "list"}
        given: dict[str, Any] = {"mode": mode, "max_len": longest}
        # As text: JSON knows no infinities.
        return given | {"value": repr(value)} if mode == "pad" else given


@dataclass(frozen=True, repr=False)
class Text(Rows):
    """UTF-8 text: a list of str, or its bytes as a tensor.

    Parameters
    ----------
    ragged : {"list", "pad", "nested"}
        ``"list"``: str. ``"pad"``: the bytes of each text, uint8, shape ``(batch, longest)``.
        ``"nested"``: the same as a nested tensor (``layout=torch.jagged``), torch only. Both give
        ``batch["<name>_len"]``, int64 ``(batch,)``: the number of bytes of each. The text of a row
        is ``bytes(row[:length].tolist()).decode()``.
    pad_value : int
        What follows a text's end, 0 to 255.
    max_len : int, optional
        With ``"pad"`` the length of every row in every batch: shape ``(batch, max_len)``. Longer
        texts are cut, never within a character; with ``"nested"`` too.

    Notes
    -----
    With `map`, which is given the str, it is what `map` gives that is padded or nested: numbers of
    tokens, say, see `Npy` for the rules.
    """

    def _kind(self) -> dict[str, Any]:
        return {"type": "text", "ragged": self._ragged()}


@dataclass(frozen=True, repr=False)
class Json(Field):
    """A JSON document, or the part of it at `path`: a list of what ``json.loads`` makes of it.

    Parameters
    ----------
    path : str, optional
        The part wanted, as in ``"a.b.0"``.
    """

    source: str = "json"
    _: KW_ONLY
    path: str | None = None

    def _kind(self) -> dict[str, Any]:
        return {"type": "json", "path": _path(self.path)}


@dataclass(frozen=True, repr=False)
class Npy(Rows):
    """An array: a NumPy file, or the bytes of one whose dtype and shape are given here.

    Parameters
    ----------
    ragged : {"list", "pad", "nested"}
        What becomes of arrays that differ in length. ``"list"``: a tensor of shape
        ``(batch, ...)`` if all agree in shape and dtype, else a list of tensors. ``"pad"``: always
        a tensor ``(batch, longest, ...)``; each array is padded at the end of its first dimension
        to the longest of the batch. ``"nested"``: a nested tensor (``layout=torch.jagged``) over
        one buffer, torch only. Both give ``batch["<name>_len"]``, int64 ``(batch,)``: how long
        each array is, 0 for one that is empty or absent.
    pad_value : float
        What follows an array's end. A sample whose dtype does not have it (-1 in uint8, 0.5 in
        int64) is a bad one.
    max_len : int, optional
        With ``"pad"`` the length of every row in every batch: ``(batch, max_len, ...)``. Longer
        arrays are cut, with ``"nested"`` too; ``"<name>_len"`` is what is left.
    dtype : {"bool", "uint8", ..., "int64", "float16", "bfloat16", "float32", "float64"}, optional
        With `shape`: the field has no header, only elements in C order, little-endian.
    shape : tuple of int, optional
        The shape of each array; one dimension may be -1, for as many as there are. A number of
        bytes that does not fit is a `BadSample`. Without -1, batches are always one tensor.

    Notes
    -----
    Padded and nested arrays must agree in dtype and in all dimensions but the first. What most of a
    batch has counts (of equally many, what comes first in it); a sample that differs is a
    `BadSample`. A batch in which no sample has an array is float32 and has no further dimensions,
    unless `dtype` and `shape` tell them.

    With `map`, it is what `map` gives that is padded or nested: arrays, lists of numbers, or text.
    They must agree, or the loop gets an `Invalid` that names the sample.
    """

    source: str = "npy"
    _: KW_ONLY
    dtype: ArrayDtype | None = None
    shape: int | Sequence[int] | None = None

    def _kind(self) -> dict[str, Any]:
        return {"type": "npy", "ragged": self._ragged(), "raw": self._raw()}

    def _raw(self) -> dict[str, Any] | None:
        if self.dtype is None and self.shape is None:
            return None
        if self.dtype is None or self.shape is None:
            raise Invalid(
                "dtype= and shape= come together: they tell what bytes without a header are; give "
                "both, or neither for NumPy files"
            )
        shape = self.shape if isinstance(self.shape, (tuple, list)) else (self.shape,)
        sides = [whole("shape", side, -1, INT64[1]) for side in shape]
        return {
            "dtype": word("dtype", self.dtype, ArrayDtype),
            "shape": [None if side == -1 else side for side in sides],
        }


@dataclass(frozen=True, repr=False)
class Bytes(Field):
    """The bytes as they are: a list of bytes, or a sequence of memoryviews.

    Parameters
    ----------
    copy : bool
        False gives read-only memoryviews of the daemon's shared memory, without any copy. Each is
        made when you look at it. They stay valid for as long as you keep them, after ``close()``
        and without the daemon. While you keep many batches of them, further ones are copied so
        that the loader can go on.
    """

    _: KW_ONLY
    copy: bool = True

    def _kind(self) -> dict[str, Any]:
        flag("copy", self.copy)
        return {"type": "bytes"}


def specification(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """The fields as the native side reads them.

    Raises
    ------
    Invalid
        For names that cannot be names of fields, and values that are none.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise Invalid("fields= takes a dict such as {'image': forebay.Image('jpg')}, or None")
    for name, field in fields.items():
        if text("the name of a field", name, "use a word").startswith("__"):
            raise Invalid(f"{name!r} cannot name a field: use text that does not start with '__'")
        if not isinstance(field, Field):
            raise Invalid(
                f"field {name!r} is {field!r}; use forebay.Image, Int, Float, Label, Text, Json, "
                "Npy or Bytes",
                {"field": name},
            )
        if name.endswith("_present") and name[: -len("_present")] in fields:
            raise Invalid(f"the name {name!r} is taken for an optional field; choose another")
        rows = fields.get(name.removesuffix("_len")) if name.endswith("_len") else None
        if isinstance(rows, Rows) and rows.has_lengths:
            raise Invalid(f"the name {name!r} is taken for lengths of rows; choose another")
    return [field._specification(name) for name, field in fields.items()]


def _path(path: Any) -> str | None:
    return None if path is None else text("path", path, "name keys, as in 'a.b.0'")
