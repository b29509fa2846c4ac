"""Choice of the decoder: a requested GPU, a GPU that is present, or the CPU."""

from __future__ import annotations

import ctypes.util
import logging
import sys
from types import SimpleNamespace

import pytest

import forebay
from forebay import _device

IMAGE = {"image": forebay.Image("png", size=4)}

needs_no_gpu = pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None,
    reason="needs no-gpu: this machine has a CUDA driver",
)


@needs_no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_missing_gpu_is_rejected_with_advice(make, device):
    loader = make(fields=IMAGE, device=device, framework="torch")
    with pytest.raises(forebay.NotFound, match=r"libcuda.*device=.cpu.") as caught:
        next(iter(loader))
    assert isinstance(caught.value, forebay.ForebayError)
    # The loader fails before it starts a daemon.
    assert loader.stats()["daemon_pid"] is None


def test_gpu_is_rejected_if_the_default_framework_is_numpy(make, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    loader = make(fields=IMAGE, device="cuda", framework=None)
    with pytest.raises(forebay.Invalid, match="NumPy has no memory on a GPU"):
        next(iter(loader))


@needs_no_gpu
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_cpu_decodes_without_a_gpu_and_counts_images(make, device, framework):
    loader = make(fields=IMAGE, device=device, framework=framework)
    images = sum(len(batch["image"]) for batch in loader)
    assert images > 0
    assert loader.stats()["decoders"] == {"cpu": {"no_device": images}}


def test_gpu_is_the_default_only_for_sized_torch_or_jax_images():
    wish = _device.Wish(None)
    assert wish.suits(IMAGE, "torch", has_code=False, in_worker=False)
    assert wish.suits(IMAGE, "jax", has_code=False, in_worker=False)
    assert not wish.suits(IMAGE, "numpy", has_code=False, in_worker=False)
    assert not wish.suits(IMAGE, "torch", has_code=True, in_worker=False)
    assert not wish.suits(IMAGE, "torch", has_code=False, in_worker=True)
    assert not wish.suits(None, "torch", has_code=False, in_worker=False)
    unsized = IMAGE | {"other": forebay.Image("jpg")}
    assert not wish.suits(unsized, "torch", has_code=False, in_worker=False)
    assert not _device.Wish("cpu").suits(IMAGE, "torch", has_code=False, in_worker=False)


@pytest.fixture
def gpus(monkeypatch):
    """Function that sets the number of visible GPUs; no launcher and no torch until then."""
    for name in _device._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return lambda count: monkeypatch.setattr(_device, "_count", lambda: count)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_gpu_number_is_the_local_rank(gpus, monkeypatch, name):
    gpus(8)
    assert _device._ordinal() == 0
    monkeypatch.setenv(name, "3")
    assert _device._ordinal() == 3
    # A launcher that shows each rank its own GPU alone.
    gpus(1)
    assert _device._ordinal() == 0
    monkeypatch.setenv(name, "three")
    with pytest.raises(forebay.Invalid, match=f"{name}='three'"):
        _device._ordinal()


def test_gpu_number_is_that_of_torch_if_it_has_one(gpus, monkeypatch):
    gpus(8)
    monkeypatch.setenv("LOCAL_RANK", "3")
    is_initialized = False
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, current_device=lambda: 5)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert _device._ordinal() == 3
    is_initialized = True
    assert _device._ordinal() == 5


@pytest.mark.parametrize(
    ("rank", "current", "count", "warnings"),
    [
        ("3", 0, 8, 1),
        ("3", 3, 8, 0),
        ("3", 0, 1, 0),
        ("0", 0, 8, 0),
        (None, 0, 8, 0),
    ],
)
def test_ranks_that_share_the_first_gpu_are_warned(
    gpus, monkeypatch, caplog, rank, current, count, warnings
):
    gpus(count)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    cuda = SimpleNamespace(is_initialized=lambda: True, current_device=lambda: current)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert _device._ordinal() == current
    assert len(caplog.records) == warnings


def test_sessions_of_a_loader_share_its_device(make, monkeypatch):
    opened = []

    def counted(*arguments):
        opened.append(arguments)

    monkeypatch.setattr(_device, "opened", counted)
    loader = make(fields=IMAGE)
    sessions = []
    for _ in range(2):
        assert sum(len(batch["image"]) for batch in loader) > 0
        sessions.append(loader._native)
    # Sample counts, learnt in the first epoch, need a new session.
    assert sessions[0] is None
    assert len(opened) == 1
    loader.close()
    assert loader._gpu._opened is None


@pytest.mark.parametrize(("count", "level"), [(0, logging.DEBUG), (2, logging.WARNING)])
def test_gpu_that_is_there_and_not_used_is_logged(gpus, monkeypatch, caplog, count, level):
    def missing(*_arguments):
        raise forebay.NotFound("this GPU does not exist", {})

    gpus(count)
    monkeypatch.setattr(_device._native, "Device", missing)
    with caplog.at_level(logging.DEBUG, logger="forebay"):
        assert _device.opened(_device.Wish(None), IMAGE, "torch", suits=True) is None
    assert [record.levelno for record in caplog.records] == [level]


@pytest.mark.parametrize(("text", "backend"), [("4", 4), ("", None), (None, None)])
def test_nvjpeg_backend_is_that_of_the_variable(gpus, monkeypatch, text, backend):
    gpus(1)
    monkeypatch.delenv("FOREBAY_NVJPEG_BACKEND", raising=False)
    if text is not None:
        monkeypatch.setenv("FOREBAY_NVJPEG_BACKEND", text)
    asked = []
    monkeypatch.setattr(_device._native, "Device", lambda *arguments: asked.append(arguments))
    _device.opened(_device.Wish("cuda"), IMAGE, "torch", suits=False)
    assert [(ordinal, asked_for) for ordinal, _, asked_for in asked] == [(0, backend)]


def test_unknown_nvjpeg_backend_is_rejected(gpus, monkeypatch):
    gpus(1)
    for text in ("2", "engines"):
        monkeypatch.setenv("FOREBAY_NVJPEG_BACKEND", text)
        with pytest.raises(forebay.Invalid, match=text):
            _device.opened(_device.Wish("cuda"), IMAGE, "torch", suits=False)


def test_nvjpeg_is_found_in_the_variable_and_in_packages(monkeypatch):
    monkeypatch.setenv("FOREBAY_NVJPEG", "/opt/libnvjpeg.so")
    found = _device.libraries()
    assert found[0] == "/opt/libnvjpeg.so"
    # torchvision, which the tests require, bundles nvJPEG.
    bundled = [path for path in found if "torchvision.libs" in path]
    assert bundled
    for symbol in ("nvjpegDecodeBatched", "nvjpegDecodeBatchedSupported"):
        assert hasattr(ctypes.CDLL(bundled[0]), symbol)


@needs_no_gpu
def test_gpu_is_accepted_for_arrays_but_not_for_ragged_ones(make):
    arrays = {"values": forebay.Npy("npy")}
    with pytest.raises(forebay.NotFound, match="libcuda"):
        next(iter(make(fields=arrays, device="cuda", framework="torch")))
    ragged = {"values": forebay.Npy("npy", ragged="pad"), "label": forebay.Int("cls")}
    with pytest.raises(forebay.Invalid, match=r"a GPU makes nothing else.*\.to\(\)"):
        make(fields=ragged, device="cuda", framework="torch")
    assert not _device.Wish(None).suits(arrays, "torch", has_code=False, in_worker=False)
