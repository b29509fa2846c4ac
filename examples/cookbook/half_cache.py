"""A cache of half the data set's size saves traffic in each epoch after the first.

    FOREBAY_CAPACITY=600GiB python examples/cookbook/half_cache.py 's3://bucket/…' train.json

The loader announces its order, so the daemon keeps the shards that come next and fetches the others
ahead. With eviction by last use, a half-size cache would save nothing: each shard is gone before
its turn comes again.
"""

import sys

import forebay

EPOCHS = 4


def main() -> None:
    """Read four epochs, and count what each took from the origin."""
    urls, manifest = sys.argv[1:]
    loader = forebay.DataLoader(
        urls,
        batch_size=8,
        fields={"blob": forebay.Bytes("bin")},
        shuffle=True,
        manifest=manifest,
        # Shards mixed at once: small beside the cache.
        window=2,
    )
    samples = 0
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        samples += sum(len(batch["blob"]) for batch in loader)
    print(f"{samples} samples in {EPOCHS} epochs")


if __name__ == "__main__":
    main()
