"""Kinds of fields: values, shapes and dtypes of their tensors, and rejected arguments."""

from __future__ import annotations

import io
import json
import math
import sys
import tarfile

import numpy
import PIL.Image
import PIL.ImageOps
import pytest

import forebay
from conftest import npy, pixels, png, sample
from forebay import _native
from forebay._launch import command


def test_every_kind_of_field_has_its_type_shape_and_values(make):
    fields = {
        "image": forebay.Image("jpg;png", layout="NHWC"),
        "label": forebay.Int("CLS"),
        "side": forebay.Int("json", path="in.side"),
        "score": forebay.Float("score"),
        "text": forebay.Text("txt"),
        "document": forebay.Json(),
        "array": forebay.Npy(),
        "bytes": forebay.Bytes("bin"),
        "view": forebay.Bytes("bin", copy=False),
    }
    batches = list(make(batch_size=7, fields=fields))
    assert [len(batch["label"]) for batch in batches] == [7] * 8 + [4]
    number = 0
    for batch in batches:
        assert list(batch) == [*fields, "__key__", "__url__", "__valid__"]
        assert batch["image"].dtype == numpy.uint8
        assert batch["image"].shape[1:] == (8, 6, 3)
        assert batch["label"].dtype == numpy.int64
        assert batch["score"].dtype == numpy.float32
        assert batch["array"].dtype == numpy.int32
        assert batch["array"].shape[1:] == (2, 3)
        assert batch["__valid__"].dtype == bool
        assert batch["__valid__"].all()
        for row in range(len(batch["label"])):
            assert batch["__key__"][row] == f"s{number:05}"
            assert batch["__url__"][row].endswith(f"{number // 10:03}.tar")
            assert (batch["image"][row] == pixels(number)).all()
            assert batch["label"][row] == number
            assert batch["side"][row] == 2 * number
            assert batch["score"][row] == number / 4
            assert batch["text"][row] == f"text {number} é"
            assert batch["document"][row] == {"number": number, "in": {"side": number * 2}}
            assert (batch["array"][row] == number).all()
            expected = sample(number)[1]["bin"]
            assert type(batch["bytes"][row]) is bytes
            assert batch["bytes"][row] == expected
            assert batch["view"][row].readonly
            assert batch["view"][row] == expected
            number += 1
    assert number == 60


def test_without_fields_every_field_comes_as_bytes(make):
    (batch, *_) = make(batch_size=3)
    expected = [sample(number)[1] for number in range(3)]
    for name in expected[0]:
        assert batch[name] == [fields[name] for fields in expected]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_float_images_are_normalised(make, dtype):
    mean, std = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)
    image = forebay.Image("png", dtype=dtype, mean=mean, std=std)
    (batch, *_) = make(fields={"image": image})
    assert batch["image"].dtype.name == dtype
    assert batch["image"].shape == (4, 3, 8, 6)
    exact = (pixels(0) / 255.0 - mean) / std
    found = batch["image"][0].astype(numpy.float64).transpose(1, 2, 0)
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}[dtype]
    assert numpy.abs(found - exact).max() < tolerance


def test_random_crops_depend_on_seed_and_epoch_alone(make):
    fields = {"image": forebay.Image("png", size=4, crop="random", flip=True)}
    first, second = (make(fields=fields, seed=1) for _ in range(2))
    one = [batch["image"] for batch in first]
    two = [batch["image"] for batch in second]
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    later = [batch["image"] for batch in first]
    assert any((a != b).any() for a, b in zip(one, later, strict=True))
    other = [batch["image"] for batch in make(fields=fields, seed=2)]
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


def test_crops_of_an_epoch_begun_ahead_are_its_own(make):
    # Two batches an epoch: all of the next one is decoded while the last is taken.
    fields = {"image": forebay.Image("png", size=4, crop="random", flip=True)}
    going = make(fields=fields, seed=1)
    for epoch in range(5):
        alone = make(fields=fields, seed=1)
        alone.set_epoch(epoch)
        for one, two in zip(going, alone, strict=True):
            assert (one["image"] == two["image"]).all(), epoch


def test_an_optional_field_may_be_absent(make, shard_of):
    full, bare = sample(1)[1], {"cls": b"2"}
    url = shard_of([("a", full), ("b", bare), ("c", full)])
    fields = {
        "label": forebay.Int("cls"),
        "score": forebay.Float("score", optional=True),
        "image": forebay.Image("png", optional=True),
        "text": forebay.Text("txt", optional=True),
        "document": forebay.Json(optional=True, map=lambda document: document["number"]),
        "array": forebay.Npy(optional=True),
        "bytes": forebay.Bytes("bin", optional=True),
        "view": forebay.Bytes("bin", optional=True, copy=False),
    }
    (batch,) = make(url, fields=fields)
    for name in list(fields)[1:]:
        assert list(batch[f"{name}_present"]) == [True, False, True]
        assert name == "score" or batch[name][1] is None
    assert batch["score"][1] == 0
    assert batch["document"] == [1, None, 1]
    assert "label_present" not in batch


def same(found, expected):
    """Return True if type and value are equal; NaN equals itself."""
    return repr(found) == repr(expected)


def test_json_values_equal_those_of_python(make, shard_of):
    bits = numpy.random.default_rng(1).integers(0, 2**64, 5000, dtype=numpy.uint64)
    doubles = [double for double in bits.view(numpy.float64).tolist() if math.isfinite(double)]
    values = [*doubles, 2**70, -(2**63), math.nan, math.inf, -math.inf, 5e-324, 0.1 + 0.2, 1e22]
    texts = [json.dumps({"lone": "\ud800", "in": [value]}) for value in values]
    url = shard_of([(f"k{n:05}", {"json": text.encode()}) for n, text in enumerate(texts)])
    fields = {
        "double": forebay.Float("json", path="in.0", dtype="float64"),
        "part": forebay.Json(path="in.0"),
        "whole": forebay.Json(),
    }
    batches = list(make(url, fields=fields, batch_size=512))
    read = [json.loads(text) for text in texts]
    assert same([row for batch in batches for row in batch["whole"]], read)
    assert same([row for batch in batches for row in batch["part"]], values)
    found = [row for batch in batches for row in batch["double"].tolist()]
    assert same(found, [float(value) for value in values])


def test_an_integer_too_long_for_python_is_a_bad_sample(make, shard_of):
    longest = sys.int_info.default_max_str_digits
    texts = ["[1]", "[" + "9" * (longest + 1) + "]", "[" + "9" * longest + "]"]
    url = shard_of([(f"k{n}", {"json": text.encode()}) for n, text in enumerate(texts)])
    (batch,) = make(url, fields={"document": forebay.Json()}, on_error="skip")
    assert batch["document"] == [[1], [int("9" * longest)]]
    with pytest.raises(forebay.BadSample, match=r"digits.*k1"):
        list(make(url, fields={"document": forebay.Json()}))


def test_arrays_of_different_shapes_become_a_list(make, shard_of):
    arrays = [numpy.zeros((2, 2)), numpy.ones(3, dtype=numpy.uint8)]
    url = shard_of([(f"k{n}", {"npy": npy(array)}) for n, array in enumerate(arrays)])
    (batch,) = make(url, fields={"array": forebay.Npy()})
    assert isinstance(batch["array"], list)
    for found, expected in zip(batch["array"], arrays, strict=True):
        assert found.dtype == expected.dtype
        assert (found == expected).all()
    images = [png(pixels(0)), png(pixels(1)[:4])]
    url = shard_of([(f"k{n}", {"png": image}) for n, image in enumerate(images)])
    (batch,) = make(url, fields={"image": forebay.Image("png")})
    assert [image.shape for image in batch["image"]] == [(3, 8, 6), (3, 4, 6)]


def test_class_names_become_their_label_numbers(make, shard_of):
    names = ["cat", "dog", " dog\n", "großer Hund"]
    samples = [
        (f"k{n}", {"cls": name.encode(), "json": json.dumps({"of": [name.strip()]}).encode()})
        for n, name in enumerate(names)
    ]
    url = shard_of(samples)
    fields = {
        "place": forebay.Label("cls", classes=["dog", "cat", "großer Hund"]),
        "given": forebay.Label(
            "json", classes={"cat": 7, "dog": -1, "großer Hund": 2**40}, path="of.0"
        ),
    }
    (batch,) = make(url, fields=fields)
    assert batch["place"].dtype == numpy.int64
    assert batch["place"].tolist() == [1, 0, 0, 2]
    assert batch["given"].tolist() == [7, -1, -1, 2**40]
    with pytest.raises(forebay.BadSample, match=r"not one of the classes.*großer Hund"):
        list(make(url, fields={"place": forebay.Label("cls", classes=["cat", "dog"])}))
    few = {"place": forebay.Label("cls", classes=["cat", "dog"])}
    (batch,) = make(url, fields=few, on_error="skip")
    assert batch["place"].tolist() == [0, 1, 1]


def photo(**options) -> bytes:
    """Encode shades by Pillow, whose decoder is the reference."""
    down, across = numpy.mgrid[0:90, 0:120]
    shades = numpy.stack([2 * down, across, 255 - down - across], axis=2).astype(numpy.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(shades).save(stream, **options)
    return stream.getvalue()


def test_views_are_separate_crops_of_one_image(make, shard_of):
    url = shard_of([(f"k{n}", {"jpg": photo(format="JPEG")}) for n in range(6)])
    one = {"image": forebay.Image("jpg", size=16, crop="random", flip=True)}
    many = {"image": forebay.Image("jpg", size=16, crop="random", flip=True, views=3)}
    (alone,), (batch,) = make(url, fields=one, batch_size=6), make(url, fields=many, batch_size=6)
    assert batch["image"].shape == (6, 3, 3, 16, 16)
    assert (batch["image"][:, 0] == alone["image"]).all()
    views = batch["image"].reshape(18, -1)
    assert len(numpy.unique(views, axis=0)) == 18
    last = {"image": forebay.Image("jpg", size=16, flip=True, views=1, layout="NHWC")}
    assert next(iter(make(url, fields=last)))["image"].shape == (4, 1, 16, 16, 3)


def test_webp_and_rotated_photos_equal_those_of_pillow(make, shard_of):
    note = PIL.Image.Exif()
    note[0x0112] = 6
    files = {"a": photo(format="WEBP", quality=70), "b": photo(format="JPEG", exif=note)}
    url = shard_of([(key, {"img": data}) for key, data in files.items()])
    for exif in (False, True):
        image = forebay.Image("img", layout="NHWC", exif=exif)
        (batch,) = make(url, fields={"image": image})
        for data, found in zip(files.values(), batch["image"], strict=True):
            shown = PIL.Image.open(io.BytesIO(data))
            if exif:
                shown = PIL.ImageOps.exif_transpose(shown)
            assert (numpy.asarray(shown.convert("RGB")) == found).all()


PACKED = ("plain", "indexed")


@pytest.mark.parametrize("quality", ["exact", "fast"])
def test_index_of_photos_changes_no_pixel(make, tmp_path, quality):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(12):
        kind = {"progressive": True} if number == 5 else {"quality": 70 + number}
        (photos / f"{number:02}.jpg").write_bytes(photo(format="JPEG", **kind))
    plain, indexed = (str(tmp_path / name / "out-{:06d}.tar") for name in PACKED)
    packed = ["pack", str(photos), "--samples", "6", "-o"]
    for more in ([plain], [indexed, "--jpeg-index"]):
        assert _native.main([*packed, *more], command()) == 0
    image = forebay.Image("jpg", size=16, crop="random", flip=True, views=2, quality=quality)
    options = {"fields": {"image": image}, "seed": 3}
    shards = [sorted((tmp_path / name).glob("*.tar")) for name in PACKED]
    one, two = (make([str(path) for path in paths], **options) for paths in shards)
    for a, b in zip(one, two, strict=True):
        assert (a["image"] == b["image"]).all()
    assert one.stats()["decoders"] == {"cpu": {"no_device": 12}}
    by_index = two.stats()["decoders"]["cpu_index"]["no_device"]
    assert by_index > 0
    assert two.stats()["decoders"]["cpu"] == {"no_device": 12 - by_index}
    counts = [sum(path.read_bytes().count(b"FOREBAY\0") for path in paths) for paths in shards]
    assert counts == [0, 11]


def test_fast_images_are_close_to_exact_ones(make, shard_of):
    url = shard_of([("k", {"jpg": photo(format="JPEG")})])
    for size, differs in ((16, True), (80, False)):
        exact, fast = (
            next(iter(make(url, fields={"image": image})))["image"].astype(int)
            for image in (
                forebay.Image("jpg", size=size, crop="center", resize=size),
                forebay.Image("jpg", size=size, crop="center", resize=size, quality="fast"),
            )
        )
        assert abs(exact - fast).mean() < 3
        assert (abs(exact - fast).max() > 0) or not differs


def test_map_runs_per_sample_and_its_arrays_are_stacked(make):
    fields = {
        "bytes": forebay.Bytes("bin", map=len),
        "image": forebay.Image("png", map=lambda image: image[:, ::2, ::2]),
    }
    (batch, *_) = make(fields=fields)
    assert batch["bytes"].tolist() == [1, 2, 3, 4]
    assert batch["image"].shape == (4, 3, 4, 3)
    assert (batch["image"][3] == pixels(3).transpose(2, 0, 1)[:, ::2, ::2]).all()


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_numbers_from_maps_are_one_tensor_in_every_framework(make, framework):
    pytest.importorskip(framework)
    maps = {
        "same": (lambda value: value + 1, [1, 2, 3, 4], "int"),
        "whole": (lambda value: int(value) * 2, [0, 2, 4, 6], "int"),
        "half": (lambda value: int(value) / 2, [0, 0.5, 1, 1.5], "float"),
        "mixed": (lambda value: int(value) or 0.5, [0.5, 1, 2, 3], "float"),
        "odd": (lambda value: int(value) % 2 == 1, [False, True, False, True], "bool"),
        "numpy": (lambda value: numpy.int16(int(value)), [0, 1, 2, 3], "int16"),
        "numpys": (lambda value: min(numpy.int16(int(value)), 2), [0, 1, 2, 2], "int16"),
        "least": (lambda value: min(value, 2), [0, 1, 2, 2], "int"),
        "flags": (lambda value: value > 1, [False, False, True, True], "bool"),
        "ratio": (lambda value: (value * numpy.float32(0.5)) or 0.25, [0.25, 0.5, 1, 1.5], "float"),
    }
    fields = {name: forebay.Int("cls", map=map_) for name, (map_, _, _) in maps.items()}
    (batch, *_) = make(fields=fields, framework=framework)
    for name, (_, expected, dtype) in maps.items():
        assert type(batch[name]) is type(batch["__valid__"]), name
        assert batch[name].tolist() == expected
        assert dtype in str(batch[name].dtype)
    if framework != "jax":
        assert str(batch["half"].dtype).endswith("float64")
        assert str(batch["same"].dtype).endswith("int64")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_user_code_names_the_sample(make, shards, workers):
    def refuse(value):
        if value == 6:
            raise KeyError("six")
        return value

    loader = make(fields={"label": forebay.Int("cls", map=refuse)}, workers=workers)
    batches = iter(loader)
    next(batches)
    for _ in range(2):
        with pytest.raises(KeyError, match="six") as caught:
            next(batches)
        assert caught.value.places == at(shards[0], "s00006") | {"field": "label"}
        assert "key=s00006" in "".join(getattr(caught.value, "__notes__", ["key=s00006"]))

    def transform(batch):
        if batch["label"][0] == 8:
            raise forebay.Invalid("eight", {"key": "mine"})
        return batch

    loader = make(fields={"label": forebay.Int("cls")}, workers=workers, transform=transform)
    with pytest.raises(forebay.Invalid, match="eight") as caught:
        list(loader)
    ends = at(shards[0], "s00008")
    ends |= {f"to_{name}": value for name, value in at(shards[1], "s00011").items()}
    assert caught.value.places == ends | {"key": "mine"}


def at(url, key):
    """Return the place of a sample as errors name it."""
    with tarfile.open(url) as tar:
        offset = next(member.offset_data for member in tar if member.name.startswith(key))
    return {"url": url, "key": key, "offset": str(offset)}


def test_map_results_that_fit_no_tensor_stay_a_list(make):
    maps = {
        "huge": lambda value: 2**70,
        "text": lambda value: str(value),
        "flag": lambda value: True if value else 0,
        "types": lambda value: numpy.int16(value) if value else numpy.int32(value),
        "numpy": lambda value: numpy.str_(value),
        "narrow": lambda value: numpy.int8(value) if value else 128,
        "kinds": lambda value: numpy.int8(value) if value else 0.5,
        "shapes": lambda value: numpy.zeros(3) if value else 0.5,
    }
    fields = {name: forebay.Int("cls", map=map_) for name, map_ in maps.items()}
    (batch, *_) = make(fields=fields)
    for name, map_ in maps.items():
        assert isinstance(batch[name], list), name
        assert list(map(str, batch[name])) == [str(map_(number)) for number in range(4)]


def test_missing_json_path_is_absent_if_optional(make, shard_of):
    url = shard_of([(f"k{n}", {"json": b'{"y": 1}' if n else b'{"x": 2}'}) for n in range(2)])
    fields = {
        "number": forebay.Int("json", path="x", optional=True),
        "part": forebay.Json(path="x", optional=True),
    }
    (batch,) = make(url, fields=fields)
    assert batch["number"].tolist() == [2, 0]
    assert batch["part"] == [2, None]
    assert batch["number_present"].tolist() == batch["part_present"].tolist() == [True, False]
    with pytest.raises(forebay.BadSample, match="optional=True"):
        list(make(url, fields={"number": forebay.Int("json", path="x")}))
    # A null counts as present.
    url = shard_of([("k", {"json": b'{"x": null}'})])
    (batch,) = make(url, fields={"part": fields["part"]})
    assert (batch["part"], batch["part_present"].tolist()) == ([None], [True])
    with pytest.raises(forebay.BadSample, match="value=null"):
        list(make(url, fields={"number": fields["number"]}))


def test_batch_larger_than_memory_is_raised_not_skipped(make):
    vast = forebay.Image("png", size=(13_000, 13_000), dtype="float32")
    with pytest.raises(forebay.Full, match="batch_size") as caught:
        list(make(fields={"image": vast}, batch_size=60, pad_last=True, on_error="skip"))
    assert int(caught.value.places["bytes"]) == 60 * 13_000 * 13_000 * 3 * 4


def test_leading_dot_and_case_of_an_extension_are_ignored(make):
    fields = {"label": forebay.Int(".cls"), "image": forebay.Image(" .JPG; .Png")}
    (batch, *_) = make(fields=fields)
    assert batch["label"].tolist() == [0, 1, 2, 3]


def test_numpy_integers_are_accepted_as_options(make):
    size = numpy.int64(4)
    for image in (forebay.Image("png", size=size), forebay.Image("png", size=(size, 4))):
        (batch, *_) = make(fields={"image": image}, batch_size=numpy.uint8(4))
        assert batch["image"].shape == (4, 3, 4, 4)


@pytest.mark.parametrize(
    "text",
    [
        "forebay.Int('cls')",
        "forebay.Bytes('bin', optional=True, copy=False)",
        "forebay.Image('jpg;jpeg;png', size=(8, 9), crop='center', resize=12)",
        "forebay.Image('png', dtype='float32', mean=(0.5, 0.5, 0.5), std=[1, 1, 1])",
        "forebay.Json('json', path='a.b')",
        "forebay.Npy('npy')",
        "forebay.Npy('npy', ragged='pad', pad_value=-100, max_len=77)",
        "forebay.Npy('bin', dtype='float16', shape=(77, 768))",
        "forebay.Text('txt', ragged='nested')",
    ],
)
def test_field_repr_is_its_source_text(text):
    field = eval(text)
    assert repr(field) == text
    assert field == eval(text)
    assert field != forebay.Text("other")


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: forebay.Image("jpg", dtype="fp16"), "bfloat16"),
        (lambda: forebay.Label("cls", classes=[]), "classes"),
        (lambda: forebay.Label("cls", classes="cat"), "list"),
        (lambda: forebay.Label("cls", classes={"cat", "dog"}), "order"),
        (lambda: forebay.Label("cls", classes=(name for name in ["cat"])), "order"),
        (lambda: forebay.Label("cls", classes=["cat", "cat"]), "twice"),
        (lambda: forebay.Label("cls", classes=[1]), "class"),
        (lambda: forebay.Label("cls", classes={"cat": 0.5}), "class"),
        (lambda: forebay.Label("cls", classes=["cat"], path="a..b"), "dots"),
        (lambda: forebay.Image("jpg", size=0), "size"),
        (lambda: forebay.Image("jpg", size=8, crop="random", views=0), "views"),
        (lambda: forebay.Image("jpg", size=8, views=2), 'crop="random"'),
        (lambda: forebay.Image("jpg", views=2, flip=True), "size="),
        (lambda: forebay.Image("jpg", quality="best"), "fast"),
        (lambda: forebay.Image("jpg", exif="no"), "exif"),
        (lambda: forebay.Image("jpg", crop="centre"), "center"),
        (lambda: forebay.Image("jpg", scale=(0.1, 1.0)), "crop='random'"),
        (lambda: forebay.Image("jpg", crop="random", size=4, resize=8), "crop='center'"),
        (lambda: forebay.Image("jpg", mean=(0.5,)), "3 finite numbers"),
        (lambda: forebay.Image("jpg", mean=(math.inf, 0, 0), std=(1, 1, 1)), "mean="),
        (lambda: forebay.Image("jpg", crop="random", size=4, scale=(0.1, math.nan)), "scale="),
        (lambda: forebay.Image("jpg", size=2**40), "size=1099511627776"),
        (lambda: forebay.Image("jpg", size=(1, 2, 3)), "size="),
        (lambda: forebay.Image("jpg", size=60_000), "pixels"),
        (lambda: forebay.Image("jpg", size=8.0), "size=8.0"),
        (lambda: forebay.Image("jpg", size=8, crop="center", resize=2**40), "resize=1099511627776"),
        (lambda: forebay.Image("jpg", crop="random"), "size="),
        (lambda: forebay.Image("jpg", dtype="float32", mean=(0, 0, 0)), "both or neither"),
        (lambda: forebay.Image("jpg", size=9, crop="center", resize=8), "resize"),
        (lambda: forebay.Int("json", path="a..b"), "path"),
        (lambda: forebay.Int("json", path=3), "path=3"),
        (lambda: forebay.Json(path=b"x"), "path="),
        (lambda: forebay.Field("x"), "use one of Image"),
        (lambda: forebay.Int("."), "source"),
        (lambda: forebay.Image("jpg", layout="CHW"), "NHWC"),
        (lambda: forebay.Float("f", dtype="float16"), "float64"),
        (lambda: forebay.Npy(ragged="cut"), "nested"),
        (lambda: forebay.Npy(ragged="nested", pad_value=1), "ragged='pad'"),
        (lambda: forebay.Npy(pad_value=math.nan), "ragged='pad'"),
        (lambda: forebay.Text("txt", max_len=3), "ragged='nested'"),
        (lambda: forebay.Npy(ragged="pad", max_len=0), "max_len="),
        (lambda: forebay.Npy(ragged="pad", max_len=2**32), "max_len="),
        (lambda: forebay.Npy(ragged="pad", max_len=True), "max_len="),
        (lambda: forebay.Npy(ragged="pad", pad_value="0"), "pad_value="),
        (lambda: forebay.Npy(ragged="pad", pad_value=2**64), "pad_value="),
        (lambda: forebay.Npy(ragged="pad", pad_value=None), "pad_value="),
        (lambda: forebay.Text("txt", ragged="pad", pad_value=256), "uint8"),
        (lambda: forebay.Text("txt", ragged="pad", pad_value=-1), "uint8"),
        (lambda: forebay.Text("txt", ragged="pad", max_len=0, map=len), "max_len="),
        (lambda: forebay.Npy("bin", dtype="float16"), "together"),
        (lambda: forebay.Npy("bin", shape=(2,)), "together"),
        (lambda: forebay.Npy("bin", dtype="half", shape=(2,)), "bfloat16"),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(-1, -1)), "-1 once"),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(2, 0)), "1 or more"),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(2, -2)), "shape="),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(2, 2.0)), "shape="),
        (lambda: forebay.Npy("bin", dtype="int8", shape="ab"), "shape="),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(2**62, 4)), "smaller"),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(2, -1), ragged="pad"), "first"),
        (lambda: forebay.Npy("bin", dtype="int8", shape=(), ragged="nested"), "first"),
        (lambda: forebay.Npy("bin", dtype="uint8", shape=-1, ragged="pad", pad_value=-1), "uint8"),
        (lambda: forebay.Int(""), "source"),
        (lambda: forebay.Int(7), "source=7"),
        (lambda: forebay.Int("\ud800"), "source="),
        (lambda: forebay.Int("json", path="\ud800"), "path="),
        (lambda: forebay.Int("cls", optional="no"), "optional="),
        (lambda: forebay.Image("jpg", flip=numpy.array([1, 0])), "flip="),
        (lambda: forebay.Bytes("bin", copy=None), "copy="),
        (lambda: forebay.Image("jpg", size=10**5000), "size="),
        (lambda: forebay.Image("jpg", mean=(10**5000, 0, 0), std=(1, 1, 1)), "mean="),
        (lambda: forebay.Image("jpg", mean="123", std=(1, 1, 1)), "mean='123'"),
        (lambda: forebay.Text("txt", map=3), "map="),
    ],
)
def test_invalid_field_is_rejected_with_advice(wrong, word):
    with pytest.raises(forebay.Invalid, match=word) as caught:
        wrong()
    # An error of the native parser would name a column.
    assert "column" not in str(caught.value)


def test_mypy_finds_wrong_literals(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    lines = [
        'forebay.Image(dtype="fp16")  # E',
        'forebay.Image(crop="centre")  # E',
        'forebay.Image(layout="CHW")  # E',
        'forebay.Float("f", dtype="float16")  # E',
        'forebay.Npy(ragged="cut")  # E',
        'forebay.Npy("bin", dtype="half", shape=(2,))  # E',
        'forebay.DataLoader("a.tar", on_error="ignore")  # E',
        'forebay.DataLoader("a.tar", shuffle="yes")  # E',
        'forebay.DataLoader("a.tar", framework="tf")  # E',
        'forebay.Image("jpg", size=224, crop="random", dtype="float16", optional=True, map=len)',
        'forebay.Npy("bin", dtype="bfloat16", shape=(-1, 3), ragged="pad", pad_value=-1.5)',
        'forebay.DataLoader("a.tar", shuffle="window", on_error=lambda error: "skip")',
    ]
    source = tmp_path / "use.py"
    source.write_text("\n".join(["import forebay", *lines]) + "\n")
    cache = ["--cache-dir", str(tmp_path / "cache")]
    said, problems, _ = mypy.run(
        ["--strict", "--python-executable", sys.executable, *cache, str(source)]
    )
    assert not problems
    found = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    assert found == {number for number, line in enumerate(lines, 2) if line.endswith("# E")}, said


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"__key__": forebay.Int("cls")}, "__key__"),
        ({"image": "jpg"}, "forebay.Image"),
        ({"a": forebay.Int("cls"), "a_present": forebay.Int("cls")}, "a_present"),
        ({}, "None"),
    ],
)
def test_loader_rejects_invalid_fields(make, fields, word):
    with pytest.raises(forebay.Invalid, match=word):
        make(fields=fields)


def test_an_unknown_option_is_a_type_error(make):
    with pytest.raises(TypeError, match="colour"):
        forebay.Image("jpg", colour=True)
    with pytest.raises(TypeError, match="num_workers"):
        make(num_workers=2)
