"""The fastest accelerator that is still fed, by loaders of which it is known."""

import heapq
import random

import pytest
import search

AU = 0.90


class Loader:
    """One that gives so many times the nominal rate, whatever is asked of it."""

    def __init__(self, rate):
        self.rate, self.runs = rate, 0

    def au(self, speed):
        self.runs += 1
        return min(1.0, self.rate / speed)


class Idler(Loader):
    """One that loads nothing while the accelerator works."""

    def au(self, speed):
        self.runs += 1
        step, load = 1 / speed, 1 / self.rate
        return step / (step + load)


class Workers(Loader):
    """Some workers that make whole batches, each of which takes as long as chance has it, handed
    over in order, a few ready of each: what torch's DataLoader does."""

    AHEAD, STEPS = 4, 40

    def __init__(self, rate, workers, seed):
        super().__init__(rate)
        self.workers, self.dice = workers, random.Random(seed)

    def au(self, speed, steps=STEPS):
        self.runs += 1
        step = 1 / speed
        ready, free = [], [(0.0, worker) for worker in range(self.workers)]
        heapq.heapify(free)
        taken, now, since = [], 0.0, 0.0
        for number in range(steps + 1):
            while len(ready) <= number + self.workers * self.AHEAD - 1 and len(ready) <= steps:
                # A worker begins when it has ended the batch before and a place is free.
                begin, worker = heapq.heappop(free)
                place = len(ready) - self.workers * self.AHEAD
                begin = max(begin, taken[place] if place >= 0 else 0.0)
                ready.append(begin + self.workers / self.rate * self.dice.uniform(0.7, 1.3))
                heapq.heappush(free, (ready[-1], worker))
            now = max(now, ready[number])
            taken.append(now)
            now += step
            if number == 0:
                since = now
        return steps * step / (now - since)


@pytest.mark.parametrize("rate", [0.03, 1.0, 17.0])
@pytest.mark.parametrize("flattery", [0.5, 0.9, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("kind", [Loader, Idler])
def test_the_greatest_speed_is_found(rate, flattery, kind):
    loader = kind(rate)
    speed = search.fastest(rate * flattery / AU, loader.au, AU)
    assert loader.runs <= search.RUNS_MAX
    assert AU <= loader.au(speed) <= AU + search.NEAR


def test_a_loader_that_never_holds_ends_the_search():
    loader = Loader(1e-12)
    assert search.fastest(1.0, lambda speed: min(loader.au(speed), 0.5), AU) is None
    assert loader.runs == search.RUNS_MAX


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_that_deliver_in_bunches_get_their_due(workers):
    ratios = []
    for seed in range(40):
        loader = Workers(1.0, workers, seed)
        speed = search.fastest(loader.dice.uniform(0.85, 1.15) / AU, loader.au, AU)
        decision = search.Decision(AU)
        for _ in range(5):
            rounds = [loader.au(speed, steps=90) for _ in range(5)]
            following = decision.next(speed, rounds)
            if following is None:
                break
            speed = following
        ratios.append((decision.borne_out or 0.0) * AU)
    ratios.sort()
    # Of the truth, which is 1; four workers have as many batches ready after the first step.
    assert ratios[0] > 0.94
    assert ratios[-1] < 1.08


def test_a_speed_is_lowered_until_long_runs_bear_it_out():
    loader, speed, decision = Loader(2.0), 2.5, search.Decision(AU)
    speed = decision.next(speed, [loader.au(speed)] * 3)
    assert speed == pytest.approx(2.0 / 0.91)
    assert decision.next(speed, [0.85, 0.91, 0.95]) is None
    assert decision.borne_out == speed


def test_a_speed_that_was_too_low_is_raised_once_and_kept_if_the_next_does_not_hold():
    decision = search.Decision(AU)
    assert decision.next(1.0, [1.0, 0.97, 0.99]) == pytest.approx(0.99 / 0.91)
    assert decision.next(1.09, [0.8]) is None
    assert decision.borne_out == 1.0
    decision = search.Decision(AU)
    decision.next(1.0, [1.0])
    assert decision.next(1.1, [0.99]) is None
    assert decision.borne_out == 1.1
