"""The fastest accelerator that is still fed, by loaders whose rate is known."""

import pytest
import search


class Loader:
    """One that gives so many times the nominal rate, whatever is asked of it."""

    def __init__(self, rate):
        self.rate, self.runs = rate, 0

    def au(self, speed):
        self.runs += 1
        return min(1.0, self.rate / speed)


@pytest.mark.parametrize("rate", [0.03, 1.0, 17.0])
@pytest.mark.parametrize("flattery", [0.9, 1.0, 1.3, 4.0])
def test_the_greatest_speed_is_found(rate, flattery):
    loader = Loader(rate)
    speed = search.fastest(rate * flattery, loader.au)
    assert loader.au(speed) >= search.AU_MIN
    assert loader.au(speed * search.NARROW * 1.01) < search.AU_MIN
    assert loader.runs <= 2 * search.RUNS_MAX


def test_a_loader_that_never_holds_ends_the_search():
    loader = Loader(0.0)
    search.fastest(1.0, loader.au)
    assert loader.runs <= search.RUNS_MAX


def test_a_speed_is_lowered_until_long_runs_bear_it_out():
    loader, speed = Loader(2.0), 2.5
    assert search.lowered(speed, [loader.au(speed)] * 3) == pytest.approx(2.0 / 0.9 * 0.99)
    assert search.lowered(2.2, [0.85, 0.91, 0.95]) is None
