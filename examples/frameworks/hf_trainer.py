r"""Hugging Face's Trainer: the loader is what `get_train_dataloader` returns.

    torchrun --nproc-per-node=2 examples/frameworks/hf_trainer.py 'shards-{0..9}.tar' \
        --manifest m.json --seen seen

Overriding it keeps the loader out of Accelerate's hands, which would deal each rank's share once
more.
"""

from typing import Any

import torch
from job import Seen, arguments
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import forebay


class Regression(nn.Module):
    """As little as trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, label: Tensor, **_: Any) -> dict[str, Tensor]:
        """Compute the loss of a batch."""
        return {"loss": self.layer(label[:, None]).square().mean()}


class ShardTrainer(Trainer):
    """A Trainer on shards."""

    loader: forebay.DataLoader
    seen: Seen

    def get_train_dataloader(self) -> forebay.DataLoader:  # type: ignore[override]
        """Give the loader as it is."""
        return self.loader

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> Tensor:
        """Note the samples, then train on them."""
        self.seen.add(inputs)
        return super().training_step(model, inputs, *rest)


def main() -> None:
    """Train one epoch."""
    options = arguments(__doc__ or "")
    training = TrainingArguments(
        output_dir=str(options.seen / "output"),
        num_train_epochs=1,
        per_device_train_batch_size=options.batch_size,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ShardTrainer(Regression(), training)
    trainer.loader = forebay.DataLoader(
        options.urls,
        batch_size=options.batch_size,
        fields={"label": forebay.Float("cls")},
        shuffle=True,
        manifest=options.manifest,
    )
    trainer.seen = Seen(options.seen, torch.distributed.get_rank())
    trainer.train()
    # Together: a rank that leaves before the others looks like one that failed.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
