"""Tensors reach each framework without a copy, and it owns them; views keep the slab readable."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy
import pytest

import forebay
from conftest import pixels, sample
from forebay import _batch, _native, frameworks

torch = pytest.importorskip("torch")

FIELDS = {
    "image": forebay.Image("png", dtype="float32"),
    "half": forebay.Image("png", dtype="float16"),
    "brain": forebay.Image("png", dtype="bfloat16"),
    "raw": forebay.Image("png"),
    "label": forebay.Int("cls"),
    "score": forebay.Float("score", dtype="float64"),
    "array": forebay.Npy(),
}


@pytest.fixture
def addresses(monkeypatch):
    """Addresses of the native tensors, by the id of the framework's tensor."""
    seen: dict[int, int] = {}
    for framework in (frameworks._Torch, frameworks._NumPy, frameworks._Jax):
        original = framework.tensor

        def tensor(self, native, original=original):
            made = original(self, native)
            seen[id(made)] = native.address
            return made

        monkeypatch.setattr(framework, "tensor", tensor)
    return seen


def test_torch_tensors_are_zero_copy_and_writable(make, addresses):
    for batch in make(fields=FIELDS, framework="torch"):
        for name in [*FIELDS, "__valid__"]:
            tensor = batch[name]
            assert tensor.data_ptr() == addresses[id(tensor)]
            assert tensor.data_ptr() % 64 == 0
            before = tensor.clone()
            if tensor.dtype == torch.bool:
                tensor.logical_not_()
            else:
                tensor.add_(1)
            assert (tensor != before).any()
    assert {batch[name].dtype for name in FIELDS} == {
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.uint8,
        torch.int64,
        torch.float64,
        torch.int32,
    }


def test_numpy_arrays_are_zero_copy_and_writable(make, addresses):
    pytest.importorskip("ml_dtypes")
    for batch in make(fields=FIELDS, framework="numpy"):
        for name in [*FIELDS, "__valid__"]:
            array = batch[name]
            assert array.__array_interface__["data"][0] == addresses[id(array)]
            assert array.flags.writeable
            array[...] = 1
            assert (array == 1).all()


def test_jax_arrays_are_zero_copy_with_the_right_values(make, addresses):
    jax = pytest.importorskip("jax")
    fields = {"image": forebay.Image("png"), "brain": forebay.Image("png", dtype="bfloat16")}
    (batch, *_) = make(fields=fields, framework="jax")
    assert isinstance(batch["image"], jax.Array)
    assert batch["image"].unsafe_buffer_pointer() == addresses[id(batch["image"])]
    assert batch["brain"].dtype == jax.numpy.bfloat16
    found = numpy.asarray(batch["image"])[0].transpose(1, 2, 0)
    assert (found == pixels(0)).all()
    assert (batch["image"].at[0].set(7)[0] == 7).all()


def test_default_framework_is_torch_once_imported(make):
    (batch, *_) = make(fields={"label": forebay.Int("cls")}, framework=None)
    assert isinstance(batch["label"], torch.Tensor)


def test_a_tensor_outlives_its_loader_and_later_batches(make):
    loader = make(fields={"raw": FIELDS["raw"]}, framework="torch")
    kept = [batch["raw"] for batch in loader]
    loader.close()
    del loader
    gc.collect()
    for number in range(60):
        found = kept[number // 4][number % 4].permute(1, 2, 0).numpy()
        assert (found == pixels(number)).all()


def test_dlpack_exports_once_and_rejects_other_devices():
    native = _native.Batch.flags([True, False])
    assert native.__dlpack_device__() == (1, 0)
    for refused in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            native.__dlpack__(**refused)
    assert "dltensor_versioned" in repr(native.__dlpack__(max_version=(1, 0)))
    with pytest.raises(BufferError, match="already"):
        native.__dlpack__()
    assert "dltensor_versioned" not in repr(_native.Batch.flags([True]).__dlpack__())


def test_old_dlpack_protocol_gets_the_same_memory():
    class Old:
        def __init__(self, native):
            self.native = native

        def __dlpack__(self, stream=None):
            return self.native.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.native.__dlpack_device__()

    native = _native.Batch.flags([True, False, True])
    tensor = torch.utils.dlpack.from_dlpack(Old(native))
    assert tensor.data_ptr() == native.address
    assert tensor.tolist() == [True, False, True]


def test_views_stay_readable_after_close(make):
    with make(fields={"view": forebay.Bytes("bin", copy=False)}, prefetch=8) as loader:
        (first, *_) = loader
        views = first["view"]
        assert loader.stats()["private_copies"] > 0
    del loader, first
    gc.collect()
    assert [bytes(view) for view in views] == [sample(number)[1]["bin"] for number in range(4)]
    with pytest.raises(TypeError):
        views[0][0] = 1


def test_views_are_created_on_access(make):
    loader = make(fields={"view": forebay.Bytes("bin", copy=False)}, batch_size=60)
    gc.collect()
    (batch,) = loader
    views = batch["view"]
    # The views are slices of one memoryview, made on access.
    assert sum(type(known) is memoryview for known in gc.get_objects()) < 10
    expected = [sample(number)[1]["bin"] for number in range(60)]
    assert views == expected
    assert (views[-1], views[1:3], len(views)) == (expected[-1], expected[1:3], 60)
    assert all(type(view) is memoryview for view in views)
    # torch's loaders rebuild a sequence from its items.
    assert type(views)(list(views)) == expected
    with pytest.raises(IndexError):
        views[60]


def test_view_keeps_its_bytes_while_it_lives(monkeypatch):
    class Lent:
        def __init__(self, size):
            self.bytes = numpy.arange(size + 1, dtype=numpy.uint8)
            self.address = self.bytes.__array_interface__["data"][0]

        def __len__(self):
            return len(self.bytes) - 1

    types = []
    array = _batch._array.__wrapped__
    monkeypatch.setattr(_batch, "_array", functools.cache(lambda n: types.append(n) or array(n)))
    for size in (0, 1, 2, 3, 255, 256, 257, 1000):
        lent = Lent(size)
        expected, alive = lent.bytes[:-1].tobytes(), weakref.ref(lent)
        view = _batch.lend(lent)
        del lent
        assert view == expected
        assert (view.format, view.nbytes, view.readonly) == ("B", size, True)
        part = view[:1]
        del view
        assert alive() is not None
        del part
        assert alive() is None
    # One array type exists for each power of two, not for each length.
    assert types == [0, 1, 2, 8, 9, 10]


def test_keeping_every_view_does_not_block_the_loader(make):
    fields = {"view": forebay.Bytes("png", copy=False), "label": forebay.Int("cls")}
    for prefetch in (1, 2, 4):
        loader = make(fields=fields, prefetch=prefetch, batch_size=2)
        batches = list(loader)
        found = [bytes(view) for batch in batches for view in batch["view"]]
        assert found == [sample(number)[1]["png"] for number in range(60)]
        assert loader.stats()["private_copies"] >= 30 - prefetch


def test_keys_and_urls_are_lazy_sequences(make):
    (batch, *_) = make()
    keys = batch["__key__"]
    assert not isinstance(keys, list)
    assert len(keys) == 4
    assert keys[-1] == "s00003"
    assert keys[1:3] == ["s00001", "s00002"]
    assert "s00002" in keys
    assert keys.index("s00003") == 3
    assert keys == [f"s{number:05}" for number in range(4)]
    assert keys != ["s00000"]
    with pytest.raises(IndexError):
        keys[4]
