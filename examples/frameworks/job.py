"""Arguments that all framework examples share, and a record of the samples a rank had."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def arguments(description: str) -> argparse.Namespace:
    """Read the command line: shards, their manifest, and where to record the samples."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("urls", help="shards, as in 's3://bucket/train-{000000..000099}.tar'")
    parser.add_argument("--manifest", required=True, help="made by `forebay index URLS -o FILE`")
    parser.add_argument("--seen", type=Path, required=True, help="folder for the samples' keys")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per rank (default: 8)")
    return parser.parse_args()


class Seen:
    """The keys of the samples that one rank trained on, a line each, padding left out."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"rank-{rank}.txt"
        self._file.write_text("")

    def add(self, batch: dict[str, Any]) -> None:
        """Note a batch."""
        valid = batch["__valid__"].tolist()
        rows = zip(batch["__key__"], valid, strict=True)
        with self._file.open("a") as file:
            file.writelines(f"{key}\n" for key, is_valid in rows if is_valid)
