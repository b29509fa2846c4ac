r"""Hugging Face Accelerate: model and optimizer are prepared, the loader is not.

    accelerate launch --num-processes 2 examples/frameworks/accelerated.py 'shards-{0..9}.tar' \
        --manifest m.json --seen seen

The loader deals samples to ranks itself; `accelerator.prepare(loader)` would deal each rank's share
once more. Batches are moved with ``.to(accelerator.device)``.
"""

import torch
from accelerate import Accelerator
from job import Seen, arguments
from torch import nn

import forebay


def main() -> None:
    """Train one epoch."""
    options = arguments(__doc__ or "")
    accelerator = Accelerator(cpu=True)
    loader = forebay.DataLoader(
        options.urls,
        batch_size=options.batch_size,
        fields={"label": forebay.Float("cls")},
        shuffle=True,
        manifest=options.manifest,
    )
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    seen = Seen(options.seen, accelerator.process_index)
    for batch in loader:
        loss = model(batch["label"][:, None].to(accelerator.device)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        seen.add(batch)
    accelerator.end_training()


if __name__ == "__main__":
    main()
