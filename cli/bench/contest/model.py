"""A real model's step on this machine's GPU, in place of an emulated one's.

The model gets the loader's batch, brought to the GPU if it is not there, and a step ends when the
GPU has finished. The nominal time is that of the same step on a batch already there, measured
before anything is loaded.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torchvision
from accelerator import Touched
from pixels import SIZE

# Steps before those that are timed: cuDNN tries its algorithms in the first.
WARM_UP, TIMED = 5, 20
CLASSES = 1000
RATE, MOMENTUM = 0.1, 0.9


class Model:
    """One of torchvision's models in training, by SGD."""

    def __init__(self, name: str, batch_size: int, device: str = "cuda") -> None:
        self.device = torch.device(device)
        torch.backends.cudnn.benchmark = True
        made = torchvision.models.get_model(name, weights=None, num_classes=CLASSES)
        self.model = made.to(self.device).train()
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.batch_size = batch_size

    def __call__(self, batch: Any) -> Touched:
        """Train on a batch of images and labels."""
        images, labels = (self.brought(column) for column in batch)
        # Real labels lie within the data set's classes; random ones here may not.
        self.train(images, labels.long() % CLASSES)
        return Touched(len(labels), images.nbytes + labels.nbytes)

    def brought(self, column: Any) -> torch.Tensor:
        """Return a column of a batch as a tensor on the GPU."""
        # SPDL's and DALI's are NumPy's.
        return torch.as_tensor(column).to(self.device, non_blocking=True)

    def train(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take one step, as with mixed precision, and wait for its end."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = self.loss(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def nominal_seconds(self) -> float:
        """Return the median time of a step on a batch that is there."""
        images = torch.rand(self.batch_size, 3, SIZE, SIZE, device=self.device)
        labels = torch.randint(CLASSES, (self.batch_size,), device=self.device)
        taken = []
        for number in range(WARM_UP + TIMED):
            begin = time.monotonic()
            self.train(images, labels)
            if number >= WARM_UP:
                taken.append(time.monotonic() - begin)
        return statistics.median(taken)
