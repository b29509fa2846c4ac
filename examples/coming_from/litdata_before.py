"""LitData's StreamingDataset and StreamingDataLoader."""

from litdata import StreamingDataLoader, StreamingDataset


def main() -> None:
    """Read one epoch."""
    dataset = StreamingDataset("litdata/train", shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=8)
    samples, total = 0, 0
    for batch in loader:
        assert batch["image"].shape[1] == 3
        samples, total = samples + len(batch["label"]), total + int(batch["label"].sum())
    print(f"{samples} samples, labels sum to {total}")


if __name__ == "__main__":
    main()
