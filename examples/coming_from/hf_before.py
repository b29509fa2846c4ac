"""Hugging Face's `datasets`, from Parquet files as the Hub keeps them."""

from typing import Any

from datasets import load_dataset
from torch.utils.data import DataLoader
from torchvision.transforms.functional import pil_to_tensor


def to_tensors(batch: Any) -> Any:
    """Turn the pictures of a batch into tensors."""
    return {
        "image": [pil_to_tensor(image.convert("RGB")) for image in batch["image"]],
        "label": batch["label"],
    }


def main() -> None:
    """Read one epoch."""
    dataset = load_dataset("parquet", data_files="hf/train-*.parquet", split="train")
    dataset = dataset.select_columns(["image", "label"]).shuffle(seed=0)
    loader: Any = DataLoader(dataset.with_transform(to_tensors), batch_size=2)
    samples, total = 0, 0
    for batch in loader:
        assert batch["image"].shape[1:] == (3, 3, 4)
        samples, total = samples + len(batch["label"]), total + int(batch["label"].sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
