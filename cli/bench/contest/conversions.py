"""Data sets in the contenders' own formats: made once, timed, identified by content.

A conversion belongs to its exact shards (paths, lengths, modification times) and to the version
that made it. Any other is made anew, in a temporary folder that is renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import players

NOTES = "conversion.json"
# A conversion hangs if it reads its shards slower than this many bytes per second, after that many
# seconds besides.
SLOWEST, BESIDE_S = 2e6, 600.0


@dataclass(frozen=True)
class Conversion:
    """A data set in a contender's own format."""

    folder: str
    seconds: float
    bytes: int


def content(shards: list[str], fields: list[str], version: str) -> str:
    """Return a name that identifies a conversion's input."""
    stats = [os.stat(shard) for shard in shards]
    facts = [
        [shard, stat.st_size, stat.st_mtime_ns] for shard, stat in zip(shards, stats, strict=True)
    ]
    return hashlib.sha256(json.dumps([facts, fields, version]).encode()).hexdigest()[:16]


def size(folder: Path) -> int:
    """Return the bytes of the files in `folder`."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def files(folder: str) -> list[str]:
    """Return the files of a conversion, for the page cache."""
    return sorted(str(file) for file in Path(folder).rglob("*") if file.is_file())


def repeated(source: Path, repeats: int, write: Callable[[Path], None]) -> Path:
    """Return a folder with the data set of `source` so many times, made the first time.

    `write` fills an empty folder beside it with links to the same files. It is renamed when
    complete.
    """
    if repeats == 1:
        return source
    target = source.with_name(f"{source.name}-{repeats}-times")
    if target.exists():
        return target
    aside = Path(tempfile.mkdtemp(prefix=f"{source.name}-", suffix=".part", dir=source.parent))
    write(aside)
    aside.rename(target)
    return target


def convert(
    name: str,
    python: str,
    version: str,
    shards: list[str],
    fields: list[str],
    work: Path,
    forebay: Path,
) -> Conversion:
    """Return the data set of conversion `name`, made now unless an earlier run left it.

    `forebay` is the command that Forebay's own conversion runs.
    """
    # One for bytes and for images: fields stand in it in the order of their names.
    fields = sorted(fields)
    target = work / f"{name}-{content(shards, fields, version)}"
    notes = target / NOTES
    if notes.exists():
        return Conversion(folder=str(target), **json.loads(notes.read_text()))
    work.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=".part", dir=work))
    try:
        begin = time.monotonic()
        request = {
            "shards": shards,
            "fields": fields,
            "target": str(aside),
            "forebay": str(forebay),
        }
        limit = BESIDE_S + sum(os.path.getsize(shard) for shard in shards) / SLOWEST
        players.convert(name, python, request, dict(os.environ), limit)
        made = Conversion(str(target), time.monotonic() - begin, size(aside))
        facts = asdict(made)
        del facts["folder"]
        (aside / NOTES).write_text(json.dumps(facts))
        # A conversion cut off before its notes were written is unusable.
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return made
