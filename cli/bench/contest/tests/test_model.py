"""A real model in place of an emulated accelerator."""

import json
import sys
import weakref

import model
import numpy
import pytest
import roster
import torch
from test_contest import document, request, run_contest

from conftest import BATCH

NAME = "squeezenet1_1"


@pytest.fixture
def trained(monkeypatch):
    """A small model on the CPU, which handles batches as on a GPU."""
    monkeypatch.setattr(model, "WARM_UP", 1)
    monkeypatch.setattr(model, "TIMED", 1)
    return model.Model(NAME, 2, device="cpu")


@pytest.mark.parametrize("labels", [torch.tensor([3, 5000]), numpy.array([3, 5000])])
@pytest.mark.parametrize("wrap", [torch.from_numpy, numpy.copy])
def test_model_step_learns_from_tensors_and_arrays(trained, labels, wrap):
    images = numpy.random.default_rng(1).random((2, 3, 224, 224), dtype=numpy.float32)
    before = [weights.detach().clone() for weights in trained.model.parameters()]
    batch = [wrap(images), labels]
    followed = weakref.ref(batch[0])
    touched = trained(batch)
    del batch
    # The model keeps no reference to the batch.
    assert followed() is None
    assert touched.samples == 2
    assert touched.bytes == images.nbytes + labels.nbytes
    after = list(trained.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_nominal_step_of_a_model_is_timed(trained):
    assert trained.nominal_seconds() > 0


def test_model_trains_on_a_gpu_or_reports_a_missing_one(shards, tmp_path, carried):
    """The contest trains the model on a GPU; without one the test checks the reason, and skips."""
    if not torch.cuda.is_available():
        told = roster.probe("torch", sys.executable, images=True, model=NAME)
        assert "torch finds no GPU" in roster.why_not("torch", sys.executable, told)
        pytest.skip("needs gpu: torch finds none to train a model on")
    asked = request(shards, tmp_path / "work", images=True, rounds=1, model=NAME)
    report = document(run_contest(carried, {**asked, "contenders": ["forebay", "torch"]}))
    assert report["model"] == NAME
    # Contenders that are not installed are absent; the others must finish.
    assert "forebay" in [one["name"] for one in report["contenders"]]
    assert report["failed"] == [], json.dumps(report["failed"])
    for one in report["contenders"]:
        (run,) = one["rounds"]
        assert run["samples"] == run["steps"] * BATCH
        assert 0 < run["au_measured"] <= 1
        assert 0 < run["step_seconds"] != 0.01
