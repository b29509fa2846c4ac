"""The fastest accelerator that is still fed, by loaders of which it is known."""

import heapq
import random
from functools import partial
from itertools import count
from statistics import median

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


ROUNDS = 5


def proven(speed, au):
    """Long runs from `speed` on until they have decided."""
    proof = search.Proof(speed, AU, ROUNDS)
    while not proof.is_over:
        proof.heard({"au_ideal": au(proof.speed)})
    return proof


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
        proof = proven(speed, partial(loader.au, steps=90))
        # What the table has: the rate at that speed, whatever AU is there.
        au = median(run["au_ideal"] for run in proof.kept)
        ratios.append(proof.kept_speed * au if proof.is_borne_out else 0.0)
    ratios.sort()
    # Of the truth, which is 1; four workers have as many batches ready after the first step.
    assert ratios[0] > 0.96
    assert ratios[-1] < 1.05


def test_a_speed_is_lowered_until_long_runs_bear_it_out():
    loader = Loader(2.0)
    proof = proven(2.3, loader.au)
    assert proof.is_borne_out
    assert proof.kept_speed == pytest.approx(2.0 / 0.91 * search.MARGIN)
    # Those of the speed before are not among them.
    assert [run["round"] for run in proof.kept] == list(range(ROUNDS))


def test_a_machine_that_gets_slower_is_caught_up_with():
    # By 0.7 % a run: where the last runs say that it holds, it does not any more.
    rates = iter(2.0 * 0.993**run for run in count())
    proof = proven(2.0 / 0.9, lambda speed: min(1.0, next(rates) / speed))
    assert proof.is_borne_out
    assert len(proof.tried) <= 3


def test_a_speed_that_is_far_off_ends_with_one_run():
    # As if the machine had been busy while it was sought.
    loader = Loader(2.57)
    proof = proven(1.1, loader.au)
    assert proof.is_borne_out
    assert proof.kept_speed == pytest.approx(2.57 / 0.91, rel=0.03)
    assert loader.runs < 2 * ROUNDS
    loader = Loader(1.0)
    assert proven(3.0, loader.au).kept_speed == pytest.approx(1.0 / 0.91 * search.MARGIN)
    assert loader.runs == 1 + ROUNDS


def test_a_speed_that_held_is_kept_if_a_greater_one_does_not():
    # The first run is no reason yet to leave it, the others are.
    long = [0.93, *[0.95] * (ROUNDS - 1)]
    heard = iter(long + [0.89] * ROUNDS)
    proof = proven(1.0, lambda _: next(heard))
    assert (proof.is_borne_out, proof.kept_speed) == (True, search.MARGIN)
    assert [run["au_ideal"] for run in proof.kept] == long
    # What did not hold is told as well, and was given up when its median was lost.
    assert [tried["au_ideal"] for tried in proof.tried] == [long, [0.89] * 3]


def test_a_speed_is_raised_until_it_is_the_greatest():
    """A loader whose limit is twice as high: each speed that holds with ease is left at once."""
    loader = Loader(2.0)
    proof = proven(1.0, loader.au)
    assert proof.is_borne_out
    assert AU <= loader.au(proof.kept_speed) <= AU + search.NEAR
    # One run at each but the last, and each is told.
    assert [len(tried["au_ideal"]) for tried in proof.tried][:-1] == [1] * (len(proof.tried) - 1)
    assert proof.tried[-1] == {
        "speed": proof.kept_speed,
        "au_ideal": [run["au_ideal"] for run in proof.kept],
    }
    # It held with ease twice, and is raised once more, until it does not.
    first, then = search.MARGIN, search.MARGIN * 0.95 / 0.91
    heard = {first: 0.95, then: 0.95}
    proof = proven(1.0, lambda speed: heard.get(speed, 0.92))
    assert proof.kept_speed == pytest.approx(then * (0.95 / 0.91) ** 2)
    # Between what held with ease and what did not there is one that does.
    heard = iter([0.95, 0.70] + [0.92] * ROUNDS)
    proof = proven(1.0, lambda _: next(heard))
    assert (proof.is_borne_out, len(proof.tried)) == (True, 3)
    assert first < proof.kept_speed < then


def test_what_seemed_to_hold_is_no_bound_for_ever():
    """One run at a speed flattered: what holds is below it."""
    heard = iter([0.95])
    loader = Loader(0.8)
    proof = proven(1.0, lambda speed: next(heard, None) or loader.au(speed))
    assert proof.is_borne_out
    assert proof.kept_speed < 0.8 / AU


def test_a_loader_that_long_runs_never_bear_out_has_no_speed():
    proof = proven(1.0, lambda _: 0.5)
    assert (proof.is_borne_out, len(proof.tried)) == (False, search.SPEEDS_MAX)
    assert len(proof.kept) == 1
