"""Torch's DataLoader on a folder of classes, as torchvision's documentation has it."""

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main() -> None:
    """Read one epoch."""
    dataset = ImageFolder(
        "photos/train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(32),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    samples, total = 0, 0
    for image, label in loader:
        assert image.shape[1:] == (3, 32, 32)
        assert image.dtype == torch.float32
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
