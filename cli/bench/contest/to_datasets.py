"""Converts shards to Arrow files, as Hugging Face's datasets keeps them, each field as bytes.

PYTHON to_datasets.py < {"shards": [...], "fields": [...], "target": FOLDER}
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator

import shards
from datasets import Dataset, Features, Value


def members(sources: list[str], fields: tuple[str, ...]) -> Iterator[dict[str, bytes]]:
    """Read the samples of all shards, in their order."""
    for source in sources:
        for _, sample in shards.samples(source):
            yield {extension: sample[extension] for extension in fields}


def convert(sources: list[str], fields: list[str], target: str) -> None:
    """Write `sources` into `target`, in files of the default size."""
    made = Dataset.from_generator(
        members,
        # A photo's offsets may exceed 32 bits within one file.
        features=Features({extension: Value("large_binary") for extension in fields}),
        cache_dir=f"{target}/cache",
        # Lists are taken apart, a shard at a time.
        gen_kwargs={"sources": sources, "fields": tuple(fields)},
    )
    made.save_to_disk(f"{target}/arrow")
    # The generator's own copy.
    shutil.rmtree(f"{target}/cache")


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], asked["fields"], asked["target"])
