"""Fields of a sample: the values of ``DataLoader(fields={...})``.

Every field names its sources, the file extensions it comes from: ``"jpg;jpeg;png"`` takes the first
one present. A sample without any is a `BadSample`, unless ``optional=True``.
"""

from __future__ import annotations

import dataclasses
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
ImageDtype = Literal["uint8", "uint16", "float16", "bfloat16", "float32"]
Mode = Literal["rgb", "gray", "palette"]
Interpolation = Literal["bilinear", "nearest"]
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
    "complex64",
    "complex128",
]
Ragged = Literal["list", "pad", "nested"]
# Arguments of an image that decide its crop.
_CROPPED = ("size", "crop", "flip", "scale", "ratio", "resize", "views")
# Range of a class's number.
INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, repr=False)
class Field:
    """One field of a sample. Use a subclass; each takes these parameters and its own.

    Parameters
    ----------
    source : str
        File extensions, alternatives separated by ``;``. Case and a leading dot are ignored.
    optional : bool
        True if a sample may lack the field, or the part of it that `path` names. Lists then hold
        ``None`` for it, tensors a row of zeros (or one of length 0, with `ragged`), and
        ``batch["<name>_present"]`` (bool, shape ``(batch,)``) marks the rows that have it.
    map : callable, optional
        Called with each value, in the loader's workers. Results become one tensor if they are
        tensors of one shape and dtype, or numbers; otherwise, and if a value is missing, they stay
        a list.

    Raises
    ------
    Invalid
        For invalid values.
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
        """Return the field for the native side."""
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
            # Compared by their text: arrays have no single answer to equality.
            if repr(value) != repr(field.default):
                given.append(f"{field.name}={value!r}")
        return f"forebay.{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, repr=False)
class Image(Field):
    """A JPEG, PNG or WebP image: a tensor of shape ``(batch, 3, height, width)``.

    A PNG of 16 bits a channel keeps them, unless `dtype` is uint8.

    Parameters
    ----------
    size : int or (int, int), optional
        Height and width in pixels; one number for a square. None keeps each image's own size,
        which gives a list of tensors unless they agree.
    crop : {"random", "center", None}
        ``"random"``: a part of random size and shape, as torchvision's ``RandomResizedCrop``, a
        function of seed, epoch and position alone. ``"center"``: the middle. None: the whole
        image, squeezed to `size` if given.
    flip : bool
        Mirror half of the samples, drawn at random.
    dtype : {"uint8", "uint16", "float16", "bfloat16", "float32"}
        uint8 is 0...255, uint16 0...65535; the others are 0...1, then normalised.
    mode : {"rgb", "gray", "palette"}
        ``"gray"``: brightness, one channel. ``"palette"``: the numbers that a PNG with a palette,
        or in gray, stores, such as those of classes; one channel, uint8 or uint16.
    interpolation : {"bilinear", "nearest"}, optional
        Values between pixels of a resized image. None: "nearest" for a palette, else "bilinear".
    crop_with : str, optional
        Name of another `Image` of `fields`: this one is cropped and mirrored as that one, sample by
        sample. Its `crop`, `flip`, `scale`, `ratio`, `resize` and `views` apply here, and its
        `size` unless one is given. For images and masks of one size.
    layout : {"NCHW", "NHWC"}
        Channels before or after height and width.
    mean, std : (float, float, float), optional
        Per channel (red, green, blue; one for gray), on the scale 0...1: subtracted, then divided
        by. Both or neither.
    scale, ratio : (float, float)
        For ``"random"``: share of the image's area, and width divided by height.
    resize : int, optional
        For ``"center"``: length of the shorter side in pixels before the cut. None cuts without
        resizing and pads smaller images with black.
    views : int, optional
        Number of crops of each image, which is decoded once: a tensor of shape
        ``(batch, views, 3, height, width)``, for methods that compare views of one image. Each has
        its own draws; the first equals the one without `views`.
    quality : {"exact", "fast"}
        ``"exact"``: the pixels of Pillow and torchvision. ``"fast"``: a JPEG shrunk to less than
        half
        its size is decoded at a half, a quarter or an eighth, without smoothing its colours. It is
        worth it for photos much larger than `size`, and differs by a few of 255 steps on average.
    exif : bool
        Apply the camera's orientation. Otherwise it is ignored, as in torchvision and Pillow.
    """

    source: str = "jpg;jpeg;png"
    _: KW_ONLY
    size: int | tuple[int, int] | None = None
    crop: Crop | None = None
    flip: bool = False
    dtype: ImageDtype = "uint8"
    mode: Mode = "rgb"
    interpolation: Interpolation | None = None
    crop_with: str | None = None
    layout: Layout = "NCHW"
    mean: Sequence[float] | float | None = None
    std: Sequence[float] | float | None = None
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    resize: int | None = None
    views: int | None = None
    quality: Quality = "exact"
    exif: bool = False

    def _kind(self) -> dict[str, Any]:
        # The size that a crop or views need may be that of another field.
        awaits = self.crop_with is not None and self.size is None
        return {
            "type": "image",
            "size": self._size(),
            "crop": {"mode": "none"} if awaits else self._crop(),
            "flip": flag("flip", self.flip),
            "dtype": word("dtype", self.dtype, ImageDtype),
            "layout": word("layout", self.layout, Layout),
            "mode": word("mode", self.mode, Mode),
            "interpolation": self._interpolation(),
            "crop_with": self.crop_with,
            "mean": None if self.mean is None else self._moments("mean", self.mean),
            "std": None if self.std is None else self._moments("std", self.std),
            "views": None if self.views is None or awaits else self._views(),
            "quality": word("quality", self.quality, Quality),
            "exif": flag("exif", self.exif),
        }

    def _interpolation(self) -> str:
        if self.interpolation is None:
            return "nearest" if self.mode == "palette" else "bilinear"
        return word("interpolation", self.interpolation, Interpolation)

    def _moments(self, name: str, given: Any) -> tuple[float, ...]:
        if self.mode != "gray":
            return numbers(name, given, 3)
        one = given if isinstance(given, (tuple, list)) else (given,)
        # Only the first counts.
        return numbers(name, one, 1) * 3

    def following(self, fields: Mapping[str, Field]) -> Image:
        """Return the field with the crop of the one that `crop_with` names."""
        if self.crop_with is None:
            return self
        leader = fields.get(text("crop_with", self.crop_with, "name a field"))
        if not isinstance(leader, Image) or leader is self or leader.crop_with is not None:
            raise Invalid(
                f"crop_with={self.crop_with!r} names no image that is cropped by itself; name "
                "another Image of fields=, without crop_with",
                {"option": "crop_with"},
            )
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        taken = {name: getattr(leader, name) for name in _CROPPED}
        for name, value in taken.items():
            own = getattr(self, name)
            if own == plain[name]:
                continue
            if own != value and name != "size":
                raise Invalid(
                    f"{name}={own!r} differs from {value!r} of {self.crop_with!r}, with which the "
                    "image is cropped; leave it out",
                    {"option": name},
                )
            taken[name] = own
        return dataclasses.replace(self, **taken)

    def _views(self) -> int:
        return whole("views", self.views, 1, _native.VIEWS_MAX)

    def _size(self) -> tuple[int, int] | None:
        if self.size is None:
            return None
        pair = self.size if isinstance(self.size, (tuple, list)) else (self.size, self.size)
        if len(pair) != 2:
            raise Invalid(
                f"size={self.size!r} is not a size; give pixels, as in 224 or (height, width)"
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
        Path in the document, as in ``"a.b.0"``.
    """

    _: KW_ONLY
    path: str | None = None

    def _kind(self) -> dict[str, Any]:
        return {"type": "int", "path": _path(self.path)}


@dataclass(frozen=True, repr=False)
class Label(Field):
    """Number of a named class, int64, shape ``(batch,)``.

    Parameters
    ----------
    classes : sequence of str, or mapping of str to int
        The names; in a sequence, the place of a name is its number. A sample with another name is
        bad. Surrounding white space is ignored, case is not.
    path : str, optional
        Path of the name in a JSON document, as in ``"a.b.0"``.
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
        elif not (isinstance(self.classes, Sequence) or hasattr(self.classes, "shape")):
            kind = type(self.classes).__name__
            raise Invalid(
                f"classes= is a {kind}, which has no lasting order; give a list, whose order gives "
                "the numbers, or a dict"
            )
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
        Path in the document, as in ``"a.b.0"``.
    dtype : {"float32", "float64"}
        Type of the tensor.
    """

    _: KW_ONLY
    path: str | None = None
    dtype: FloatDtype = "float32"

    def _kind(self) -> dict[str, Any]:
        dtype = word("dtype", self.dtype, FloatDtype)
        return {"type": "float", "path": _path(self.path), "dtype": dtype}


@dataclass(frozen=True, repr=False)
class Rows(Field):
    """A field with rows of different length. Use `Text` or `Npy`."""

    _: KW_ONLY
    ragged: Ragged = "list"
    pad_value: float = 0
    max_len: int | None = None

    @property
    def has_lengths(self) -> bool:
        """True if a batch has a ``"<name>_len"`` for it."""
        return self.ragged != "list"

    @property
    def is_nested(self) -> bool:
        """True if its rows become a nested tensor."""
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
            # Results of map= are packed after it, see _ragged.py.
            return {"mode": "list"}
        given: dict[str, Any] = {"mode": mode, "max_len": longest}
        # As text: JSON has no infinities.
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
        Value after a text's end, 0 to 255.
    max_len : int, optional
        With ``"pad"`` the length of every row in every batch: shape ``(batch, max_len)``. Longer
        texts are cut, never within a character; with ``"nested"`` too.

    Notes
    -----
    With `map`, which receives the str, the results of `map` are padded or nested, such as numbers
    of tokens; see `Npy` for the rules.
    """

    def _kind(self) -> dict[str, Any]:
        return {"type": "text", "ragged": self._ragged()}


@dataclass(frozen=True, repr=False)
class Json(Field):
    """A JSON document, or the part of it at `path`: a list of results of ``json.loads``.

    Parameters
    ----------
    path : str, optional
        Path of the requested part, as in ``"a.b.0"``.
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
        Treatment of arrays of different length. ``"list"``: a tensor of shape
        ``(batch, ...)`` if all agree in shape and dtype, else a list of tensors. ``"pad"``: always
        a tensor ``(batch, longest, ...)``; each array is padded at the end of its first dimension
        to the longest of the batch. ``"nested"``: a nested tensor (``layout=torch.jagged``) over
        one buffer, torch only. Both give ``batch["<name>_len"]``, int64 ``(batch,)``: the length of
        each array, 0 for an empty or missing one.
    pad_value : float
        Value after an array's end. A sample whose dtype cannot hold it (-1 in uint8, 0.5 in int64)
        is bad.
    max_len : int, optional
        With ``"pad"`` the length of every row in every batch: ``(batch, max_len, ...)``. Longer
        arrays are cut, with ``"nested"`` too; ``"<name>_len"`` is the length after cutting.
    dtype : {"bool", "uint8", ..., "int64", "float16", ..., "float64", "complex64", "complex128"}
        With `shape`: the field has no header, only elements in C order, little-endian.
    shape : tuple of int, optional
        Shape of each array; one dimension may be -1 and follows from the number of bytes. A wrong
        number of bytes is a `BadSample`. Without -1, batches are always one tensor.

    Notes
    -----
    Padded and nested arrays must agree in dtype and in all dimensions but the first. The form of
    most arrays of a batch counts (the first among equals); a sample that differs is a `BadSample`.
    A batch without any array is float32 and has no further dimensions, unless `dtype` and `shape`
    give them.

    With `map`, the results of `map` are padded or nested: arrays, lists of numbers, or text.
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
                "dtype= and shape= come together: they describe bytes without a header; give "
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
    """The bytes unchanged: a list of bytes, or a sequence of memoryviews.

    Parameters
    ----------
    copy : bool
        False gives read-only memoryviews of the daemon's shared memory, without any copy. Each is
        made when accessed. They stay valid for as long as you keep them, after ``close()`` and
        without the daemon. While you keep many batches of them, further ones are copied so that the
        loader can continue.
    """

    _: KW_ONLY
    copy: bool = True

    def _kind(self) -> dict[str, Any]:
        flag("copy", self.copy)
        return {"type": "bytes"}


def specification(fields: Mapping[str, Field]) -> list[dict[str, Any]]:
    """Return the fields for the native side.

    Raises
    ------
    Invalid
        For invalid names and values of fields.
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
    return [field._specification(name) for name, field in cropped(fields).items()]


def cropped(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields, with the crops that ``crop_with`` of images stands for."""
    return {
        name: field.following(fields) if isinstance(field, Image) else field
        for name, field in fields.items()
    }


def _path(path: Any) -> str | None:
    return None if path is None else text("path", path, "name keys, as in 'a.b.0'")
