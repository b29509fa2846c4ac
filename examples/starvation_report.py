"""The starvation report: how long each epoch's training waited for data, and for what.

Figures are differences between two readings of `loader.stats()` and of the clock; nothing is
estimated, and the causes sum to the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIGA = 1e9


@dataclass(frozen=True)
class Reading:
    """Counters of a loader at one moment."""

    time_s: float
    samples: int
    cache_bytes: int
    arriving_bytes: int
    wait_s: float
    wait_by_cause_s: Mapping[str, float]

    @classmethod
    def of(cls, stats: Mapping[str, Any], time_s: float) -> Reading:
        """Read the counters that the report needs out of `loader.stats()`."""
        return cls(
            time_s=time_s,
            samples=stats["samples"],
            cache_bytes=stats["bytes"]["tier"],
            arriving_bytes=stats["bytes"]["origin"],
            wait_s=stats["wait"]["total_seconds"],
            wait_by_cause_s=stats["wait"]["by_cause"],
        )


@dataclass(frozen=True)
class Epoch:
    """One epoch: its name, the readings around it, and when its first batch came."""

    name: str
    before: Reading
    after: Reading
    first_batch_s: float

    @property
    def wall_s(self) -> float:
        """The epoch's length."""
        return self.after.time_s - self.before.time_s

    @property
    def wait_s(self) -> float:
        """Seconds of the epoch in which training waited for a batch."""
        return self.after.wait_s - self.before.wait_s

    @property
    def compute_share(self) -> float:
        """The share of the epoch in which training did not wait: 1.0 means never starved."""
        return 1.0 - self.wait_s / self.wall_s

    def causes(self) -> list[tuple[str, float]]:
        """Return the wait split by cause, in seconds, the largest first."""
        before = self.before.wait_by_cause_s
        split = [
            (cause, total - before.get(cause, 0.0))
            for cause, total in self.after.wait_by_cause_s.items()
        ]
        return sorted(split, key=lambda pair: -pair[1])


def render(epochs: list[Epoch]) -> str:
    """Return the report as text."""
    lines = ["starvation report"]
    for epoch in epochs:
        samples = epoch.after.samples - epoch.before.samples
        cache = epoch.after.cache_bytes - epoch.before.cache_bytes
        arriving = epoch.after.arriving_bytes - epoch.before.arriving_bytes
        lines += [
            "",
            f"{epoch.name}   compute share {epoch.compute_share:.1%}"
            f"   {samples / epoch.wall_s:,.0f} samples/s"
            f"   {(cache + arriving) / epoch.wall_s / GIGA:.3f} GB/s",
            f"  wall {epoch.wall_s:.2f} s, of which waited {epoch.wait_s:.2f} s;"
            f" first batch after {epoch.first_batch_s:.2f} s",
            f"  read from the cache {cache / GIGA:.3f} GB,"
            f" taken while their shard still arrived {arriving / GIGA:.3f} GB",
            "  waited for "
            + "   ".join(
                f"{cause} {seconds:.2f} s ({seconds / epoch.wait_s if epoch.wait_s else 0:.0%})"
                for cause, seconds in epoch.causes()
            ),
        ]
    return "\n".join(lines)
