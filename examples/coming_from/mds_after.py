"""The same with Forebay, from shards that `forebay pack` made of the MDS folder."""

import forebay


def main() -> None:
    """Read one epoch."""
    loader = forebay.DataLoader(
        "shards/train-*.tar",
        batch_size=2,
        fields={"image": forebay.Image("jpg", size=(3, 4)), "label": forebay.Int("cls")},
        shuffle=True,
        manifest="shards/train.json",
    )
    samples, total = 0, 0
    for batch in loader:
        image, label = batch["image"], batch["label"]
        assert image.shape[1:] == (3, 3, 4)
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
