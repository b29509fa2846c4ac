"""Lightning's states in mid-epoch: the batches that it holds back come again after a resume."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import WebDataset, WebLoader

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

pytestmark = [
    # Lightning's own habits.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """Collect unfinished iterations before the shared daemon ends."""
    yield
    gc.collect()


LABEL = {"label": forebay.Float("cls")}
ALL = [f"s{number:05}" for number in range(60)]


QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A module that records the samples it trained on."""

    def __init__(self, loader: Callable[[], Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.make = loader
        self.seen: list[list[str]] = []

    def train_dataloader(self) -> Any:
        self.loader = self.make()
        return self.loader

    def training_step(self, batch: Any, number: int) -> Any:
        self.seen.append(list(batch["__key__"]))
        return self.layer(torch.ones(1, 1)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Saving(lightning.Callback):  # type: ignore[misc, name-defined]
    """Saves a checkpoint after a batch."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self.after = str(path), after

    def on_train_batch_end(self, trainer: Any, model: Model, *_: Any) -> None:
        if len(model.seen) == self.after:
            trainer.save_checkpoint(self.path)


def play(
    make: Callable[[], Any], folder: Path, after: int, start: Path | None = None, epochs: int = 2
) -> tuple[list[list[str]], Path]:
    """Train to the end of `epochs`; save a checkpoint after so many batches."""
    model, path = Model(make), folder / f"after-{after}.ckpt"
    trainer = lightning.Trainer(
        max_epochs=epochs, callbacks=[Saving(path, after)], default_root_dir=folder, **QUIET
    )
    trainer.fit(model, ckpt_path=start)
    return model.seen, path


def resumes(make: Callable[[], Any], folder: Path, after: int) -> None:
    """Check that a run resumed after so many batches trains on the others, once each."""
    seen, path = play(make, folder, after)
    assert len(seen) > after
    rest, _ = play(make, folder, 0, path)
    assert seen[:after] + rest == seen


# Batches of an epoch: fifteen.
@pytest.mark.parametrize("after", [1, 4, 14, 15, 20])
@pytest.mark.parametrize("counted", [True, False])
def test_resumed_run_trains_on_the_other_batches(
    make: Callable[..., Any], manifest: str, tmp_path: Path, counted: bool, after: int
) -> None:
    options: dict[str, Any] = {"fields": LABEL, "shuffle": True, "framework": "torch"}
    if counted:
        options["manifest"] = manifest
    resumes(lambda: make(**options), tmp_path, after)


class Own(Model):
    """A module that saves the loader's state by itself."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["own"] = self.loader.state_dict()


@pytest.mark.parametrize("counted", [True, False])
def test_state_after_a_stop_counts_trained_batches(
    make: Callable[..., Any], manifest: str, tmp_path: Path, counted: bool
) -> None:
    options: dict[str, Any] = {"fields": LABEL, "shuffle": True, "framework": "torch"}
    if counted:
        options["manifest"] = manifest
    model, path = Own(lambda: make(**options)), tmp_path / "stopped.ckpt"
    trainer = lightning.Trainer(max_steps=4, **QUIET, default_root_dir=tmp_path)
    trainer.fit(model)
    # The loop is over, and with it the batch that it held back.
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=False)
    assert saved["own"]["samples"] == 16
    assert saved["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [saved["own"]]


@pytest.mark.parametrize("after", [1, 4, 14])
def test_resumed_chain_trains_on_the_other_batches(
    shards: list[str], tmp_path: Path, after: int
) -> None:
    def chain() -> Any:
        return WebDataset(shards, timeout=60.0).shuffle(10).map(key_and_number).batched(4)

    resumes(chain, tmp_path, after)
    resumes(lambda: WebLoader(chain(), batch_size=None, num_workers=0), tmp_path, after)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("counted", [True, False])
def test_stateful_workers_resume_or_are_rejected(
    shards: list[str], manifest: str, tmp_path: Path, counted: bool, workers: int
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    from forebay.torch import IterableDataset

    options: dict[str, Any] = {"fields": LABEL, "batch_size": 4, "timeout": 60.0}
    if counted:
        options["manifest"] = manifest

    def loader() -> Any:
        dataset = IterableDataset(shards, shuffle=True, framework="torch", **options)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    if workers and not counted:
        with pytest.raises(forebay.Invalid) as caught:
            resumes(loader, tmp_path, 4)
        assert caught.value.places["option"] == "manifest"
    else:
        resumes(loader, tmp_path, 4)


def key_and_number(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"]}


@pytest.mark.parametrize("after", [4, 14])
def test_resumed_queue_gives_the_other_samples(
    make: Callable[..., Any], tmp_path: Path, after: int
) -> None:
    options = {"fields": LABEL, "split": "dynamic", "framework": "torch"}
    seen, path = play(lambda: make(job="first", **options), tmp_path, after, epochs=1)
    rest, _ = play(lambda: make(job="first", **options), tmp_path, 0, path, epochs=1)
    keys = [key for batch in seen[:after] + rest for key in batch]
    assert sorted(keys) == ALL


def test_state_counts_what_a_plain_loop_received(make: Callable[..., Any]) -> None:
    # Only Lightning's own loop holds batches back.
    loader = make(fields=LABEL, shuffle=True)
    iteration = iter(loader)
    for taken in range(1, 5):
        next(iteration)
        assert json.loads(json.dumps(loader.state_dict()))["samples"] == 4 * taken
