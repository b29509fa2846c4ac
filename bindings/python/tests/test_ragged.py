"""Ragged fields: padded and nested rows, from files and raw bytes, with user code."""

from __future__ import annotations

import os
import sys

import numpy
import pytest

import forebay
from conftest import npy

# Lengths of five samples: zero, the longest, and lengths between.
LENGTHS = [2, 0, 4, 1, 3]
TEXTS = ["zwölf", "", "ein längerer Text", "é", "abc"]

PLACES = pytest.mark.parametrize(
    "workers",
    [{}, {"workers": 2}, {"workers": 2, "worker_type": "process"}],
    ids=["here", "threads", "processes"],
)


def boxes(number, length):
    """Return the array of a sample: `length` rows of three numbers that no other sample has."""
    return numpy.arange(3 * length, dtype=numpy.float32).reshape(length, 3) + 100 * number


def ragged_sample(number, length=None):
    length = LENGTHS[number] if length is None else length
    return f"k{number}", {
        "npy": npy(boxes(number, length)),
        "bin": boxes(number, length).astype("<f2").tobytes(),
        "txt": TEXTS[number].encode(),
        "cls": str(number).encode(),
    }


@pytest.fixture
def ragged(shard_of):
    """A shard of five samples with arrays and texts of different lengths."""
    return shard_of([ragged_sample(number) for number in range(5)])


def plain(rows, width, value):
    """Pad rows by a plain loop."""
    made = numpy.full((len(rows), width, *rows[0].shape[1:]), value, rows[0].dtype)
    for place, row in enumerate(rows):
        made[place, : len(row)] = row[:width]
    return made


def same(found, expected):
    found = numpy.asarray(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert (found == expected).all()


# User code that can be sent to a process.


def halves(array):
    return array[: (len(array) + 1) // 2]


def characters(text):
    return [ord(character) for character in text]


def upper(text):
    return text.upper()


def all_but_one(sample):
    return sample["label"] != 1


def marked(batch):
    batch["pid"] = os.getpid()
    return batch


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_arrays_are_padded_and_carry_their_lengths(make, ragged, framework):
    pytest.importorskip(framework)
    fields = {
        "boxes": forebay.Npy(ragged="pad", pad_value=-1),
        "first": forebay.Npy(ragged="pad", max_len=2),
    }
    batches = list(make(ragged, fields=fields, framework=framework, batch_size=3))
    arrays = [boxes(number, length) for number, length in enumerate(LENGTHS)]
    for batch, rows, lengths in zip(
        batches, [arrays[:3], arrays[3:]], [LENGTHS[:3], LENGTHS[3:]], strict=True
    ):
        assert list(batch)[:4] == ["boxes", "boxes_len", "first", "first_len"]
        assert type(batch["boxes"]) is type(batch["boxes_len"]) is type(batch["__valid__"])
        same(batch["boxes"], plain(rows, max(lengths), -1))
        assert batch["boxes_len"].tolist() == lengths
        same(batch["first"], plain(rows, 2, 0))
        assert batch["first_len"].tolist() == [min(length, 2) for length in lengths]
    if framework != "jax":
        assert str(batches[0]["boxes_len"].dtype).endswith("int64")


@pytest.mark.parametrize("value", [float("-inf"), 0.5, -100, numpy.float32(2), True])
def test_a_float_array_is_padded_with_any_number(make, ragged, value):
    (batch, *_) = make(ragged, fields={"boxes": forebay.Npy(ragged="pad", pad_value=value)})
    assert (batch["boxes"][1] == value).all()
    fields = {"boxes": forebay.Npy(ragged="pad", pad_value=float("nan"))}
    (batch, *_) = make(ragged, fields=fields)
    assert numpy.isnan(batch["boxes"][1]).all()


def test_padded_text_becomes_utf8_bytes(make, ragged):
    fields = {
        "text": forebay.Text("txt", ragged="pad", pad_value=32),
        "cut": forebay.Text("txt", ragged="pad", max_len=3),
        "listed": forebay.Text("txt"),
    }
    (batch,) = make(ragged, fields=fields, batch_size=5)
    assert batch["listed"] == TEXTS
    assert "listed_len" not in batch
    assert batch["text"].dtype == numpy.uint8
    for row, length, text in zip(batch["text"], batch["text_len"], TEXTS, strict=True):
        assert bytes(row[:length].tolist()).decode() == text
        assert set(row[length:].tolist()) <= {32}
    assert batch["text"].shape == (5, len(TEXTS[2].encode()))
    assert batch["cut"].shape == (5, 3)
    # The ö of zwölf needs two bytes, so it is left out.
    found = [
        bytes(row[:length].tolist()).decode()
        for row, length in zip(batch["cut"], batch["cut_len"], strict=True)
    ]
    assert found == ["zw", "", "ein", "é", "abc"]


def test_nested_tensors_are_zero_copy(make, ragged, monkeypatch):
    torch = pytest.importorskip("torch")
    from forebay import frameworks

    seen = []
    original = frameworks._Torch.tensor
    monkeypatch.setattr(
        frameworks._Torch,
        "tensor",
        lambda self, native: seen.append(native.address) or original(self, native),
    )
    fields = {
        "boxes": forebay.Npy(ragged="nested"),
        "cut": forebay.Npy(ragged="nested", max_len=1),
        "text": forebay.Text("txt", ragged="nested"),
        "label": forebay.Int("cls"),
    }
    (batch,) = make(ragged, fields=fields, framework="torch", batch_size=5)
    for name in ("boxes", "cut", "text"):
        assert batch[name].is_nested
        assert batch[name].layout is torch.jagged
        assert batch[name].values().data_ptr() in seen
    assert batch["boxes"].shape[0] == 5
    assert batch["boxes"].offsets().tolist() == [0, 2, 2, 6, 7, 10]
    assert batch["boxes_len"].tolist() == LENGTHS
    for number, row in enumerate(batch["boxes"].unbind()):
        same(row, boxes(number, LENGTHS[number]))
    assert [len(row) for row in batch["cut"].unbind()] == [1, 0, 1, 1, 1]
    texts = [bytes(row.tolist()).decode() for row in batch["text"].unbind()]
    assert texts == TEXTS
    assert batch["text_len"].dtype == torch.int64
    # The nested tensor is readable and writable.
    same(torch.nested.to_padded_tensor(batch["boxes"] + 1, 0)[3, :1], boxes(3, 1) + 1)


def test_nested_tensors_are_rejected_without_torch(make, ragged, monkeypatch):
    fields = {"label": forebay.Int("cls"), "boxes": forebay.Npy(ragged="nested")}
    for framework in ("numpy", "jax"):
        with pytest.raises(forebay.Invalid, match="ragged='pad'") as caught:
            make(ragged, fields=fields, framework=framework)
        assert caught.value.places == {"field": "boxes"}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    loader = make(ragged, fields=fields, framework=None)
    with pytest.raises(forebay.Invalid, match="numpy has no nested tensors"):
        list(loader)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_raw_bytes_become_arrays_of_the_given_shape(make, ragged, shard_of, framework):
    pytest.importorskip(framework)
    fields = {
        "boxes": forebay.Npy("bin", dtype="float16", shape=(-1, 3), ragged="pad"),
        "listed": forebay.Npy("bin", dtype="float16", shape=(-1, 3)),
        "flat": forebay.Npy("bin", dtype="float16", shape=-1, ragged="pad", max_len=4),
    }
    (batch,) = make(ragged, fields=fields, framework=framework, batch_size=5)
    arrays = [boxes(n, length).astype(numpy.float16) for n, length in enumerate(LENGTHS)]
    same(batch["boxes"], plain(arrays, 4, 0))
    assert [tuple(row.shape) for row in batch["listed"]] == [(n, 3) for n in LENGTHS]
    same(batch["flat"], plain([array.reshape(-1) for array in arrays], 4, 0))
    # Rows of one shape become one tensor, even with an absent row.
    raw = numpy.arange(12, dtype="<i8").tobytes()
    url = shard_of([("a", {"bin": raw}), ("b", {"cls": b"1"}), ("c", {"bin": raw[1:]})])
    fixed = {"x": forebay.Npy("bin", dtype="int64", shape=(3, 4), optional=True)}
    (batch,) = make(url, fields=fixed, framework=framework, on_error="skip")
    expected = numpy.arange(12).reshape(3, 4)
    same(batch["x"], numpy.stack([expected, 0 * expected]))
    assert batch["x_present"].tolist() == [True, False]
    with pytest.raises(forebay.BadSample, match="does not fit the shape") as caught:
        list(make(url, fields=fixed))
    places = caught.value.places
    assert (places["bytes"], places["shape"], places["key"]) == ("95", "int64 (3, 4)", "c")


def test_first_sample_with_another_shape_is_a_bad_sample(make, shard_of):
    odd = ("odd", {"npy": npy(numpy.zeros((2, 5), numpy.float32)), "cls": b"9"})
    url = shard_of([odd, *(ragged_sample(number) for number in range(5))])
    fields = {"boxes": forebay.Npy(ragged="pad"), "label": forebay.Int("cls")}
    loader = make(url, fields=fields, on_error="skip", batch_size=6)
    (batch,) = loader
    assert batch["boxes"].shape == (5, 4, 3)
    assert batch["label"].tolist() == [0, 1, 2, 3, 4]
    assert loader.stats()["errors"] == 1
    with pytest.raises(forebay.BadSample) as caught:
        list(make(url, fields=fields, batch_size=6))
    places = caught.value.places
    assert (places["key"], places["field"]) == ("odd", "boxes")
    assert (places["has"], places["expected"]) == ("float32 (2, 5)", "float32 (*, 3)")


def test_batch_of_bad_samples_has_empty_tensors(make, shard_of):
    url = shard_of([("a", {"npy": b"broken", "txt": b"\xff", "bin": b"1"})])
    fields = {
        "boxes": forebay.Npy(ragged="pad"),
        "raw": forebay.Npy("bin", dtype="int16", shape=(-1, 2), ragged="pad", max_len=7),
        "text": forebay.Text("txt", ragged="pad"),
    }
    (batch,) = make(url, fields=fields, on_error="skip", drop_empty=False)
    shapes = {name: batch[name].shape for name in batch if not name.startswith("__")}
    assert shapes == {
        "boxes": (0, 0),
        "boxes_len": (0,),
        "raw": (0, 7, 2),
        "raw_len": (0,),
        "text": (0, 0),
        "text_len": (0,),
    }
    assert batch["raw"].dtype == numpy.int16
    torch = pytest.importorskip("torch")
    nested = {"boxes": forebay.Npy(ragged="nested")}
    options = {"on_error": "skip", "drop_empty": False, "framework": "torch"}
    (batch,) = make(url, fields=nested, **options)
    assert (batch["boxes"].is_nested, batch["boxes"].shape[0]) == (True, 0)
    assert batch["boxes_len"].dtype == torch.int64


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_absent_rows_have_length_zero(make, shard_of, framework):
    pytest.importorskip(framework)
    url = shard_of([ragged_sample(0), ("k", {"cls": b"1"}), ragged_sample(2)])
    fields = {
        "boxes": forebay.Npy(ragged="pad", optional=True),
        "text": forebay.Text("txt", ragged="pad", optional=True, max_len=3),
        "codes": forebay.Text("txt", ragged="pad", optional=True, map=characters, pad_value=-1),
    }
    if framework == "torch":
        fields["nested"] = forebay.Npy(ragged="nested", optional=True)
    (batch,) = make(url, fields=fields, framework=framework)
    lengths = {name: batch[f"{name}_len"].tolist() for name in fields}
    expected = {"boxes": [2, 0, 4], "text": [2, 0, 3], "codes": [5, 0, 17], "nested": [2, 0, 4]}
    assert lengths == {name: expected[name] for name in fields}
    for name in fields:
        assert batch[f"{name}_present"].tolist() == [True, False, True]
    assert (batch["codes"][1] == -1).all()


@PLACES
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_user_code_gets_rows_without_padding(make, ragged, framework, workers):
    pytest.importorskip(framework)
    fields = {
        "label": forebay.Int("cls"),
        "boxes": forebay.Npy(ragged="pad"),
        "fixed": forebay.Npy(ragged="pad", max_len=9),
        "half": forebay.Npy(ragged="pad", map=halves, pad_value=-1),
        "codes": forebay.Text("txt", ragged="pad", map=characters, pad_value=-100, max_len=4),
        "loud": forebay.Text("txt", ragged="pad", map=upper, max_len=3),
    }
    if framework == "torch":
        fields["nested"] = forebay.Npy(ragged="nested")
        fields["tokens"] = forebay.Text("txt", ragged="nested", map=characters)
    loader = make(
        ragged,
        fields=fields,
        select=all_but_one,
        transform=marked,
        framework=framework,
        batch_size=3,
        **workers,
    )
    first, second = loader
    assert (first["pid"] == os.getpid()) == (workers.get("worker_type") != "process")
    arrays = [boxes(number, length) for number, length in enumerate(LENGTHS)]
    for batch, numbers in ((first, [0, 2]), (second, [3, 4])):
        rows = [arrays[number] for number in numbers]
        lengths = [len(row) for row in rows]
        same(batch["boxes"], plain(rows, max(lengths), 0))
        assert batch["boxes_len"].tolist() == lengths
        same(batch["fixed"], plain(rows, 9, 0))
        half = [halves(row) for row in rows]
        same(batch["half"], plain(half, max(map(len, half)), -1))
        assert batch["half_len"].tolist() == [len(row) for row in half]
        codes = [numpy.array(characters(TEXTS[number]), numpy.int64) for number in numbers]
        same(batch["codes"], plain(codes, 4, -100))
        # The Ö is never cut in half.
        loud = {0: b"ZW", 2: b"EIN", 3: "É".encode(), 4: b"ABC"}
        found = zip(batch["loud"], batch["loud_len"].tolist(), strict=True)
        assert [bytes(row[:length].tolist()) for row, length in found] == [
            loud[number] for number in numbers
        ]
        if framework == "torch":
            assert batch["nested"].is_nested
            for found, expected in zip(batch["nested"].unbind(), rows, strict=True):
                same(found, expected)
            assert batch["nested_len"].tolist() == lengths
            assert [row.tolist() for row in batch["tokens"].unbind()] == [
                characters(TEXTS[number]) for number in numbers
            ]


def test_batch_is_padded_to_its_longest_selected_row(make, ragged):
    seen = []

    def select(sample):
        seen.append((sample["boxes"].shape, sample["text"].tolist()))
        return sample["label"] in (0, 3)

    fields = {
        "label": forebay.Int("cls"),
        "boxes": forebay.Npy(ragged="pad"),
        "text": forebay.Text("txt", ragged="pad"),
    }
    (batch,) = make(ragged, fields=fields, select=select, batch_size=5)
    assert seen == [
        ((length, 3), list(text.encode())) for length, text in zip(LENGTHS, TEXTS, strict=True)
    ]
    assert batch["boxes"].shape == (2, 2, 3)
    assert batch["boxes_len"].tolist() == [2, 1]
    options = {"select": lambda sample: False, "drop_empty": False, "batch_size": 5}
    (none,) = make(ragged, fields=fields, **options)
    assert none["boxes"].shape == (0, 0, 3)
    assert none["boxes_len"].tolist() == []


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("map_", "word"),
    [
        (lambda text: numpy.zeros((2, len(text))), "differ only in their first dimension"),
        (lambda text: [0.5] if text else [1], "differ only in their first dimension"),
        (lambda text: None, "map= gave NoneType"),
        (lambda text: {"a": 1}, "map= gave dict"),
        (lambda text: len(text), "single number"),
    ],
    ids=["shapes", "dtypes", "nothing", "dict", "number"],
)
def test_invalid_map_result_is_rejected_with_the_sample(make, ragged, framework, map_, word):
    pytest.importorskip(framework)
    fields = {"text": forebay.Text("txt", ragged="pad", map=map_)}
    with pytest.raises(forebay.Invalid, match=word) as caught:
        list(make(ragged, fields=fields, framework=framework, batch_size=5))
    assert caught.value.places["field"] == "text"
    assert caught.value.places["key"] in ("k0", "k1")


def test_padding_that_does_not_fit_the_map_result_is_rejected(make, ragged):
    fields = {"text": forebay.Text("txt", ragged="pad", map=characters, pad_value=0.5)}
    with pytest.raises(forebay.Invalid, match=r"pad_value=0.5 does not fit int64") as caught:
        list(make(ragged, fields=fields, batch_size=5))
    assert caught.value.places["field"] == "text"


def test_empty_map_results_take_the_dtype_of_the_others(make, shard_of):
    url = shard_of([(f"k{n}", {"txt": text}) for n, text in enumerate([b"", b"ab", b""])])
    fields = {"codes": forebay.Text("txt", ragged="pad", map=characters)}
    two, one = make(url, fields=fields, batch_size=2)
    same(two["codes"], numpy.array([[0, 0], [97, 98]]))
    assert (one["codes"].shape, one["codes_len"].tolist()) == ((1, 0), [0])


def test_padding_samples_keep_their_lengths(make, ragged, shard_of):
    urls = [ragged, shard_of([ragged_sample(number) for number in range(3)])]
    fields = {"boxes": forebay.Npy(ragged="pad")}
    options = {"fields": fields, "batch_size": 3, "world_size": 2, "pad_last": True}
    for rank in range(2):
        batches = list(make(urls, rank=rank, epoch_samples=8, **options))
        assert [batch["boxes"].shape[0] for batch in batches] == [3, 3]
        for batch in batches:
            assert batch["boxes_len"].tolist() == [
                int(number) for number in (batch["boxes"][:, :, 1] != 0).sum(axis=1)
            ]
            assert batch["boxes"].shape[1] == max(batch["boxes_len"])


def test_indexed_sample_is_an_array_without_padding(ragged):
    torch = pytest.importorskip("torch")
    fields = {
        "boxes": forebay.Npy(ragged="pad"),
        "nested": forebay.Npy(ragged="nested"),
        "text": forebay.Text("txt", ragged="pad", max_len=4),
        "label": forebay.Int("cls"),
    }
    with forebay.IndexedDataset(ragged, fields=fields, framework="torch") as dataset:
        one = dataset[3]
        same(one["boxes"], boxes(3, 1))
        same(one["nested"], boxes(3, 1))
        assert (one["boxes_len"].item(), one["text_len"].item()) == (1, 2)
        batch = dataset[[2, 0]]
        same(batch["boxes"], plain([boxes(2, 4), boxes(0, 2)], 4, 0))
        assert [len(row) for row in batch["nested"].unbind()] == [4, 2]
    del fields["nested"]
    with forebay.IndexedDataset(ragged, fields=fields, framework="torch") as dataset:
        # torch's loader collates the rows of one request, which have one width.
        loader = torch.utils.data.DataLoader(dataset, batch_size=3)
        assert [batch["boxes"].shape for batch in loader] == [(3, 4, 3), (2, 3, 3)]


def test_statistics_and_states_count_ragged_samples(make, ragged):
    fields = {"boxes": forebay.Npy(ragged="pad"), "image": forebay.Npy("npy")}
    loader = make(ragged, fields=fields, batch_size=2)
    batches = iter(loader)
    next(batches)
    again = make(ragged, fields=fields, batch_size=2)
    again.load_state_dict(loader.state_dict())
    rest = [batch["boxes_len"].tolist() for batch in again]
    assert rest == [LENGTHS[2:4], LENGTHS[4:]]
    assert again.stats()["samples"] == 3


def test_nested_tensors_cross_processes_or_are_rejected():
    torch = pytest.importorskip("torch")
    import multiprocessing
    import pickle
    import threading

    from forebay import _sharing

    values = torch.arange(300_000, dtype=torch.float32).reshape(-1, 3)
    offsets = torch.tensor([0, 7, 7, 100_000])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    here, there = multiprocessing.Pipe()
    got = []
    receiver = threading.Thread(target=lambda: got.append(_sharing.receive(there)))
    receiver.start()
    _sharing.send(here, {"nested": nested})
    receiver.join()
    arrived = got[0]["nested"]
    assert arrived.layout is torch.jagged
    assert (arrived.values() == values).all()
    assert (arrived.offsets() == offsets).all()
    buffers = []
    import io

    stream = io.BytesIO()
    _sharing._Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(nested)
    assert len(stream.getvalue()) < 1000
    assert max(buffer.raw().nbytes for buffer in buffers) == values.nbytes
    with pytest.warns(UserWarning, match="prototype"):
        strided = torch.nested.nested_tensor([values, values[:1]])
    with pytest.raises(pickle.PicklingError, match=r"torch\.jagged"):
        _sharing.send(here, strided)


@pytest.mark.parametrize(
    ("name", "field"),
    [("a", forebay.Npy(ragged="pad")), ("a", forebay.Text("txt", ragged="nested"))],
)
def test_field_named_like_a_length_is_rejected(make, ragged, name, field):
    fields = {name: field, f"{name}_len": forebay.Int("cls")}
    with pytest.raises(forebay.Invalid, match="a_len"):
        make(ragged, fields=fields)


def test_length_suffix_is_free_without_lengths(make, ragged):
    fields = {"text": forebay.Text("txt"), "text_len": forebay.Int("cls")}
    (batch,) = make(ragged, fields=fields, batch_size=5)
    assert batch["text_len"].tolist() == [0, 1, 2, 3, 4]
