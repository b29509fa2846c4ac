"""Converts shards to MDS, Mosaic Streaming's format: uncompressed, each field as bytes.

PYTHON to_mosaic.py < {"shards": [...], "fields": [...], "target": FOLDER}
"""

from __future__ import annotations

import json
import sys

import shards
from streaming import MDSWriter


def convert(sources: list[str], fields: list[str], target: str) -> None:
    """Write `sources` into `target`, in shards of the default size."""
    with MDSWriter(out=target, columns=dict.fromkeys(fields, "bytes")) as out:
        for source in sources:
            for _, members in shards.samples(source):
                out.write({extension: members[extension] for extension in fields})


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], asked["fields"], asked["target"])
