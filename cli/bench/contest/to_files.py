"""Unpacks shards into files, one for each member, for torch's DataLoader.

    PYTHON to_files.py < {"shards": [...], "fields": [...], "target": FOLDER}

Keys keep the shards' order, in a list beside the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shards

LIST = "keys.json"


def listed(folder: Path) -> list[str]:
    """Return the keys of the samples in `folder`, in their order."""
    keys: list[str] = json.loads((folder / LIST).read_text())
    return keys


def convert(sources: list[str], fields: list[str], target: Path) -> None:
    """Unpack `sources` into `target`."""
    keys = []
    for number, source in enumerate(sources):
        # Keys of different shards may be the same.
        folder = f"{number:06d}"
        (target / folder).mkdir()
        for position, (_, members) in enumerate(shards.samples(source)):
            key = f"{folder}/{position:08d}"
            for extension in fields:
                (target / f"{key}.{extension}").write_bytes(members[extension])
            keys.append(key)
    (target / LIST).write_text(json.dumps(keys))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], asked["fields"], Path(asked["target"]))
