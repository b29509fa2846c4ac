"""The same with Forebay, from the shards of that folder."""

import torch

import forebay


def main() -> None:
    """Read one epoch."""
    loader = forebay.DataLoader(
        "shards/train-*.tar",
        batch_size=8,
        fields={
            "image": forebay.Image(
                "jpg;jpeg;png",
                size=32,
                crop="random",
                flip=True,
                dtype="float32",
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
            ),
            "label": forebay.Int("cls"),
        },
        shuffle=True,
        manifest="shards/train.json",
    )
    samples, total = 0, 0
    for batch in loader:
        image, label = batch["image"], batch["label"]
        assert image.shape[1:] == (3, 32, 32)
        assert image.dtype == torch.float32
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
