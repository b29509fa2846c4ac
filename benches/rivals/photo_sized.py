"""Shards of random samples as large as photos, for jobs that decode nothing."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

SHARDS, SAMPLES, SAMPLE = 8, 512, 110_000


def make(folder: Path) -> None:
    """Make the shards."""
    dice = random.Random(7)
    for number in range(SHARDS):
        with tarfile.open(folder / f"{number}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(SAMPLES):
                member = tarfile.TarInfo(f"{number:03d}{sample:05d}.bin")
                member.size = SAMPLE
                tar.addfile(member, io.BytesIO(dice.randbytes(SAMPLE)))


def urls(folder: Path) -> str:
    """Return the pattern of the shards."""
    return f"{folder}/{{0..{SHARDS - 1}}}.tar"
