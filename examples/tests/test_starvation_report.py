"""Arithmetic and text of the starvation report."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from starvation_report import Epoch, Reading, render


def reading(time_s, samples, cache, arriving, **causes):
    stats = {
        "samples": samples,
        "bytes": {"tier": cache, "origin": arriving},
        "wait": {"total_seconds": sum(causes.values()), "by_cause": causes},
    }
    return Reading.of(stats, time_s)


START = reading(10.0, 0, 0, 0, origin=0.0, decode=0.0)
AFTER_COLD = reading(14.0, 800, 0, 2_000_000_000, origin=1.5, decode=0.5)
AFTER_WARM = reading(16.0, 1600, 2_000_000_000, 2_000_000_000, origin=1.5, decode=1.0)


def test_an_epoch_is_the_difference_of_two_readings():
    cold, warm = Epoch("cold", START, AFTER_COLD, 0.25), Epoch("warm", AFTER_COLD, AFTER_WARM, 0.01)
    assert (cold.wall_s, cold.wait_s, cold.compute_share) == (4.0, 2.0, 0.5)
    assert (warm.wall_s, warm.wait_s, warm.compute_share) == (2.0, 0.5, 0.75)
    assert warm.causes() == [("decode", 0.5), ("origin", 0.0)]


def test_the_causes_sum_to_the_wait():
    for epoch in (
        Epoch("cold", START, AFTER_COLD, 0.0),
        Epoch("warm", AFTER_COLD, AFTER_WARM, 0.0),
    ):
        assert sum(seconds for _, seconds in epoch.causes()) == pytest.approx(epoch.wait_s)


def test_the_text_names_every_figure():
    text = render(
        [Epoch("cold", START, AFTER_COLD, 0.25), Epoch("warm", AFTER_COLD, AFTER_WARM, 0.01)]
    )
    cold, warm = text.split("\nwarm ")
    for figure in ("share 50.0%", "200 samples/s", "0.500 GB/s", "waited 2.00 s"):
        assert figure in cold
    assert "origin 1.50 s (75%)" in cold
    assert "first batch after 0.25 s" in cold
    assert "decode 0.50 s (100%)" in warm
    assert "cache 0.000 GB, taken while their shard still arrived 2.000 GB" in cold
    assert "cache 2.000 GB, taken while their shard still arrived 0.000 GB" in warm


def test_epoch_without_waits_reports_zero_percent():
    later = reading(20.0, 1600, 2_000_000_000, 2_000_000_000, origin=1.5, decode=1.0)
    assert "decode 0.00 s (0%)" in render([Epoch("warm", AFTER_WARM, later, 0.0)])
