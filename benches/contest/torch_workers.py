"""The settings of torch's DataLoader that all contenders share who stand on it.

Its rule: as torch's guide recommends for speed: workers persist, each has some batches ready, and
whole batches cross to the trainer.
"""

from __future__ import annotations

from typing import Any

# Batches ready ahead per worker; more did not help.
PREFETCH = 4


def settings(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that say how many workers there are and how they work."""
    workers: int = configuration["workers"]
    return {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "prefetch_factor": PREFETCH if workers else None,
    }
