"""The starvation report: how long each epoch's training waited for data, and for what.

Its rule: figures are differences between two readings of `loader.stats()` and of the clock; nothing
is estimated, and the causes sum to the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIGA = 1e9


@dataclass(frozen=True)
class Reading:
    """What a loader had counted at one moment."""

    time_s: float
    samples: int
    tier_bytes: int
    origin_bytes: int
    wait_s: float
    wait_by_cause_s: Mapping[str, float]

    @classmethod
    def of(cls, stats: Mapping[str, Any], time_s: float) -> Reading:
        """Read the counters that the report needs out of `loader.stats()`."""
        return cls(
            time_s=time_s,
            samples=stats["samples"],
            tier_bytes=stats["tier_bytes"],
            origin_bytes=stats["origin_bytes"],
            wait_s=stats["wait"]["total_seconds"],
            wait_by_cause_s=dict(stats["wait"]["by_cause"]),
        )


@dataclass(frozen=True)
class Epoch:
    """One epoch: the readings around it, and when its first batch came."""

    before: Reading
    after: Reading
    first_batch_s: float

    @property
    def wall_s(self) -> float:
        """The epoch's length."""
        return self.after.time_s - self.before.time_s

    @property
    def wait_s(self) -> float:
        """How much of it training waited for a batch."""
        return self.after.wait_s - self.before.wait_s

    @property
    def compute_share(self) -> float:
        """The share of the epoch in which training did not wait: 1.0 means never starved."""
        return 1.0 - self.wait_s / self.wall_s

    @property
    def temperature(self) -> str:
        """`cold` if the bytes came from the origin, `warm` if from the cache, `mixed` if both."""
        origin = self.after.origin_bytes - self.before.origin_bytes
        tier = self.after.tier_bytes - self.before.tier_bytes
        if origin == 0:
            return "warm"
        return "cold" if tier < origin else "mixed"

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
    for number, epoch in enumerate(epochs):
        samples = epoch.after.samples - epoch.before.samples
        tier = epoch.after.tier_bytes - epoch.before.tier_bytes
        origin = epoch.after.origin_bytes - epoch.before.origin_bytes
        lines += [
            "",
            f"epoch {number} ({epoch.temperature})   compute share {epoch.compute_share:.1%}"
            f"   {samples / epoch.wall_s:,.0f} samples/s"
            f"   {(tier + origin) / epoch.wall_s / GIGA:.3f} GB/s",
            f"  wall {epoch.wall_s:.2f} s, of which waited {epoch.wait_s:.2f} s;"
            f" first batch after {epoch.first_batch_s:.2f} s",
            f"  bytes from the origin {origin / GIGA:.3f} GB, from the cache {tier / GIGA:.3f} GB",
            "  waited for "
            + "   ".join(
                f"{cause} {seconds:.2f} s ({seconds / epoch.wait_s if epoch.wait_s else 0:.0%})"
                for cause, seconds in epoch.causes()
            ),
        ]
    return "\n".join(lines)
