"""ImageNet on eight ranks: the loader finds its rank, and all ranks step equally often.

    torchrun --nproc-per-node=8 examples/cookbook/imagenet.py \
        's3://bucket/train-{000000..001281}.tar' train.json

The test starts eight processes with RANK and WORLD_SIZE, which is what torchrun sets.
"""

import sys

import forebay

# ImageNet's channel statistics.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPOCHS = 2


def main() -> None:
    """Train two epochs."""
    urls, manifest = sys.argv[1:]
    loader = forebay.DataLoader(
        urls,
        batch_size=4,
        fields={
            "image": forebay.Image(
                "jpg;jpeg", size=32, crop="random", flip=True, dtype="float16", mean=MEAN, std=STD
            ),
            "label": forebay.Int("cls"),
        },
        shuffle=True,
        seed=17,
        manifest=manifest,
        # A broken photo costs a sample, and a thousand of them the run.
        on_error="skip",
        max_errors=1000,
        job="imagenet",
    )
    steps, samples = 0, 0
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            # A rank without samples in the last batch gets one repeated sample: False here.
            samples += int(batch["__valid__"].sum())
            steps += 1
    print(f"{steps} steps, {samples} samples")


if __name__ == "__main__":
    main()
