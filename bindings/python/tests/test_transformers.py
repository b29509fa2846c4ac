"""Checkpoints of Hugging Face's Trainer, to a real S3 server: pushed and restored elsewhere."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import END_BEFORE_GLOO, Bucket, Home, assert_each_sample_once, s3_server, steps
from forebay import Invalid, NotFound, Unavailable, checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from forebay.transformers import CheckpointCallback, restore  # noqa: E402

# The Trainer's own habits.
pytestmark = pytest.mark.filterwarnings("ignore")

# Seconds for an upload to a local server on a busy machine.
PATIENCE = 120


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A line, which has to go through ten points."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        for weight in self.parameters():
            torch.nn.init.ones_(weight)

    def forward(self, x: Any, y: Any) -> Any:
        return {"loss": (self.layer(x[:, None])[:, 0] - y).square().mean()}


class StopAt(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Ends a training early."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def settings(folder: Path, **options: Any) -> Any:
    """Return arguments of a training of twelve steps."""
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    often = {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 1, "max_steps": 12}
    learning = {"learning_rate": 0.05, "lr_scheduler_type": "constant"}
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        **(quiet | often | learning | options),
    )


def train(folder: Path, *callbacks: Any, resume: str | None = None, **options: Any) -> Any:
    """Train a model; return the trainer."""
    points = [{"x": torch.tensor(n / 10), "y": torch.tensor(n / 5)} for n in range(10)]
    trainer = transformers.Trainer(
        Model(), settings(folder, **options), train_dataset=points, callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Any) -> list[float]:
    return [weight.item() for weight in trainer.model.parameters()]


def test_training_goes_on_on_another_machine(bucket: Bucket, tmp_path: Path) -> None:
    calm = train(tmp_path / "calm")
    here, there = tmp_path / "here", tmp_path / "there"
    assert restore(bucket.url, there) is None
    train(here, CheckpointCallback(bucket.url), StopAt(7))
    # The Trainer keeps one folder only, and all were published.
    assert len(list(here.iterdir())) == 1
    published = {name.partition("/")[0] for name in bucket.names()}
    assert published == {"checkpoint-3", "checkpoint-6"}
    # What a killed save left there is replaced.
    half = there / "checkpoint-6" / "half"
    half.mkdir(parents=True)
    folder = restore(bucket.url, there)
    assert folder == str(there / "checkpoint-6")
    assert not half.exists()
    assert [path.name for path in there.iterdir()] == ["checkpoint-6"]
    last = train(there, CheckpointCallback(bucket.url), resume=folder)
    assert last.state.global_step == 12
    assert weights(last) == pytest.approx(weights(calm))
    assert checkpoint.latest(bucket.url) == f"{bucket.url}/checkpoint-12"


SCRIPT = """
import json, os, signal, sys
import torch, transformers
import forebay
from forebay.transformers import CheckpointCallback, restore

shards, manifest, url, output, seen, fatal = json.loads(sys.argv[1])
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        for weight in self.parameters():
            torch.nn.init.ones_(weight)
    def forward(self, label, **_):
        return {"loss": (self.layer(label[:, None] / 60) - 1).square().mean()}

class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        return loader
    def training_step(self, model, inputs, *rest):
        if self.state.global_step == fatal:
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        keys = list(zip(inputs["__key__"], inputs["__valid__"].tolist()))
        with open(f"{seen}/{rank}", "a") as file:
            step = [self.state.global_step, [key for key, valid in keys if valid]]
            print(json.dumps(step), file=file)
        return super().training_step(model, inputs, *rest)

args = transformers.TrainingArguments(
    output_dir=output, num_train_epochs=2, save_strategy="steps", save_steps=4, use_cpu=True,
    report_to=[], disable_tqdm=True, logging_strategy="no", learning_rate=0.05,
    lr_scheduler_type="constant", ignore_data_skip=True)
loader = forebay.DataLoader(
    shards, batch_size=6 // ranks, fields={"label": forebay.Float("cls")}, shuffle=True,
    manifest=manifest, timeout=60.0, framework="torch")
folder = restore(url, output, loader=loader)
trainer = Trainer(Model(), args, callbacks=[CheckpointCallback(url, loader=loader, strict=True)])
trainer.train(resume_from_checkpoint=folder)
if rank == 0:
    weights = [weight.item() for weight in trainer.model.parameters()]
    print(json.dumps([folder, trainer.state.global_step, weights]))
if ranks > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def play(script: Path, ranks: int, *arguments: Any) -> tuple[int, str]:
    """Run a script by some ranks; return the exit status and what rank 0 says at its end."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(start if ranks > 1 else []), str(script), json.dumps(arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    return ended.returncode, ended.stdout


def test_killed_ranks_resume_with_their_loader(
    shards: list[str], manifest: str, bucket: Bucket, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + END_BEFORE_GLOO)
    told, seen = {}, {}
    # A rank alone trains on the batches of two.
    for name, ranks, fatals in (("calm", 1, [None]), ("killed", 2, [14, None])):
        (tmp_path / name).mkdir()
        for fatal in fatals:
            url, output = f"{bucket.url}/{name}", tmp_path / f"{name}-output"
            status, said = play(
                script, ranks, shards, manifest, url, str(output), str(tmp_path / name), fatal
            )
            assert (status == 0) == (fatal is None)
            if fatal is not None:
                # The node with its folder is gone.
                checkpoint.wait(f"{url}/checkpoint-12", "published", PATIENCE)
                shutil.rmtree(output)
        told[name] = json.loads(said.splitlines()[-1])
        seen[name] = steps(tmp_path / name)
    assert told["killed"][0] == str(tmp_path / "killed-output" / "checkpoint-12")
    assert told["killed"][1] == told["calm"][1] == 20
    assert told["killed"][2] == pytest.approx(told["calm"][2], rel=1e-4)
    assert seen["killed"] == seen["calm"]
    assert_each_sample_once(seen["killed"])
    names = bucket.names()
    for rank in range(2):
        assert f"killed/checkpoint-20/rng_state_{rank}.pth" in names


# Two ranks, each on a node of its own: callbacks as the Trainer calls them.
NODES = """
import json, os, sys
from pathlib import Path
from torch import distributed
from transformers import TrainerControl, TrainerState, TrainingArguments
from forebay.transformers import CheckpointCallback, restore

case, url, root, rank, meet = sys.argv[1:]
rank = int(rank)
os.environ |= {
    "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    # Accelerate wants to know them; the group is there before.
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
distributed.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=2)
place = Path(root, "shared" if case == "shared" else f"node-{rank}")
folder = place / "checkpoint-5"
folder.mkdir(parents=True, exist_ok=True)
if rank == 0:
    (folder / "model.bin").write_bytes(b"model")
(folder / f"rng_state_{rank}.pth").write_bytes(b"%d" % rank)
if case == "spread":
    (folder / f"optimizer-{rank}.bin").write_bytes(b"%d" % rank)
args = TrainingArguments(output_dir=str(place), use_cpu=True, report_to=[])
state = TrainerState(
    global_step=5, is_world_process_zero=rank == 0, is_local_process_zero=True)
callback = CheckpointCallback(url, progress=False)
callback.on_save(args, state, TrainerControl())
callback.on_train_end(args, state, TrainerControl())
told = {url.rpartition("/")[2]: error.kind for url, error in callback.failures.items()}
# Other machines.
place = Path(root, "other" if case == "shared" else f"other-{rank}")
folder, brought = restore(url, place), None
# Until then a folder may be under way beside it.
distributed.barrier()
if folder is not None:
    assert Path(folder) == place / "checkpoint-5"
    brought = sorted(path.name for path in Path(folder).iterdir())
    assert [path.name for path in place.iterdir()] == ["checkpoint-5"]
# Both have looked.
distributed.barrier()
print(json.dumps([told, brought]))
distributed.destroy_process_group()
"""


def told_by_ranks(code: str, arguments: list[list[str]]) -> list[str]:
    """Run a process for each rank, and return what each prints."""
    command = [sys.executable, "-W", "ignore", "-c", code + END_BEFORE_GLOO]
    ranks = [
        subprocess.Popen([*command, *of_rank], stdout=subprocess.PIPE, text=True)
        for of_rank in arguments
    ]
    told = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
    return told


@pytest.mark.parametrize("case", ["shared", "own", "spread"])
def test_ranks_on_two_nodes_save_once(case: str, bucket: Bucket, tmp_path: Path) -> None:
    given, meet = [case, bucket.url, str(tmp_path / "nodes")], str(tmp_path / "meet")
    nodes = told_by_ranks(NODES, [[*given, str(rank), meet] for rank in range(2)])
    told = [json.loads(node) for node in nodes]
    of_ranks = ["rng_state_0.pth", "rng_state_1.pth"][: 2 if case == "shared" else 1]
    names = None if case == "spread" else ["model.bin", *of_ranks]
    assert [brought for _, brought in told] == [names, names]
    assert told[0][0] == ({"checkpoint-5": "Invalid"} if case == "spread" else {})
    # Ranks other than the first save nothing, and fail at nothing.
    assert told[1][0] == {}
    assert bucket.names() == [f"checkpoint-5/{name}" for name in names or []]


RESTORES = """
import sys
from torch import distributed
from forebay import checkpoint
from forebay.transformers import restore

url, folder, rank, meet = sys.argv[1:]
distributed.init_process_group("gloo", f"file://{meet}", rank=int(rank), world_size=4)
bring = checkpoint.restore
def counted(*arguments, **options):
    print("restored")
    return bring(*arguments, **options)
checkpoint.restore = counted
restore(url, folder)
distributed.barrier()
distributed.destroy_process_group()
"""


def test_one_rank_restores_each_folder(bucket: Bucket, tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint-7"
    saved.mkdir()
    (saved / "model.bin").write_bytes(b"model")
    checkpoint.push(saved, f"{bucket.url}/checkpoint-7")
    checkpoint.wait(f"{bucket.url}/checkpoint-7", "published", PATIENCE)
    # Two nodes with two ranks each, and a launcher that tells nothing of nodes.
    folders = [tmp_path / f"node-{rank // 2}" for rank in range(4)]
    meet = str(tmp_path / "meet")
    of_ranks = [[bucket.url, str(folder), str(rank), meet] for rank, folder in enumerate(folders)]
    told = told_by_ranks(RESTORES, of_ranks)
    assert told == ["restored\n", "", "restored\n", ""]
    for folder in folders[::2]:
        assert [path.name for path in folder.iterdir()] == ["checkpoint-7"]
        assert (folder / "checkpoint-7" / "model.bin").read_bytes() == b"model"


def test_failed_push_ends_no_training(tmp_path: Path, caplog: Any) -> None:
    # Nobody writes to web servers.
    url = "http://127.0.0.1:1/run"
    callback = CheckpointCallback(url)
    with caplog.at_level(logging.ERROR, "forebay"):
        trainer = train(tmp_path / "a", callback)
    assert trainer.state.global_step == 12
    assert list(callback.failures) == [f"{url}/checkpoint-{step}" for step in (3, 6, 9, 12)]
    assert all(isinstance(error, Invalid) for error in callback.failures.values())
    assert f"{url}/checkpoint-12" in caplog.text
    with pytest.raises(Invalid):
        train(tmp_path / "b", CheckpointCallback(url, strict=True))
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["checkpoint-3"]


def test_rank_without_a_loader_state_meets_the_others(tmp_path: Path, monkeypatch: Any) -> None:
    """An error before a collective would leave the other ranks in it."""
    met: list[str] = []

    class Loader:
        def state_dict(self) -> None:
            raise Unavailable("the queue does not answer", {})

    collectives = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_world_size": lambda: 1,
        "barrier": lambda: met.append("barrier"),
        "all_gather_object": lambda *_: met.append("names"),
    }
    monkeypatch.setattr("forebay.transformers.distributed", SimpleNamespace(**collectives))
    callback = CheckpointCallback("s3://bucket/run", loader=Loader())
    args = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=3, is_world_process_zero=False, is_local_process_zero=True)
    callback.on_save(args, state, None)
    assert met == ["barrier", "names"]
    assert [type(error) for error in callback.failures.values()] == [Unavailable]


def test_end_waits_no_longer_than_told(
    home: Home, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    # A daemon of its own: what it cannot upload would keep that of other tests from its end.
    (tmp_path / "bucket").mkdir()
    with s3_server(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        train(tmp_path / "a", before := CheckpointCallback("s3://bucket/run"), StopAt(3))
        assert before.failures == {}

    # The server is gone. With overwrite=True nobody asks what is published there.
    options = {"overwrite": True, "timeout": 0.5, "progress": False}
    after = CheckpointCallback("s3://bucket/run", **options)
    with caplog.at_level(logging.WARNING, "forebay"):
        train(tmp_path / "b", after, StopAt(6))
    assert [type(error) for error in after.failures.values()] == [Unavailable, Unavailable]
    assert all(url in caplog.text for url in after.failures)
    with pytest.raises(Unavailable):
        train(tmp_path / "c", CheckpointCallback("s3://bucket/run", strict=True, **options))


def test_published_checkpoint_is_replaced_only_on_request(bucket: Bucket, tmp_path: Path) -> None:
    first = train(tmp_path / "first", CheckpointCallback(bucket.url), StopAt(3))
    model = bucket.folder / "checkpoint-3" / "model.safetensors"
    published = model.read_bytes()
    refused = CheckpointCallback(bucket.url)
    train(tmp_path / "second", refused, StopAt(3), learning_rate=0.5)
    (error,) = refused.failures.values()
    assert isinstance(error, Invalid)
    assert error.places["reason"] == "exists"
    assert model.read_bytes() == published
    replacing = CheckpointCallback(bucket.url, overwrite=True)
    other = train(tmp_path / "third", replacing, StopAt(3), learning_rate=0.5)
    assert replacing.failures == {}
    assert model.read_bytes() != published
    assert weights(other) != weights(first)


def test_states_of_accelerate_go_there_and_back(bucket: Bucket, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    model, _ = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    accelerator.save_state(str(tmp_path / "here"))
    url = f"{bucket.url}/step-1"
    checkpoint.push(tmp_path / "here", url, step=1)
    checkpoint.wait(url, "published", PATIENCE)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    checkpoint.restore(url, tmp_path / "there")
    accelerator.load_state(str(tmp_path / "there"))
    assert [weight.item() for weight in model.parameters()] == [1, 1]


class Loader:
    """An object with a state, as a loader is one."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def state_dict(self) -> Any:
        return {"samples": 8}

    def load_state_dict(self, state: Any) -> None:
        self.loaded.append(state)


def test_state_of_a_loader_is_given_back(bucket: Bucket, tmp_path: Path) -> None:
    loader = Loader()
    callback = CheckpointCallback(bucket.url, loader=loader)
    # The Trainer would skip batches of a loader that stands behind them.
    with pytest.raises(Invalid) as raised:
        train(tmp_path / "here", callback)
    assert raised.value.places["option"] == "ignore_data_skip"
    train(tmp_path / "here", callback, StopAt(3), ignore_data_skip=True)
    restore(bucket.url, tmp_path / "there", loader=loader)
    assert loader.loaded == [{"samples": 8}]
    url = f"{bucket.url}/without"
    train(tmp_path / "without", CheckpointCallback(url), StopAt(3))
    with pytest.raises(NotFound) as missing:
        restore(url, tmp_path / "there", loader=loader)
    assert missing.value.places["url"] == f"{url}/checkpoint-3"


def test_unwritable_state_of_a_loader_ends_no_training(bucket: Bucket, tmp_path: Path) -> None:
    class Blocked(Loader):
        def state_dict(self) -> Any:
            (tmp_path / "run/checkpoint-3/forebay_loader.json").mkdir(parents=True, exist_ok=True)
            return super().state_dict()

    callback = CheckpointCallback(bucket.url, loader=Blocked())
    trainer = train(tmp_path / "run", callback, StopAt(3), ignore_data_skip=True)
    assert trainer.state.global_step == 3
    assert [type(error) for error in callback.failures.values()] == [IsADirectoryError]


def test_mistakes_are_told(bucket: Bucket, tmp_path: Path, monkeypatch: Any) -> None:
    for call in (
        lambda: CheckpointCallback(bucket.url, timeout=-1),
        lambda: CheckpointCallback(bucket.url, strict="yes"),
        lambda: CheckpointCallback(str(Path(bucket.url))),
    ):
        with pytest.raises(Invalid):
            call()
    # Ranks that cannot agree would restore over each other.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Invalid):
        restore(bucket.url, tmp_path)
