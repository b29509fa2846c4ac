"""Trains with FSDP2, and saves model, optimizer and loader together: it resumes on any ranks.

    torchrun --nproc-per-node=4 examples/elastic.py 's3://bucket/train-{000000..000099}.tar' \
        --manifest train.json --checkpoints s3://bucket/run

It looks like a user's own script. Started again, it goes on from the newest published checkpoint,
also on other nodes and with another number of ranks: the global batch stays the same, so the steps
are the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import forebay
from forebay import checkpoint


class Training:
    """Everything that a checkpoint holds: model, optimizer, and the place in the data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        ranks = distributed.get_world_size()
        if options.global_batch % ranks:
            raise SystemExit(
                f"--global-batch {options.global_batch} is not a multiple of {ranks} ranks"
            )
        torch.manual_seed(options.seed)
        self.model = nn.Sequential(
            nn.Linear(options.width, 64), nn.ReLU(), nn.Linear(64, options.classes)
        )
        fully_shard(self.model, mesh=init_device_mesh("cpu", (ranks,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.loader = forebay.DataLoader(
            options.urls,
            batch_size=options.global_batch // ranks,
            fields={"point": forebay.Npy("npy"), "label": forebay.Int("cls")},
            shuffle=True,
            seed=options.seed,
            manifest=options.manifest,
            job="examples/elastic.py",
        )
        self.steps = 0
        # Saves run beside the training, so they need a process group of their own.
        self.apart: Any = distributed.new_group(backend="gloo")
        self.saving: Any = None

    def state(self) -> dict[str, Any]:
        """Return what is saved; the loader's state is small and the same on every rank."""
        weights, moments = get_state_dict(self.model, self.optimizer)
        place = json.dumps({"steps": self.steps, "loader": self.loader.state_dict()})
        return {"model": weights, "optimizer": moments, "place": place}

    def save(self) -> None:
        """Save in the background; at most one save is under way."""
        self.finish()
        writer = checkpoint.Writer(
            f"{self.options.checkpoints}/step-{self.steps:06}",
            step=self.steps,
            # A run that was killed may have left a save of this step on its way.
            overwrite=True,
        )
        self.saving = dcp.async_save(self.state(), storage_writer=writer, process_group=self.apart)

    def finish(self) -> None:
        """Wait until the last save is durable on this node."""
        if self.saving is not None:
            self.saving.result()

    def resume(self) -> str | None:
        """Load the newest published checkpoint, if there is one; return its URL."""
        newest = checkpoint.latest(self.options.checkpoints)
        if newest is not None:
            state = self.state()
            dcp.load(state, storage_reader=checkpoint.Reader(newest))
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            place = json.loads(state["place"])
            self.steps = place["steps"]
            self.loader.load_state_dict(place["loader"])
        return newest

    def step(self, batch: dict[str, Any]) -> float:
        """Train on this rank's part of a global batch; return the loss of the whole."""
        valid = batch["__valid__"]
        losses = nn.functional.cross_entropy(
            self.model(batch["point"]), batch["label"], reduction="none"
        )[valid]
        total = torch.stack([losses.detach().sum(), valid.sum().float()])
        distributed.all_reduce(total)
        # FSDP averages over ranks, which may have unequal parts of an epoch's last batch.
        loss: Tensor = losses.sum() / total[1] * distributed.get_world_size()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return float(total[0] / total[1])


class Record:
    """Lines of JSON about this rank's steps, for those who compare runs."""

    def __init__(self, folder: Path | None) -> None:
        name = f"rank-{distributed.get_rank()}.jsonl"
        self._file = None if folder is None else (folder / name).open("w")

    def add(self, **values: Any) -> None:
        """Write a line; it stays if the process is killed afterwards."""
        if self._file is not None:
            print(json.dumps(values), file=self._file, flush=True)


def train(options: argparse.Namespace) -> None:
    """Train to the end of the last epoch, from wherever the newest checkpoint is."""
    training, record = Training(options), Record(options.record)
    newest = training.resume()
    record.add(resumed=newest, steps=training.steps, ranks=distributed.get_world_size())
    for epoch in range(training.loader.epoch, options.epochs):
        training.loader.set_epoch(epoch)
        for batch in training.loader:
            loss = training.step(batch)
            rows = zip(batch["__key__"], batch["__valid__"].tolist(), strict=True)
            keys = [key for key, is_valid in rows if is_valid]
            record.add(step=training.steps, epoch=epoch, loss=loss, keys=keys)
            if distributed.get_rank() == 0:
                print(f"step {training.steps} epoch {epoch} loss {loss:.4f}", flush=True)
            if training.steps % options.every == 0:
                training.save()
    training.finish()
    training.loader.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("urls", help="shards whose samples have npy and cls fields")
    parser.add_argument("--manifest", required=True, help="made by `forebay index URLS -o FILE`")
    parser.add_argument("--checkpoints", required=True, help="URL of the run")
    parser.add_argument("--global-batch", type=int, default=32, help="of all ranks (default: 32)")
    parser.add_argument("--epochs", type=int, default=3, help="(default: 3)")
    parser.add_argument("--every", type=int, default=10, help="steps between saves (default: 10)")
    parser.add_argument("--width", type=int, default=16, help="numbers of a sample (default: 16)")
    parser.add_argument("--classes", type=int, default=8, help="(default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: 0)")
    parser.add_argument("--record", type=Path, help="folder for the steps of each rank")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    train(options)
    # Together: a rank that leaves before the others looks like one that failed.
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
