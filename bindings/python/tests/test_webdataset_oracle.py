"""Comparison of `forebay.webdataset` with the released webdataset on the same shards.

The tests compare streams, groups, decoded values, batches and the places of errors. A table lists
the intended differences by name; a test fails if a listed difference does not exist.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import random
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import webdataset
from PIL import Image
from webdataset import tenbin
from webdataset.tariterators import base_plus_ext

from conftest import Sample, write_shard
from forebay import webdataset as ours

HOSTILE = Path(__file__).parents[3] / "cache/shard/tests/hostile"

pytestmark = [
    pytest.mark.usefixtures("closed_files"),
    # webdataset leaves files open until garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

# Placeholder of an error in a stream.
ERROR = "error"

Chain = Callable[[Any, Any], Any]


def plain(value: Any) -> Any:
    """Return a value that ``==`` compares completely, with types, dtypes and shapes."""
    if isinstance(value, torch.Tensor):
        return "tensor", plain(value.numpy())
    if isinstance(value, numpy.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Image.Image):
        return "image", value.mode, value.size, value.tobytes()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(one) for one in value]
    return type(value).__name__, value


def stream(make: Callable[[Callable[[Exception], bool]], Iterable[Any]], go_on: bool) -> list[Any]:
    """Return the samples of a pipeline, with its handler's errors in their places."""
    found: list[Any] = []

    def handler(error: Exception) -> bool:
        found.append(ERROR)
        return go_on

    try:
        found.extend(plain(sample) for sample in make(handler))
    except Exception:
        found.append("raised")
    return found


def both(make: Chain, go_on: bool = True) -> tuple[list[Any], list[Any]]:
    """Return the streams of both libraries for the same pipeline."""
    return (
        stream(lambda handler: make(ours, handler), go_on),
        stream(lambda handler: make(webdataset, handler), go_on),
    )


def read(library: Any, urls: Any, handler: Any, **options: Any) -> Any:
    settings = {"shardshuffle": False, "empty_check": False} | options
    return library.WebDataset(urls, handler=handler, **settings)


# Valid shards


def names(dice: random.Random) -> Iterable[str]:
    """Yield names of members, regular and odd ones."""
    while True:
        folder = dice.choice(["", "", "a/", "./", "a.b/", "x/y.z/", "__m__/", ".h/", "ü/"])
        key = dice.choice(["s", "S", "t", "__k", "né", "n n", "l" * 120, ""]) + dice.choice("123")
        dots = dice.choice(
            [".jpg", ".JPG", ".seg.png", ".cls", "..x", ".", "", ".tar.gz", ".Ä", ".a\nb"]
        )
        yield folder + dice.choice([key, key, key, "__meta__", ".hidden"]) + dots


def generated(path: Path, dice: random.Random) -> str:
    """Write a shard of random members, in which no sample has a field twice; return its path."""
    kind = dice.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    packed = dice.random() < 0.3
    open_key, fields = None, set()
    with tarfile.open(path, "w:gz" if packed else "w", format=kind) as tar:
        for name, _ in zip(names(dice), range(dice.randrange(80)), strict=False):
            if kind == tarfile.USTAR_FORMAT and len(name) > tarfile.LENGTH_NAME // 2:
                continue
            member = tarfile.TarInfo(name)
            if dice.random() < 0.1:
                member.type = dice.choice([tarfile.DIRTYPE, tarfile.FIFOTYPE])
                tar.addfile(member)
                continue
            key, suffix = base_plus_ext(name)
            if key is not None and not name.startswith("__m"):
                fields = fields if key == open_key else set()
                if suffix.lower() in fields:
                    continue
                open_key = key
                fields.add(suffix.lower())
            data = dice.randbytes(dice.choice([0, 1, 511, 512, 513, dice.randrange(3000)]))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


@pytest.mark.parametrize("seed", range(8))
def test_members_are_grouped_as_in_webdataset(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    urls = [generated(tmp_path / f"{number}.tar", dice) for number in range(6)]
    mine, theirs = both(lambda library, handler: read(library, urls, handler))
    assert ERROR not in theirs
    assert theirs
    assert mine == theirs


# Invalid shards. The table gives the reason of each difference, and Forebay's stream: keys, and
# errors between them. Forebay does not deliver the last sample of a truncated shard, which may lack
# members.
SILENT = "webdataset drops the rest of the shard silently"
LENIENT = "webdataset accepts members that tar readers interpret differently"
FIRST_WINS = "webdataset delivers the rest of a sample that it reported as bad"
LINKS = "webdataset drops links silently"
NEVER_ENDS = "webdataset reads without end, or for the announced gigabytes"
DIFFERENT: dict[str, tuple[str, list[str]]] = {
    "bad-checksum": (SILENT, [ERROR]),
    "truncated-in-header": (SILENT, [ERROR]),
    "truncated-at-member": (SILENT, ["a", ERROR]),
    "joined": (SILENT, ["a", ERROR]),
    "malformed-pax": (SILENT, [ERROR]),
    "negative-size": (LENIENT, [ERROR]),
    "global-path": (LENIENT, [ERROR]),
    "gnu-sparse": (LENIENT, [ERROR]),
    "pax-sparse": (LENIENT, [ERROR]),
    "two-long-names": (LENIENT, [ERROR]),
    "two-long-links": (LENIENT, [ERROR]),
    "links": (LINKS, ["b", "dir/c", "dir/d", "e", "f"]),
    "link-forward": (LINKS, [ERROR]),
    "link-outside": (LINKS, ["a", ERROR]),
    "not-utf8": (LENIENT, [ERROR, ERROR, "b"]),
    "duplicate-field": (FIRST_WINS, [ERROR, "b"]),
    "reserved-field": (FIRST_WINS, [ERROR, "b"]),
    "truncated-in-member": (FIRST_WINS, [ERROR]),
    "huge-pax": (NEVER_ENDS, [ERROR]),
    "huge-pax-size": (NEVER_ENDS, [ERROR]),
}


def around(shard_of: Callable[..., str], shard: str) -> list[str]:
    """Return a shard between two good ones, which have more samples than one batch."""
    good = [(f"k{number:02}", {"txt": b"1", "cls": b"2"}) for number in range(20)]
    return [shard_of(good), shard, shard_of(good)]


@pytest.mark.parametrize("go_on", [True, False])
@pytest.mark.parametrize("name", sorted(path.stem for path in HOSTILE.glob("*.tar")))
def test_hostile_shard_matches_webdataset_or_the_table(
    name: str, go_on: bool, shard_of: Callable[..., str]
) -> None:
    urls = around(shard_of, str(HOSTILE / f"{name}.tar"))

    def make(library: Any, handler: Any) -> Any:
        return read(library, urls, handler)

    mine = stream(lambda handler: make(ours, handler), go_on)
    why, wanted = DIFFERENT.get(name, ("", []))
    if why != NEVER_ENDS:
        theirs = stream(lambda handler: make(webdataset, handler), go_on)
        assert (mine != theirs) == bool(why)
    if why:
        keys = [one if one == ERROR else one["__key__"][1] for one in mine]
        good = [f"k{number:02}" for number in range(20)]
        if go_on or ERROR not in wanted:
            assert keys == [*good, *wanted, *good]
        else:
            assert keys == [*good, *wanted[: wanted.index(ERROR) + 1]]


@pytest.mark.parametrize("attempt", range(20))
def test_error_keeps_its_place_despite_prefetching(
    attempt: int, shard_of: Callable[..., str]
) -> None:
    # The fault of a compressed shard is found while earlier batches are still being read.
    urls = around(shard_of, str(HOSTILE / "gzip.tar"))
    mine = stream(lambda handler: read(ours, urls, handler), go_on=True)
    keys = [one if one == ERROR else one["__key__"][1] for one in mine]
    good = [f"k{number:02}" for number in range(20)]
    assert keys == [*good, ERROR, *good]


@pytest.mark.parametrize("go_on", [True, False])
@pytest.mark.parametrize("size", [5, 20])
@pytest.mark.parametrize(
    "pattern",
    [
        "x",
        "xo",
        "ox",
        "oxo",
        "oxxo",
        "xx",
        "ooxoxxo",
        "oexo",
        "exe",
        "oxex",
        "oooo",
        "o" * 12 + "xo",
    ],
)
def test_missing_shards_are_reported_in_their_places(
    pattern: str, size: int, go_on: bool, tmp_path: Path
) -> None:
    # o is a shard, e is a shard without members, x is a missing shard.
    urls = [str(tmp_path / f"{place}.tar") for place in range(len(pattern))]
    for place, kind in enumerate(pattern):
        samples = [(f"s{place}-{row}", {"txt": b"1"}) for row in range(size if kind == "o" else 0)]
        if kind != "x":
            write_shard(Path(urls[place]), samples)
    mine, theirs = both(lambda library, handler: read(library, urls, handler), go_on)
    missing = pattern.count("x")
    assert theirs.count(ERROR) == (missing if go_on else min(missing, 1))
    assert mine == theirs


def test_bzip2_and_xz_are_rejected_with_advice(shard_of: Callable[..., str]) -> None:
    import bz2
    import lzma

    for pack, word in ((bz2.compress, "bzip2"), (lzma.compress, "xz")):
        path = Path(shard_of([("s", {"txt": b"1"})]))
        path.write_bytes(pack(path.read_bytes()))
        heard: list[Exception] = []

        def handler(error: Exception, heard: list[Exception] = heard) -> bool:
            heard.append(error)
            return True

        assert list(read(ours, str(path), handler)) == []
        assert [word in str(error) and "zstd" in str(error) for error in heard] == [True]


# Decoded samples and chains


def image(mode: str, kind: str) -> bytes:
    dice = numpy.random.default_rng(len(mode))
    pixels = dice.integers(0, 256, (5, 7, 3), dtype=numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def encoded(write: Callable[[Any, io.BytesIO], Any], value: Any) -> bytes:
    file = io.BytesIO()
    write(value, file)
    return file.getvalue()


ARRAY = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)


def gz(data: bytes) -> bytes:
    import gzip

    return gzip.compress(data)


FIELDS: Sample = {
    "png": image("RGB", "png"),
    "gray.png": image("L", "png"),
    "alpha.png": image("RGBA", "png"),
    "palette.png": image("P", "png"),
    "jpg": image("RGB", "jpeg"),
    "gray.jpeg": image("L", "jpeg"),
    "bmp.gz": gz(image("RGB", "bmp")),
    "webp": image("RGB", "webp"),
    "txt": "text é".encode(),
    "transcript": b"said",
    "cls": b"7",
    "id": b" 12\n",
    "json": json.dumps({"a": [1, 2.5, None]}).encode(),
    "json.gz": gz(b'{"b": 1}'),
    "pyd": pickle.dumps({"c": 1}),
    "pickle": pickle.dumps([1]),
    "pth": encoded(torch.save, {"t": torch.arange(3)}),
    "npy": encoded(lambda value, file: numpy.save(file, value), ARRAY),
    "npz": encoded(lambda value, file: numpy.savez(file, x=value), ARRAY),
    "ten": bytes(tenbin.encode_buffer([ARRAY, numpy.arange(40, dtype=numpy.int64)])),
    "bin": b"\0\1",
    "": b"no suffix",
    "__note": b"kept",
}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shard whose samples have a field of every kind."""
    path = tmp_path_factory.mktemp("rich") / "rich.tar"
    return write_shard(path, [(f"r{number}", FIELDS) for number in range(3)])


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five shards of 7 small samples; some lack a field, some have a field that does not decode."""
    folder = tmp_path_factory.mktemp("numbered")

    def sample(number: int) -> tuple[str, Sample]:
        fields: Sample = {"cls": str(number).encode(), "txt": f"t{number}".encode()}
        if number % 4:
            fields["npy"] = FIELDS["npy"]
        if number % 5 == 3:
            fields["cls"] = b"none"
        return f"n{number:02}", fields

    return [
        write_shard(folder / f"{shard}.tar", [sample(shard * 7 + row) for row in range(7)])
        for shard in range(5)
    ]


IMAGE_SPECS = (
    "l8 rgb8 rgba8 l rgb rgba torchl8 torchrgb8 torchrgba8 torchl torchrgb torch torchrgba pill "
    "pil pilrgb pilrgba"
)


@pytest.mark.parametrize("spec", IMAGE_SPECS.split())
def test_images_are_decoded_as_in_webdataset(spec: str, rich: str) -> None:
    mine, theirs = both(lambda library, handler: read(library, rich, handler).decode(spec))
    assert theirs
    assert ERROR not in theirs
    assert mine == theirs


def shout(data: bytes) -> str:
    return data.decode().upper()


def unzip(library: Any) -> Callable[[str, bytes], Any]:
    return lambda key, data: library.Continue(key[:-3], b"[1]") if key.endswith(".gz") else None


DECODES: dict[str, Chain] = {
    "nothing": lambda lib, ds: ds.decode(),
    "only": lambda lib, ds: ds.decode("rgb", only=["jpg", "cls"]),
    "only as text": lambda lib, ds: ds.decode("rgb", only="jpg cls"),
    "twice": lambda lib, ds: ds.decode(only="cls").decode("l8", partial=True),
    "not partial": lambda lib, ds: ds.decode(only="cls").decode("l8"),
    "extension": lambda lib, ds: ds.decode(lib.handle_extension("TXT gray.png", bytes.hex)),
    "longer extension": lambda lib, ds: ds.decode(lib.handle_extension("json.gz", bytes.hex)),
    "own first": lambda lib, ds: ds.decode(lambda key, data: key if "png" in key else None),
    "own pre": lambda lib, ds: ds.decode(pre=[unzip(lib)]),
    "no post": lambda lib, ds: ds.decode(post=[]),
    "imagehandler": lambda lib, ds: ds.decode(lib.imagehandler("torchrgb8")),
    "xdecode": lambda lib, ds: ds.xdecode(
        ("*.png", lambda file: len(file.read())), txt=lambda file: 1, cls=False, must_decode=False
    ),
    "xdecode all": lambda lib, ds: ds.xdecode(),
    "xdecode some": lambda lib, ds: ds.rename(keep=False, txt="txt", pyd="pyd").xdecode(),
}


@pytest.mark.parametrize("name", DECODES)
def test_fields_are_decoded_as_in_webdataset(name: str, rich: str) -> None:
    mine, theirs = both(lambda lib, handler: DECODES[name](lib, read(lib, rich, handler)))
    assert mine == theirs
    assert theirs


def fails(number: int) -> Callable[[Any], Any]:
    """Return a function that raises for sample `number`."""

    def function(sample: Any) -> Any:
        text = sample["txt"] if isinstance(sample, dict) else sample
        if text == f"t{number}".encode():
            raise KeyError(number)
        return sample

    return function


def doubled(source: Iterable[Any]) -> Iterable[Any]:
    for sample in source:
        yield sample
        yield sample


def arrays(sample: Any) -> Any:
    return {**sample, "npy": numpy.zeros((int(sample["__key__"][1:]) % 2, 2))}


CHAINS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "to_tuple": lambda lib, ds, h: ds.to_tuple("cls", "txt"),
    "to_tuple of one text": lambda lib, ds, h: ds.to_tuple("npy;txt cls __key__"),
    "to_tuple of one field": lambda lib, ds, h: ds.to_tuple("npy;txt"),
    "to_tuple of a list": lambda lib, ds, h: ds.to_tuple(["npy", "txt"], "cls"),
    "to_tuple, missing": lambda lib, ds, h: ds.to_tuple("npy cls"),
    "to_tuple, missing, told": lambda lib, ds, h: ds.to_tuple("npy cls", handler=h),
    "to_tuple, missing, allowed": lambda lib, ds, h: ds.to_tuple("npy cls", missing_is_error=False),
    "to_tuple, none is an error": lambda lib, ds, h: ds.to_tuple(
        "npy cls", missing_is_error=False, none_is_error=True, handler=h
    ),
    "decode": lambda lib, ds, h: ds.decode("rgb"),
    "decode, told": lambda lib, ds, h: ds.decode("rgb", handler=h),
    "map": lambda lib, ds, h: ds.map(lambda sample: {"only": sample["txt"]}),
    "map to another type": lambda lib, ds, h: ds.map(lambda sample: sample["txt"]),
    "map to none": lambda lib, ds, h: ds.map(lambda s: s if b"3" in s["txt"] else None),
    "map, told": lambda lib, ds, h: ds.map(fails(9), handler=h).map(fails(4), handler=h),
    "map, raised": lambda lib, ds, h: ds.map(fails(9)),
    "map_dict": lambda lib, ds, h: ds.map_dict(txt=shout, cls=len),
    "map_dict, told": lambda lib, ds, h: ds.map_dict(npy=len, handler=h),
    "map_dict of tuples": lambda lib, ds, h: ds.to_tuple("cls txt").map_dict(txt=shout),
    "map_tuple": lambda lib, ds, h: ds.to_tuple("cls txt txt").map_tuple(None, shout),
    "map_tuple, told": lambda lib, ds, h: ds.to_tuple("cls txt").map_tuple(int, handler=h),
    "map_tuple, more functions": lambda lib, ds, h: ds.to_tuple("txt").map_tuple(shout, shout),
    "map_tuple of dicts": lambda lib, ds, h: ds.map_tuple(shout),
    "select": lambda lib, ds, h: ds.select(lambda sample: "npy" in sample),
    "rename": lambda lib, ds, h: ds.rename(text="txt", label="cls"),
    "rename of alternatives": lambda lib, ds, h: ds.rename(x="npy;txt"),
    "rename, keep nothing": lambda lib, ds, h: ds.rename(keep=False, x="txt", key="__key__"),
    "rename, told": lambda lib, ds, h: ds.rename(x="npy", handler=h),
    "rename_keys": lambda lib, ds, h: ds.rename_keys(("a", "*x*"), b="cl?", keep_unselected=True),
    "rename_keys, selected": lambda lib, ds, h: ds.rename_keys(b="cl?"),
    "rename_keys, several fit": lambda lib, ds, h: ds.rename_keys(
        ("a", "cl*"), b="?ls", must_match=False
    ),
    "rename_keys, missing": lambda lib, ds, h: ds.rename_keys(b="npy"),
    "rename_keys, missing allowed": lambda lib, ds, h: ds.rename_keys(b="npy", must_match=False),
    "rename_keys, twice": lambda lib, ds, h: ds.rename_keys(b="*"),
    "extract_keys": lambda lib, ds, h: ds.extract_keys("*.txt", "c*;x"),
    "extract_keys, missing": lambda lib, ds, h: ds.extract_keys("*.npy"),
    "extract_keys, missing allowed": lambda lib, ds, h: ds.extract_keys(
        "*.npy", "txt", ignore_missing=True
    ),
    "extract_keys, twice": lambda lib, ds, h: ds.extract_keys("*.??s;*.txt"),
    "slice": lambda lib, ds, h: ds.slice(3, 20, 2),
    "slice from the start": lambda lib, ds, h: ds.slice(5),
    "slice and map": lambda lib, ds, h: ds.map(fails(9)).slice(5),
    "batched": lambda lib, ds, h: ds.to_tuple("txt cls").batched(4),
    "batched, whole": lambda lib, ds, h: ds.to_tuple("txt cls").batched(4, partial=False),
    "batched, fits": lambda lib, ds, h: ds.to_tuple("txt cls").batched(7, partial=False),
    "batched dicts": lambda lib, ds, h: ds.select(lambda s: "npy" not in s).batched(3),
    "batched, fields differ": lambda lib, ds, h: ds.batched(3),
    "batched numbers": lambda lib, ds, h: ds.map(lambda s: (len(s), 0.5, True, s)).batched(3),
    "batched arrays": lambda lib, ds, h: (
        ds.select(lambda s: "npy" in s).decode(only="npy").batched(4)
    ),
    "batched tensors": lambda lib, ds, h: ds.map(lambda s: (torch.ones(2), s["txt"])).batched(4),
    "batched, shapes differ": lambda lib, ds, h: ds.map(arrays).batched(3),
    "batched, own collation": lambda lib, ds, h: ds.batched(4, collation_fn=len),
    "batched, none": lambda lib, ds, h: ds.batched(4, collation_fn=None),
    "unbatched": lambda lib, ds, h: ds.to_tuple("txt cls").batched(4).unbatched().batched(3),
    "unbatched dicts": lambda lib, ds, h: ds.rename(keep=False, a="txt").batched(4).unbatched(),
    "listed": lambda lib, ds, h: ds.listed(4),
    "unlisted": lambda lib, ds, h: ds.listed(4).unlisted(),
    "compose": lambda lib, ds, h: ds.compose(doubled, doubled),
    "shuffle of nothing": lambda lib, ds, h: ds.shuffle(0),
    "shuffle of one": lambda lib, ds, h: ds.shuffle(1),
    "rsample all": lambda lib, ds, h: ds.rsample(1.0),
    "rsample none": lambda lib, ds, h: ds.rsample(0.0),
    "with_epoch, shorter": lambda lib, ds, h: ds.with_epoch(11),
    "with_epoch, longer": lambda lib, ds, h: ds.with_epoch(100),
    "with_epoch of batches": lambda lib, ds, h: (
        ds.to_tuple("txt").batched(10).with_epoch(nbatches=9)
    ),
    "repeat": lambda lib, ds, h: ds.repeat(2),
    "repeat, cut": lambda lib, ds, h: ds.repeat(3, 50),
    "repeat once, not cut": lambda lib, ds, h: ds.repeat(1, 5),
    "with_length": lambda lib, ds, h: [len(ds.with_length(5, silent=True))],
}


@pytest.mark.parametrize("go_on", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_chain_yields_the_samples_of_webdataset(
    name: str, go_on: bool, numbered: list[str]
) -> None:
    def make(library: Any, handler: Any) -> Any:
        return CHAINS[name](library, read(library, numbered, handler), handler)

    mine, theirs = both(make, go_on)
    assert mine == theirs
    assert theirs or "none" in name


# What a handler asks for: `isinstance(error, KeyError)`.
CAUGHT = (ValueError, KeyError, FileNotFoundError, OSError, tarfile.ReadError)

FAULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "missing shard": lambda lib, ds, h: lib.WebDataset(
        ["/nowhere/0.tar"], handler=h, shardshuffle=False, empty_check=False
    ),
    "cut within a member": lambda lib, ds, h: read(lib, f"{HOSTILE}/truncated-in-member.tar", h),
    "field twice": lambda lib, ds, h: read(lib, f"{HOSTILE}/duplicate-field.tar", h),
    "select raises": lambda lib, ds, h: ds.select(fails(9)),
    "map, own error": lambda lib, ds, h: ds.map(fails(9), handler=h),
    "rename_keys, missing": CHAINS["rename_keys, missing"],
    "rename_keys, twice": CHAINS["rename_keys, twice"],
    "extract_keys, missing": CHAINS["extract_keys, missing"],
    "extract_keys, twice": CHAINS["extract_keys, twice"],
    "to_tuple, missing": CHAINS["to_tuple, missing"],
    "to_tuple, told": CHAINS["to_tuple, missing, told"],
    "to_tuple, none is an error": CHAINS["to_tuple, none is an error"],
    "map_dict, missing": CHAINS["map_dict, told"],
    "rename, missing": CHAINS["rename, told"],
    "several ranks": lambda lib, ds, h: lib.WebDataset("x.tar", handler=h, shardshuffle=False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_are_caught_by_the_classes_of_webdataset(
    name: str, numbered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "several ranks":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")

    def errors(library: Any) -> list[Exception]:
        found: list[Exception] = []

        def handler(error: Exception) -> bool:
            found.append(error)
            return True

        try:
            list(FAULTS[name](library, read(library, numbered, handler), handler))
        except Exception as error:
            found.append(error)
        return found

    mine, theirs = errors(ours), errors(webdataset)
    # Of a cut member the handler of webdataset hears twice.
    assert 0 < len(mine) <= len(theirs)
    for own, other in zip(mine, theirs, strict=False):
        wanted = [kind for kind in CAUGHT if isinstance(other, kind)]
        assert wanted, "webdataset raises something else"
        assert [kind for kind in wanted if not isinstance(own, kind)] == []
        # A text, not its representation.
        assert str(own)[0] not in "'\""
        assert str(pickle.loads(pickle.dumps(own))) == str(own)


def test_error_is_raised_after_the_samples_before_it(numbered: list[str]) -> None:
    for library in (ours, webdataset):
        samples = iter(read(library, numbered, library.reraise_exception).map(fails(9)))
        assert [next(samples)["__key__"] for _ in range(9)] == [f"n{n:02}" for n in range(9)]
        with pytest.raises(KeyError):
            next(samples)


@pytest.mark.parametrize(("size", "initial"), [(2, 100), (10, 100), (10, 4), (1000, 100), (16, 1)])
def test_shuffle_buffers_as_many_samples_as_webdataset(
    size: int, initial: int, numbered: list[str]
) -> None:
    def taken(library: Any) -> list[int]:
        """Return the number of samples read at the delivery of each sample."""
        count = 0

        def counted(source: Iterable[Any]) -> Iterable[Any]:
            nonlocal count
            for sample in source:
                count += 1
                yield sample

        pipeline = read(library, numbered, library.reraise_exception).compose(counted)
        shuffled = pipeline.shuffle(size, initial=initial)
        keys, counts = [], []
        for sample in shuffled:
            keys.append(sample["__key__"])
            counts.append(count)
        assert sorted(keys) == [f"n{number:02}" for number in range(35)]
        assert keys != sorted(keys)
        return counts

    assert taken(ours) == taken(webdataset)


# URLs of shards


def test_url_text_names_the_shards_of_webdataset(
    numbered: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = Path(numbered[0]).parent
    monkeypatch.setenv("WDS_DATA", str(folder))
    monkeypatch.setenv("WDS_NESTED", "${DATA}/{3..4}")
    monkeypatch.setenv("GOPEN_REWRITE", f"/=/nowhere/;https?://nowhere/=file:{folder}/;http=x")
    monkeypatch.chdir(folder)
    for urls in (
        f"{folder}/{{0..4}}.tar",
        f"{folder}/{{4..0..2}}.tar::{folder}/1.tar",
        "${DATA}/{0,2}.tar",
        "${NESTED}.tar",
        "http://nowhere/{0..2}.tar::https://nowhere/4.tar",
        "0.tar",
        "{0..1}.tar::2.tar",
        f"file:{folder}/0.tar",
        iter(numbered[1:3]),
        ["0.tar", f"file:{folder}/1.tar", "http://nowhere/2.tar"],
    ):
        listed = urls if isinstance(urls, str) else list(urls)
        mine, theirs = both(lambda lib, handler, listed=listed: read(lib, listed, handler))
        assert len(theirs) >= 7
        for sample in theirs:
            # Ours is absolute, so that it is valid in any folder.
            if "__local_path__" in sample:
                kind, path = sample["__local_path__"]
                sample["__local_path__"] = kind, os.path.join(folder, path)
        assert mine == theirs, urls


def test_pipe_urls_are_read_as_in_webdataset(numbered: list[str]) -> None:
    urls = f"pipe:cat {Path(numbered[0]).parent}/{{0..1}}.tar"

    def make(library: Any, handler: Any) -> Any:
        asked = {"allow_pipe": True} if library is ours else {}
        return read(library, urls, handler, **asked)

    mine, theirs = both(make)
    assert len(theirs) == 14
    assert mine == theirs


def test_failed_commands_are_reported_and_skipped(numbered: list[str]) -> None:
    heard: list[str] = []

    def handler(error: Exception) -> bool:
        heard.append(str(error))
        return True

    urls = [numbered[0], "pipe:exit 3", "pipe:exit 4", numbered[1]]
    keys = [sample["__key__"] for sample in read(ours, urls, handler, allow_pipe=True)]
    assert keys == [f"n{number:02}" for number in range(14)]
    assert len(heard) == 2


# Faults of webdataset that Forebay does not copy


def keys(library: Any, urls: list[str], **options: Any) -> list[str]:
    dataset = read(library, urls, library.reraise_exception, **options)
    return [sample["__key__"] for sample in dataset]


def test_shards_of_one_name_in_two_folders_are_both_read(tmp_path: Path) -> None:
    urls = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        urls.append(write_shard(tmp_path / name / "000.tar", [(f"of-{name}", {"txt": b"1"})]))
    assert keys(ours, urls) == ["of-a", "of-b"]


def test_shardshuffle_orders_each_epoch_anew(numbered: list[str]) -> None:
    orders = {}
    for library in (ours, webdataset):
        dataset = read(library, numbered, library.reraise_exception, shardshuffle=10, seed=3)
        orders[library] = [tuple(s["__key__"] for s in dataset) for _ in range(6)]
        assert all(sorted(order) == [f"n{n:02}" for n in range(35)] for order in orders[library])
    assert len(set(orders[webdataset])) == 1, "webdataset has fixed this fault"
    assert len(set(orders[ours])) > math.sqrt(6)


def test_detshuffle_uses_the_seed_of_the_environment(
    numbered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_SEED", "5")
    with pytest.raises(TypeError):
        keys(webdataset, numbered, shardshuffle=10, detshuffle=True)
    mine = keys(ours, numbered, shardshuffle=10, detshuffle=True)
    monkeypatch.delenv("WDS_SEED")
    assert mine == keys(ours, numbered, shardshuffle=10, seed=5)
    assert mine != keys(ours, numbered, shardshuffle=10)
