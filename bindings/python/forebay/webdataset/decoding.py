"""Decoding field by field, from bytes to values: the stage ``decode``.

For each field the functions are asked in turn, and the first result other than None counts. A
field that no function decodes stays bytes.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay.errors import BadSample, Invalid
from forebay.webdataset import environment

__all__ = ["Continue", "Decoder", "gzfilter", "handle_extension", "imagehandler"]

# Takes a field's name, with a dot before it, and its bytes.
FieldDecoder = Callable[[str, Any], Any]

# Suffixes of images: those that webdataset lists, which Pillow reads.
_IMAGES = """
    apng blp bmp bufr bw cur dcx dds dib emf eps fit fits flc fli ftc ftu gbr gif grib h5 hdf
    icb icns ico iim im j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx mpeg mpg msp pbm pcd pcx pgm
    png pnm ppm ps psd pxr ras rgb rgba sgi tga tif tiff vda vst webp wmf xbm xpm
"""
_IMAGE_SUFFIXES = frozenset(_IMAGES.split())

# The largest value of a channel, which "float" makes 1.
_WHITE = 255.0

# A .ten file is made of chunks: eight bytes of magic, eight of length, then the data, up to a
# multiple of 64. Chunks come in pairs, a header of int64 (dtype, name, dimensions, shape) and data.
_TEN_MAGIC = b"~TenBin~"
_TEN_HEAD = struct.Struct("=8sq")
_TEN_ALIGNED = 64
_TEN_DTYPES = frozenset(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])


@dataclass(frozen=True)
class Continue:
    """Result of a decoder that leaves the rest to those after it, as gunzipping does.

    Parameters
    ----------
    key : str
        The field's name from here on, with a dot before it.
    data : bytes
        Its data from here on.
    """

    key: str
    data: Any


def _module(name: str, package: str, needed_by: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Invalid(
            f"{needed_by} needs {package}, which cannot be imported ({error}); install it, or "
            "leave that field out with only="
        ) from error


def _extension(key: str) -> str:
    return key.rpartition(".")[2]


# Images


@dataclass(frozen=True)
class _Image:
    """Decoder of images by Pillow, to `kind` of `mode`."""

    spec: str
    kind: str
    mode: str
    scaled: bool

    def __call__(self, key: str, data: bytes) -> Any:
        if _extension(key).lower() not in _IMAGE_SUFFIXES:
            return None
        pillow = _module("PIL.Image", "Pillow", f"decode({self.spec!r})")
        with io.BytesIO(data) as file, pillow.open(file) as image:
            image = image.convert(self.mode)
        if self.kind == "pil":
            return image
        numpy = _module("numpy", "NumPy", f"decode({self.spec!r})")
        pixels = numpy.asarray(image)
        if self.scaled:
            pixels = pixels.astype(numpy.float32) / _WHITE
        if self.kind == "numpy":
            return pixels
        torch = _module("torch", "torch", f"decode({self.spec!r})")
        return torch.from_numpy((pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels).copy())


def _image_specs() -> dict[str, _Image]:
    specs = {}
    for mode in ("l", "rgb", "rgba"):
        for kind, prefix in (("numpy", ""), ("torch", "torch"), ("pil", "pil")):
            name = f"{prefix}{mode}"
            specs[name] = _Image(name, kind, mode.upper(), kind != "pil")
            if kind != "pil":
                specs[f"{name}8"] = _Image(f"{name}8", kind, mode.upper(), False)
    for short in ("torch", "pil"):
        specs[short] = specs[f"{short}rgb"]
    return specs


_IMAGE_SPECS = _image_specs()


def imagehandler(imagespec: str) -> FieldDecoder:
    """Decodes images.

    Parameters
    ----------
    imagespec : str
        ``l``, ``rgb`` or ``rgba``: float32 NumPy arrays from 0 to 1, of shape ``(height, width)``
        or ``(height, width, channels)``; with ``8`` behind it, uint8 from 0 to 255. With ``torch``
        before it, tensors of shape ``(height, width)`` or ``(channels, height, width)``. With
        ``pil`` before it, images of Pillow. ``torch`` and ``pil`` alone mean ``rgb``.

    Raises
    ------
    Invalid
        For any other text.
    """
    try:
        return _IMAGE_SPECS[imagespec]
    except KeyError:
        raise Invalid(
            f"{imagespec!r} is not an image format; use one of {', '.join(_IMAGE_SPECS)}"
        ) from None


def handle_extension(extensions: str, f: Callable[[Any], Any]) -> FieldDecoder:
    """Decodes the fields of some names by one function of their bytes.

    Parameters
    ----------
    extensions : str
        Names of fields, separated by spaces, in any case; ``seg.jpg`` means such fields alone,
        ``jpg`` also ``seg.jpg``.
    f : callable
        A function of the bytes.
    """
    wanted = [name.split(".") for name in extensions.lower().split()]
    return partial(_by_extension, wanted, f)


def _by_extension(wanted: list[list[str]], f: Callable[[Any], Any], key: str, data: Any) -> Any:
    parts = key.lower().split(".")
    fits = any(parts[-len(name) :] == name for name in wanted)
    return f(data) if fits else None


# Everything else


def gzfilter(key: str, data: bytes) -> Continue | None:
    """Unpacks fields whose name ends in ``.gz`` and leaves the rest to the decoders after it."""
    return Continue(key[: -len(".gz")], gzip.decompress(data)) if key.endswith(".gz") else None


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _runs_code(what: str) -> None:
    if environment.secure():
        raise Invalid(f"{what} may run code, which WDS_SECURE=1 forbids; leave it out with only=")


def unpickle(data: bytes) -> Any:
    """Return a pickled value. It may run any code: read no shards of people you do not trust."""
    _runs_code("pickled data")
    return pickle.loads(data)


def _torch_load(data: bytes) -> Any:
    _runs_code("a .pth file")
    torch = _module("torch", "torch", "a .pth field")
    only = environment.weights_only()
    return torch.load(io.BytesIO(data), weights_only=only, map_location="cpu")


def _npy(data: bytes) -> Any:
    return _module("numpy.lib.format", "NumPy", "a .npy field").read_array(io.BytesIO(data))


def _npz(data: bytes) -> Any:
    return dict(_module("numpy", "NumPy", "an .npz field").load(io.BytesIO(data)))


def _msgpack(data: bytes) -> Any:
    return _module("msgpack", "msgpack", "a MessagePack field").unpackb(data)


def _cbor(data: bytes) -> Any:
    return _module("cbor", "cbor", "a .cbor field").loads(data)


def _ten(data: bytes) -> list[Any]:
    numpy = _module("numpy", "NumPy", "a .ten field")
    chunks, at = [], 0
    while at < len(data):
        magic, size = _TEN_HEAD.unpack_from(data, at)
        at += _TEN_HEAD.size
        if magic != _TEN_MAGIC or not 0 <= size <= len(data) - at:
            raise ValueError(f"this is not a .ten file: no chunk begins at byte {at}")
        chunks.append(data[at : at + size])
        at += -(-size // _TEN_ALIGNED) * _TEN_ALIGNED
    arrays = []
    for head, body in zip(chunks[::2], chunks[1::2], strict=True):
        dtype, _, dimensions, *shape = numpy.frombuffer(head, "i8").tolist()
        name = struct.pack("=q", dtype).rstrip(b"\0").decode("ascii")
        if name not in _TEN_DTYPES:
            raise ValueError(f"a .ten file of {name!r} is not supported")
        shape = shape[:dimensions]
        arrays.append(numpy.frombuffer(body, name).reshape(shape))
    return arrays


_BASIC: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("pkl", "pickle", "pyd"), unpickle),
    **dict.fromkeys(("ten", "tb"), _ten),
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "pth": _torch_load,
    "npy": _npy,
    "npz": _npz,
    "cbor": _cbor,
}


def basichandlers(key: str, data: bytes) -> Any:
    """Decodes text, numbers, JSON, arrays and the like by the field's last suffix."""
    decoder = _BASIC.get(_extension(key))
    return None if decoder is None else decoder(data)


def _metadata(value: Any) -> Any:
    """Return a sample's metadata as text, if possible."""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


class Decoder:
    """Decodes the fields of a sample.

    Parameters
    ----------
    handlers : list
        Texts for `imagehandler`, and functions of a field's name (with a dot before it) and bytes.
    pre, post : list of callable, optional
        Asked before and after them; by default `gzfilter` and `basichandlers`.
    only : str or list of str, optional
        The fields to decode.
    partial : bool
        True accepts fields that are not bytes; they stay as they are.
    """

    def __init__(
        self,
        handlers: Sequence[str | FieldDecoder],
        pre: Sequence[FieldDecoder] | None = None,
        post: Sequence[FieldDecoder] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
    ) -> None:
        main = [imagehandler(one) if isinstance(one, str) else one for one in handlers]
        before = [gzfilter] if pre is None else list(pre)
        after = [basichandlers] if post is None else list(post)
        self._handlers: list[FieldDecoder] = [*before, *main, *after]
        for one in self._handlers:
            if not callable(one):
                raise Invalid(f"{one!r} decodes nothing; give functions of a name and bytes")
        names = only.split() if isinstance(only, str) else only
        self._only = None if names is None else frozenset(names)
        self._partial = partial

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with its fields decoded.

        Raises
        ------
        BadSample
            Naming the field that cannot be decoded.
        """
        if not isinstance(sample, dict):
            raise Invalid(f"decode works on dicts, not on {type(sample).__name__}; put it earlier")
        return {name: self._field(sample, name, value) for name, value in sample.items()}

    def _field(self, sample: dict[str, Any], name: str, value: Any) -> Any:
        if name.startswith("__"):
            return _metadata(value)
        if self._only is not None and name not in self._only:
            return value
        if self._partial and value is not None and not isinstance(value, bytes):
            return value
        try:
            if not isinstance(value, bytes):
                raise TypeError(f"it is {type(value).__name__}, not bytes")
            return self._value(f".{name}", value)
        except Invalid:
            # A missing package is not the sample's fault.
            raise
        except Exception as error:
            places = {"url": sample.get("__url__"), "key": sample.get("__key__"), "field": name}
            shown = ", ".join(f"{place}={where}" for place, where in places.items())
            raise BadSample(
                f"the field cannot be decoded: {type(error).__name__}: {error} ({shown})",
                {place: str(where) for place, where in places.items()},
            ) from error

    def _value(self, key: str, value: Any) -> Any:
        for handler in self._handlers:
            found = handler(key, value)
            if isinstance(found, Continue):
                key, value = found.key, found.data
            elif found is not None:
                return found
        return value
