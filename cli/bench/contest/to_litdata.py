"""Converts shards to LitData's chunks by its `optimize`, uncompressed, each field as bytes.

PYTHON to_litdata.py < {"shards": [...], "fields": [...], "target": FOLDER}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial

import shards
from litdata import optimize

# As LitData's guide has it for photos.
CHUNK = "64MB"


def members(source: str, fields: list[str]) -> Iterator[tuple[bytes, ...]]:
    """Read one shard's samples."""
    for _, sample in shards.samples(source):
        yield tuple(sample[extension] for extension in fields)


def convert(sources: list[str], fields: list[str], target: str) -> None:
    """Write `sources` into `target`; one worker, which keeps their order."""
    optimize(
        fn=partial(members, fields=fields),
        inputs=sources,
        output_dir=target,
        chunk_bytes=CHUNK,
        num_workers=1,
    )


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], asked["fields"], asked["target"])
