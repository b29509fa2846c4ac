r"""DistributedDataParallel: the loader finds its rank in torch.distributed.

    torchrun --nproc-per-node=2 examples/frameworks/ddp.py 'shards-{0..9}.tar' \
        --manifest m.json --seen seen

Every rank has the same number of batches, so no rank waits for a gradient that never comes.
"""

import torch
from job import Seen, arguments
from torch import distributed, nn

import forebay


def main() -> None:
    """Train one epoch."""
    options = arguments(__doc__ or "")
    distributed.init_process_group("gloo")
    loader = forebay.DataLoader(
        options.urls,
        batch_size=options.batch_size,
        fields={"label": forebay.Float("cls")},
        shuffle=True,
        manifest=options.manifest,
    )
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = Seen(options.seen, distributed.get_rank())
    for batch in loader:
        loss = model(batch["label"][:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.add(batch)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
