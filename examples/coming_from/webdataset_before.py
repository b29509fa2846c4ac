"""WebDataset's fluent chain and its loader."""

import glob
from typing import Any

import webdataset as wds


def first(image: Any) -> Any:
    """Give the mean of a picture, as a stand-in for an augmentation."""
    return image.float().mean()


def main() -> None:
    """Read one epoch."""
    dataset = (
        wds.WebDataset(sorted(glob.glob("shards/train-*.tar")), shardshuffle=100)
        .shuffle(1000)
        .decode("torchrgb8")
        .to_tuple("jpg;png", "cls")
        .map_tuple(first, None)
        .batched(8)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=1)
    samples, total = 0, 0
    for _, label in loader:
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
