"""The same shards with `forebay.DataLoader`, which decodes and batches outside Python's lock."""

import forebay


def main() -> None:
    """Read one epoch."""
    loader = forebay.DataLoader(
        "shards/train-*.tar",
        batch_size=8,
        fields={"image": forebay.Image("jpg;png", size=32), "label": forebay.Int("cls")},
        shuffle=True,
        on_error="skip",
    )
    samples, total = 0, 0
    for batch in loader:
        label = batch["label"]
        samples, total = samples + len(label), total + int(label.sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
