"""Pairs of images and text, as of LAION: filtered while they are read.

    python examples/cookbook/image_text.py 's3://bucket/laion-{00000..00099}.tar'

A shard of img2dataset holds `jpg`, `txt` and `json` of each pair. The filter sees decoded fields,
and drops a pair for the same reason on any rank and in any run.
"""

import sys
from typing import Any

import forebay

# Bytes of text that the model reads.
LENGTH = 24


def wanted(pair: dict[str, Any]) -> bool:
    """Choose pairs of some size that fit together."""
    return bool(pair["width"] >= 256 and pair["similarity"] > 0.3)


def tokens(text: str) -> list[int]:
    """Stand in for a tokenizer: any function of the text that gives a list of numbers."""
    return list(text.lower().encode())


def main() -> None:
    """Read one epoch."""
    loader = forebay.DataLoader(
        sys.argv[1],
        batch_size=8,
        fields={
            "image": forebay.Image("jpg", size=32, crop="center", resize=32),
            "tokens": forebay.Text("txt", map=tokens, ragged="pad", pad_value=-1, max_len=LENGTH),
            "width": forebay.Int("json", path="width"),
            "similarity": forebay.Float("json", path="similarity"),
        },
        select=wanted,
        shuffle=True,
        # Links rot and downloads break off: such pairs are counted and named.
        on_error="skip",
    )
    pairs = 0
    for batch in loader:
        assert batch["image"].shape[0] == batch["tokens"].shape[0]
        assert batch["tokens"].shape[1] == LENGTH
        pairs += len(batch["__key__"])
    told = loader.stats()
    print(f"{pairs} pairs, {told['deselected']} filtered, {told['errors']} broken")


if __name__ == "__main__":
    main()
