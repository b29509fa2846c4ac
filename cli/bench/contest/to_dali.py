"""Makes DALI's index files of shards by the command that comes with it.

PYTHON to_dali.py < {"shards": [...], "fields": [...], "target": FOLDER}
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# The command installed beside this Python.
WDS2IDX = Path(sys.executable).with_name("wds2idx")


def index_of(folder: Path, number: int) -> Path:
    """Return where the index of shard `number` is."""
    return folder / f"{number:06d}.idx"


def convert(sources: list[str], target: Path) -> None:
    """Index `sources` into `target`."""
    for number, source in enumerate(sources):
        command: list[str | Path] = [WDS2IDX, source, index_of(target, number)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], Path(asked["target"]))
