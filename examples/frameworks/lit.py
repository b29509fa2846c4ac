"""Lightning: the loader is what `train_dataloader` returns.

    python examples/frameworks/lit.py 'shards-{0..9}.tar' --manifest m.json --seen seen

`use_distributed_sampler=False`: there is no sampler, the loader deals samples to ranks itself. It
is made in `train_dataloader`, when the ranks are there.
"""

from argparse import Namespace
from typing import Any

import lightning
import torch
from job import Seen, arguments
from torch import Tensor, nn

import forebay


class Regression(lightning.LightningModule):
    """As little as trains."""

    def __init__(self, options: Namespace) -> None:
        super().__init__()
        self.options = options
        self.layer = nn.Linear(1, 1)

    def train_dataloader(self) -> forebay.DataLoader:
        """Make the loader of this rank."""
        self.seen = Seen(self.options.seen, self.global_rank)
        return forebay.DataLoader(
            self.options.urls,
            batch_size=self.options.batch_size,
            fields={"label": forebay.Float("cls")},
            shuffle=True,
            manifest=self.options.manifest,
        )

    def training_step(self, batch: dict[str, Any], _number: int) -> Tensor:
        """Compute the loss of a batch."""
        self.seen.add(batch)
        loss: Tensor = self.layer(batch["label"][:, None]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Choose how to step."""
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def main() -> None:
    """Train one epoch with two processes."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(arguments(__doc__ or "")))
    # Lightning leaves gloo's group to the interpreter's end, where its threads abort the process
    # now and then. Together: a rank that leaves before the others looks like one that failed.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
