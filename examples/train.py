"""Trains a small convolutional network on JPEG shards through Forebay, and reports starvation.

    python examples/train.py 's3://bucket/train-{000000..000099}.tar'

It looks like a user's own script. The loader is made in one call; the rest is ordinary PyTorch.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

import torch
from starvation_report import Epoch, Reading, render
from torch import nn
from tqdm import tqdm

import forebay

# ImageNet's channel statistics, as every recipe for it uses them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Steps between updates of the progress bar: reading the loss waits for a GPU to finish.
REFRESH_STEPS = 4


def model(classes: int) -> nn.Module:
    """Return a network small enough for two CPU cores to train while they decode."""

    def block(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )

    return nn.Sequential(
        # Four by four pixels at once: most of a network's work is in its first layers.
        nn.Conv2d(3, 16, 4, stride=4),
        block(16, 32, stride=2),
        block(32, 64, stride=2),
        block(64, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def train_epoch(
    loader: forebay.DataLoader,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    name: str,
) -> Epoch:
    """Train on every batch of one epoch, which the bar and the report call `name`."""
    start = time.monotonic()
    before = Reading.of(loader.stats(), start)
    first_batch_s = 0.0
    try:
        samples: int | None = loader.num_samples
    except TypeError:
        samples = None  # Nobody counted the samples; the bar then shows no end.
    with tqdm(total=samples, desc=name, unit="img", smoothing=0.1) as bar:
        for step, batch in enumerate(loader):
            first_batch_s = first_batch_s or time.monotonic() - start
            images = batch["image"].to(device, non_blocking=True)
            labels = batch["label"].to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            bar.update(len(labels))
            if step % REFRESH_STEPS == 0:
                elapsed = time.monotonic() - start
                waited = loader.stats()["wait"]["total_seconds"] - before.wait_s
                bar.set_postfix(loss=f"{loss.item():.3f}", waiting=f"{waited / elapsed:.0%}")
    return Epoch(name, before, Reading.of(loader.stats(), time.monotonic()), first_batch_s)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs="+", help="shards with jpg and cls fields; braces and globs")
    parser.add_argument("--epochs", type=int, default=2, help="(default: 2)")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--manifest", help="from `forebay index`; without it the bar has no end")
    parser.add_argument("--fresh-cache", action="store_true", help="call the first epoch cold")
    parser.add_argument("--samples", type=int, help="samples per epoch (default: all)")
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = model(arguments.classes).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    epochs = []
    with forebay.DataLoader(
        # A text is expanded (braces, globs), a list is taken literally.
        "::".join(arguments.urls),
        batch_size=arguments.batch_size,
        fields={
            "image": forebay.Image(
                "jpg;jpeg;png",
                size=224,
                crop="random",
                flip=True,
                dtype="float32",
                mean=MEAN,
                std=STD,
            ),
            "label": forebay.Int("cls"),
        },
        shuffle=True,
        drop_last=True,
        manifest=arguments.manifest,
        epoch_samples=arguments.samples,
        job="examples/train.py",
    ) as loader:
        for epoch in range(arguments.epochs):
            # The second epoch finds in the cache what the first one put there.
            temperature = ("cold" if epoch == 0 else "warm") if arguments.fresh_cache else device
            name = f"epoch {epoch} ({temperature})"
            epochs.append(train_epoch(loader, network, optimizer, device, name))
    print(f"\n{render(epochs)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
