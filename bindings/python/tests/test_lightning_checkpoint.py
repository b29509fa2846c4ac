"""Lightning's checkpoints through the node, to a real S3 server: kills, resumes, removals."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from conftest import Bucket, Home, assert_each_sample_once, s3_server, steps
from forebay import Invalid, NotFound, Unavailable, checkpoint

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")
pytest.importorskip("s3fs")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from forebay.lightning import CheckpointIO, existing, tells  # noqa: E402

# Lightning's own habits.
pytestmark = pytest.mark.filterwarnings("ignore")

# Seconds for an upload to a local server on a busy machine.
PATIENCE = 120

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """Collect unfinished iterations before the shared daemon ends."""
    yield
    gc.collect()


def holds(bucket: Bucket, names: list[str]) -> bool:
    """Wait until a bucket has these objects alone: removals of uploads end behind the call."""
    end = time.monotonic() + PATIENCE
    while others := sorted(set(bucket.names()) - set(names)):
        assert time.monotonic() < end, others
        # Each look asks the store.
        existing(f"{bucket.url}/{others[0]}")
    return bucket.names() == sorted(names)


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A module whose weights tell the steps it made."""

    def __init__(self, width: int = 1, log: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(4, self.layer.in_features))

    def training_step(self, batch: Any, number: int) -> Any:
        loss = self.layer(batch).square().mean()
        # A slash in a metric's name becomes a folder in a checkpoint's name.
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(plugin: Any, *callbacks: Any, **options: Any) -> Any:
    """Train a model; return the trainer."""
    settings = QUIET | {"enable_checkpointing": bool(callbacks), "max_epochs": 3}
    trainer = lightning.Trainer(plugins=[plugin], callbacks=list(callbacks), **settings)
    trainer.fit(Model(), **options)
    return trainer


SCRIPT = """
import hashlib, json, os, signal, sys
import forebay, lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from forebay.lightning import CheckpointIO, existing

shards, manifest, url, seen, ranks, fatal = json.loads(sys.argv[1])

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        for weight in self.parameters():
            torch.nn.init.ones_(weight)
    def train_dataloader(self):
        return forebay.DataLoader(
            shards, batch_size=6 // ranks, fields={"label": forebay.Float("cls")}, shuffle=True,
            manifest=manifest, timeout=60.0, framework="torch")
    def training_step(self, batch, number):
        if self.global_step == fatal:
            if self.global_rank == 0:
                os.killpg(0, signal.SIGKILL)
            signal.pause()
        keys = list(zip(batch["__key__"], batch["__valid__"].tolist()))
        with open(f"{seen}/{self.global_rank}", "a") as file:
            print(json.dumps([self.global_step, [key for key, valid in keys if valid]]), file=file)
        return (self.layer(batch["label"][:, None] / 60) - 1).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

saver = ModelCheckpoint(dirpath=url, every_n_train_steps=4, save_top_k=1, save_last=True)
trainer = lightning.Trainer(
    accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=2,
    logger=False, enable_progress_bar=False, enable_model_summary=False,
    use_distributed_sampler=False, plugins=[CheckpointIO(strict=True)], callbacks=[saver])
model = Model()
trainer.fit(model, ckpt_path=existing(f"{url}/last.ckpt"))
if trainer.is_global_zero:
    weights = [weight.item() for weight in model.parameters()]
    print(json.dumps([trainer.global_step, weights]))
if ranks > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def play(script: Path, *arguments: Any) -> tuple[int, str]:
    """Run a script; return the exit status and what rank 0 says at its end."""
    # Lightning starts a second rank by the same command, in the same group of processes.
    command = [sys.executable, str(script), json.dumps(arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        told = process.communicate()[0]
    return process.returncode, told


def test_killed_ranks_resume_from_the_bucket(
    shards: list[str], manifest: str, bucket: Bucket, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    weights, seen = {}, {}
    # A rank alone trains on the batches of two.
    for name, ranks, fatals in (("calm", 1, [None]), ("killed", 2, [14, None])):
        folder = tmp_path / name
        folder.mkdir()
        for fatal in fatals:
            url = f"{bucket.url}/{name}"
            status, told = play(script, shards, manifest, url, str(folder), ranks, fatal)
            assert status == (0 if fatal is None else -signal.SIGKILL)
        made, weights[name] = json.loads(told.splitlines()[-1])
        assert made == 20
        seen[name] = steps(folder)
    # The resumed run repeats the steps after the save of step 12.
    assert seen["killed"] == seen["calm"]
    assert weights["killed"] == pytest.approx(weights["calm"])
    assert_each_sample_once(seen["killed"])
    # The end of `fit` waited for these, and removed the others.
    kept = ("epoch=1-step=20.ckpt", "last.ckpt")
    assert holds(bucket, [f"{name}/{key}" for name in ("calm", "killed") for key in kept])


def test_only_the_best_checkpoints_stay(bucket: Bucket) -> None:
    best = ModelCheckpoint(
        dirpath=bucket.url, monitor="train/loss", save_top_k=2, filename="{train/loss:.3f}"
    )
    trainer = fit(CheckpointIO(), best)
    assert trainer.global_step == 12
    kept = [url.removeprefix(f"{bucket.url}/") for url in best.best_k_models]
    assert len(kept) == 2
    assert holds(bucket, kept)
    # The name that Lightning gives is one that it finds again.
    fit(CheckpointIO(), ckpt_path=best.best_model_path)


def test_second_fit_leaves_checkpoints_of_the_first(bucket: Bucket) -> None:
    # Lightning looks at a folder that has something, and s3fs remembers its listing.
    bucket.folder.mkdir()
    (bucket.folder / "notes.txt").touch()
    for _ in range(2):
        fit(CheckpointIO(), ModelCheckpoint(dirpath=bucket.url, filename="model", save_top_k=-1))
    assert bucket.names() == ["model-v1.ckpt", "model.ckpt", "notes.txt"]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_both_packages_accept_it(package: str, bucket: Bucket) -> None:
    trainers = pytest.importorskip(package)
    for plugin in (CheckpointIO(), pickle.loads(pickle.dumps(CheckpointIO()))):
        trainer = trainers.Trainer(plugins=[plugin], **QUIET)
        assert trainer.strategy.checkpoint_io is plugin
    fabric = pytest.importorskip("lightning.fabric").Fabric(
        accelerator="cpu", devices=1, plugins=[CheckpointIO()]
    )
    fabric.save(f"{bucket.url}/fabric.ckpt", {"step": 7})
    assert fabric.load(f"{bucket.url}/fabric.ckpt") == {"step": 7}


def test_package_is_found_that_is_imported_later() -> None:
    # Imports are sorted: this module comes before Lightning's.
    script = (
        "from forebay.lightning import CheckpointIO\n"
        "plugin = CheckpointIO()\n"
        "import sys, pytorch_lightning, lightning\n"
        "for package in (pytorch_lightning, lightning):\n"
        "    package.Trainer(plugins=[plugin], accelerator='cpu', logger=False)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


class Opaque:
    """A value that torch does not load unless told."""


def test_states_load_as_torch_loads_by_default(bucket: Bucket) -> None:
    plugin, url = CheckpointIO(), f"{bucket.url}/state.ckpt"
    plain = {"weight": torch.ones(3), "loader": {"epoch": 1, "samples": 16, "of": [None, "a"]}}
    plugin.save_checkpoint(plain, url)
    loaded = plugin.load_checkpoint(url)
    assert torch.equal(loaded.pop("weight"), plain.pop("weight"))
    assert loaded == plain
    moved = {"weight": torch.ones(3)}
    plugin.save_checkpoint(moved, url)
    assert plugin.load_checkpoint(url, map_location="meta")["weight"].is_meta
    plugin.save_checkpoint({"value": Opaque()}, url)
    for given in (None, True):
        with pytest.raises(pickle.UnpicklingError):
            plugin.load_checkpoint(url, weights_only=given)
    assert isinstance(plugin.load_checkpoint(url, weights_only=False)["value"], Opaque)


def test_old_release_of_lightning_loads_all_states(bucket: Bucket) -> None:
    class Old:
        """The base class before Lightning 2.6."""

        def load_checkpoint(self, path: Any, map_location: Any = None) -> Any: ...

    assert tells(lightning.fabric.plugins.io.checkpoint_io.CheckpointIO)
    assert not tells(Old)
    plugin, url = CheckpointIO(), f"{bucket.url}/state.ckpt"
    plugin.save_checkpoint({"value": Opaque()}, url)
    plugin._is_told = False
    assert isinstance(plugin.load_checkpoint(url)["value"], Opaque)


def test_model_loads_from_an_open_file(bucket: Bucket) -> None:
    trainer = fit(CheckpointIO())
    trainer.save_checkpoint(f"{bucket.url}/model.ckpt")
    with checkpoint.open(f"{bucket.url}/model.ckpt") as file:
        loaded = Model.load_from_checkpoint(file)
    assert torch.equal(loaded.layer.weight, trainer.model.layer.weight)


def test_missing_checkpoint_starts_anew(bucket: Bucket) -> None:
    url = f"{bucket.url}/last.ckpt"
    assert existing(url) is None
    with pytest.raises(NotFound) as raised:
        fit(CheckpointIO(), ckpt_path=url)
    assert raised.value.places["url"] == url
    plugin = CheckpointIO()
    plugin.save_checkpoint({}, url)
    # Before it is published, too.
    assert existing(url) == url
    checkpoint.wait(url, "published", PATIENCE)
    plugin.remove_checkpoint(url)
    assert holds(bucket, [])
    assert existing(url) is None
    # One that is gone already ends nothing.
    plugin.remove_checkpoint(url)


def test_removal_reaches_uploads_and_objects_of_others(bucket: Bucket) -> None:
    plugin, url = CheckpointIO(), f"{bucket.url}/state.ckpt"
    plugin.save_checkpoint({"step": 1}, url)
    plugin.remove_checkpoint(url)
    plugin.teardown()
    assert holds(bucket, [])
    assert existing(url) is None
    # Another node saved these.
    bucket.folder.mkdir(exist_ok=True)
    (bucket.folder / "other.ckpt").write_bytes(b"other")
    plugin.remove_checkpoint(f"{bucket.url}/other.ckpt")
    assert holds(bucket, [])
    plugin.save_checkpoint({"step": 2}, url)
    plugin.teardown()
    assert plugin.load_checkpoint(url) == {"step": 2}


def test_failed_removal_ends_no_training(caplog: Any) -> None:
    # No file system of fsspec knows it.
    url = "hf://datasets/nobody/nothing/state.ckpt"
    with caplog.at_level(logging.WARNING, "forebay"):
        CheckpointIO().remove_checkpoint(url)
    assert url in caplog.text


def test_end_waits_no_longer_than_told(
    home: Home, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    # A daemon of its own: what it cannot upload would keep that of other tests from its end.
    (tmp_path / "bucket").mkdir()
    with s3_server(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
    # The server is gone.
    url = "s3://bucket/last.ckpt"
    plugin = CheckpointIO(timeout=0.5, progress=False)
    plugin.save_checkpoint({"step": 1}, url)
    with caplog.at_level(logging.WARNING, "forebay"):
        plugin.teardown()
    assert url in caplog.text
    strict = CheckpointIO(timeout=0.5, strict=True, progress=False)
    strict.save_checkpoint({"step": 2}, url)
    with pytest.raises(Unavailable):
        strict.teardown()
    # The failure of a run is told, and not another one.
    patient = CheckpointIO(timeout=3600.0, strict=True, progress=False)
    patient.save_checkpoint({"step": 3}, url)

    class Failing(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, *_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(patient, Failing())


def test_weights_between_processes_are_plain_files(tmp_path: Path) -> None:
    # Strategies that spawn hand them to the parent, whatever the node lets jobs save.
    plugin, path = CheckpointIO(), tmp_path / ".temp.ckpt"
    plugin.save_checkpoint({"step": 1}, path)
    assert torch.load(path) == {"step": 1}
    assert plugin.load_checkpoint(path) == {"step": 1}
    plugin.remove_checkpoint(path)
    assert not path.exists()


def test_mistakes_are_told(bucket: Bucket) -> None:
    plugin = CheckpointIO()
    for call in (
        lambda: CheckpointIO(timeout=-1),
        lambda: CheckpointIO(strict="no"),
        lambda: plugin.save_checkpoint({}, f"{bucket.url}/x", storage_options={"acl": "private"}),
        # pathlib makes s3:/bucket of it, a folder below the current one.
        lambda: plugin.save_checkpoint({}, Path(bucket.url) / "x"),
        lambda: plugin.load_checkpoint(Path(bucket.url) / "x"),
    ):
        with pytest.raises(Invalid):
            call()
    assert bucket.names() == []
    assert forebay.checkpoint.latest(bucket.url) is None
