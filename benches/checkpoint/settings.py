"""Settings of a run, as every row gets them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Sizes are multiples of a block of checkpoints.
BLOCK = 4 << 20


@dataclass(frozen=True)
class Programs:
    """Programs that are measured."""

    # The command line.
    forebay: Path
    # The test kit's S3 server.
    origin: Path


@dataclass(frozen=True)
class Settings:
    """Programs, place and amount of work."""

    programs: Programs
    # Folder on the disk that is measured.
    directory: Path
    # Environment of all processes.
    environment: dict[str, str]
    rounds: int
    # Factor of all sizes.
    scale: float

    def size(self, full: int) -> int:
        """Return the bytes that stand for `full` at this scale."""
        return max(1, round(full * self.scale / BLOCK)) * BLOCK
