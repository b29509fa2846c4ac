"""Mosaic Streaming, from a folder or a bucket of MDS shards."""

from typing import Any

from streaming import StreamingDataset
from torch.utils.data import DataLoader
from torchvision.transforms.functional import pil_to_tensor


class Photos(StreamingDataset):  # type: ignore[misc]
    """Photos as tensors, and their labels."""

    def __getitem__(self, at: Any) -> Any:
        """Return a picture and a label."""
        sample = super().__getitem__(at)
        return pil_to_tensor(sample["jpeg"].convert("RGB")), sample["uint8"]


def main() -> None:
    """Read one epoch."""
    dataset = Photos(local="mds/train", shuffle=True, batch_size=2, allow_unsafe_types=True)
    loader: Any = DataLoader(dataset, batch_size=2)
    samples, total = 0, 0
    for image, label in loader:
        assert image.shape[1:] == (3, 3, 4)
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
