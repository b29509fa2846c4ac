"""The same with Forebay, from shards that `forebay pack` made of the Parquet files."""

import json

import forebay


def main() -> None:
    """Read one epoch."""
    with open("shards/train.classes.json") as file:
        names = json.load(file)["cls"]
    loader = forebay.DataLoader(
        "shards/train-*.tar",
        batch_size=2,
        fields={
            "image": forebay.Image("jpg;png", size=(3, 4)),
            "label": forebay.Int("cls"),
            "caption": forebay.Text("caption.txt", optional=True),
        },
        shuffle=True,
        manifest="shards/train.json",
    )
    samples, total = 0, 0
    for batch in loader:
        image, label = batch["image"], batch["label"]
        assert image.shape[1:] == (3, 3, 4)
        assert all(0 <= number < len(names) for number in label.tolist())
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
