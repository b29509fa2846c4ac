"""A real model in place of an emulated accelerator."""

import json
import sys
import weakref

import model
import numpy
import pytest
import roster
import torch
from test_contest import document, play, request

from conftest import BATCH

NAME = "squeezenet1_1"


@pytest.fixture
def trained(monkeypatch):
    """A small model on the CPU: what it does with batches is the same."""
    monkeypatch.setattr(model, "WARM_UP", 1)
    monkeypatch.setattr(model, "TIMED", 1)
    return model.Model(NAME, 2, device="cpu")


@pytest.mark.parametrize("labels", [torch.tensor([3, 5000]), numpy.array([3, 5000])])
@pytest.mark.parametrize("wrap", [torch.from_numpy, numpy.copy])
def test_a_step_learns_from_what_any_loader_gives(trained, labels, wrap):
    images = numpy.random.default_rng(1).random((2, 3, 224, 224), dtype=numpy.float32)
    before = [weights.detach().clone() for weights in trained.model.parameters()]
    batch = [wrap(images), labels]
    followed = weakref.ref(batch[0])
    touched = trained(batch)
    del batch
    # Nothing is kept of it.
    assert followed() is None
    assert touched.samples == 2
    assert touched.bytes == images.nbytes + labels.nbytes
    after = list(trained.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_its_nominal_step_is_timed(trained):
    assert trained.nominal_seconds() > 0


def test_a_model_trains_on_a_gpu_or_says_that_there_is_none(shards, tmp_path, carried):
    """The model trains on a GPU if torch has one."""
    if not torch.cuda.is_available():
        told = roster.probe("torch", sys.executable, images=True, model=NAME)
        assert "torch finds no GPU" in roster.why_not("torch", sys.executable, told)
        pytest.skip("needs gpu: torch finds none to train a model on")
    asked = request(shards, tmp_path / "work", images=True, rounds=1, model=NAME)
    said = document(play(carried, {**asked, "contenders": ["forebay", "torch"]}))
    assert said["model"] == NAME
    # Who is not installed here does not play; whoever is there holds out.
    assert "forebay" in [one["name"] for one in said["contenders"]]
    assert said["failed"] == [], json.dumps(said["failed"])
    for one in said["contenders"]:
        (played,) = one["rounds"]
        assert played["samples"] == played["steps"] * BATCH
        assert 0 < played["au_measured"] <= 1
        assert 0 < played["step_seconds"] != 0.01
