"""Two data sets in one stream, by weight.

    python examples/cookbook/mixture.py 's3://bucket/web-{000..999}.tar' 's3://bucket/clean-{00..09}.tar'

In every prefix of the epoch each data set has its share, to within one sample. The smaller one
repeats in another order.
"""

import sys

import forebay


def main() -> None:
    """Read one epoch of a hundred samples."""
    web, clean = sys.argv[1:]
    loader = forebay.DataLoader(
        [forebay.Stream(web, weight=0.7), forebay.Stream(clean, weight=0.3)],
        batch_size=10,
        fields={"label": forebay.Int("cls")},
        shuffle=True,
        epoch_samples=100,
    )
    counts = {"web": 0, "clean": 0}
    for batch in loader:
        for url in batch["__url__"]:
            counts["clean" if "clean" in url else "web"] += 1
    print(f"web {counts['web']}, clean {counts['clean']}")


if __name__ == "__main__":
    main()
