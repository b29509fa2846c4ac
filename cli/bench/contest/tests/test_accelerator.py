"""Figures of an emulated accelerator, measured by a fake clock."""

import io
import itertools
import weakref

import pytest
from accelerator import WAITS_MAX, Clock, Length, Step, Touched, Waits, endless, play
from contender import Replies

STEP = 0.08
BYTES = 1000
EIGHT_S = Length(8.0, 8.0)


class FakeClock:
    def __init__(self):
        self.time = 100.0

    def pass_(self, seconds):
        self.time += seconds

    @property
    def clock(self):
        return Clock(lambda: self.time, self.pass_)


def run(batch_seconds, touch_seconds=0.0, first_seconds=0.0, length=EIGHT_S, is_emulated=True):
    """Run over a loader that takes `batch_seconds` per batch, plus `first_seconds` at the first."""
    fake = FakeClock()

    def batches():
        fake.pass_(first_seconds)
        while True:
            fake.pass_(batch_seconds)
            yield [0] * 4

    def touch(batch):
        fake.pass_(touch_seconds)
        return Touched(len(batch), BYTES)

    return play(batches(), touch, Step(STEP, is_emulated), length, fake.clock)


def test_au_is_nominal_time_divided_by_wall_time():
    figures = run(batch_seconds=0.02)
    assert figures.au_ideal == pytest.approx(0.8)
    assert figures.au_measured == pytest.approx(0.8)
    assert figures.wait_seconds == pytest.approx(figures.steps * 0.02)
    assert figures.samples == figures.steps * 4
    assert figures.bytes == figures.steps * BYTES
    assert figures.samples_per_second == pytest.approx(4 / 0.1)
    # A run ends at the end of a step.
    assert 8.0 <= figures.wall_seconds < 8.0 + 0.11


def test_first_step_is_not_counted():
    late, prompt = run(0.02, first_seconds=5.0), run(0.02)
    assert late.first_batch_seconds == pytest.approx(5.02)
    assert late.au_ideal == pytest.approx(prompt.au_ideal)
    assert late.steps == prompt.steps
    assert late.waits.longest < 1


def test_warm_up_steps_are_not_counted():
    asked = []

    def source():
        # The first three batches are slow, as with fresh memory.
        for number in itertools.count():
            asked.append(number)
            fake.pass_(0.6 if number < 3 else 0.02)
            yield [0] * 4

    for warm_up, longest in ((1, 0.6), (2, 0.6), (3, 0.02), (4, 0.02)):
        fake, begun = FakeClock(), []
        length = Length(8.0, 8.0, warm_up=warm_up)
        figures = play(
            source(),
            lambda batch: Touched(len(batch), BYTES),
            Step(STEP),
            length,
            fake.clock,
            steady=lambda begun=begun, fake=fake: begun.append(fake.time),
        )
        assert figures.waits.longest == pytest.approx(longest)
        assert figures.first_batch_seconds == pytest.approx(0.6)
        assert figures.steps == asked[-1] + 1 - warm_up
        assert len(begun) == 1
        asked.clear()


def test_warm_up_takes_no_longer_than_the_run():
    # After the first step, the warm-up stops at the longest run, 8 s: four steps of 2 s instead of
    # sixteen. The run itself takes 8 s more.
    length = Length(2.0, 8.0, steps=4, warm_up=16)
    fake = FakeClock()

    def source():
        while True:
            fake.pass_(2.0 - STEP)
            yield [0]

    play(source(), lambda _: Touched(1, BYTES), Step(STEP), length, fake.clock)
    assert fake.time - 100.0 == pytest.approx(2.0 + 8.0 + 8.0)


def test_reading_a_batch_is_part_of_its_step():
    assert run(0.02, touch_seconds=0.05).au_ideal == pytest.approx(0.8)


def test_batch_is_released_before_its_step_ends():
    class Batch:
        pass

    followed, lives = [], []

    def batch(_):
        made = Batch()
        followed.append(weakref.ref(made))
        return made

    def sleep(seconds):
        fake.pass_(seconds)
        lives.append(followed[-1]() is not None)

    fake = FakeClock()
    # The batches take the whole path to the accelerator: repeated epochs and the watched output.
    said = Replies(io.StringIO())
    source = said.watch(endless(Epochs(batch)))
    clock = Clock(lambda: fake.time, sleep)
    play(source, lambda _: Touched(1, BYTES), Step(STEP), Length(1.0, 1.0), clock)
    assert len(lives) > 10
    assert not any(lives)


class Epochs:
    """A loader with a few batches in each epoch."""

    def __init__(self, batch):
        self.batch = batch

    def __iter__(self):
        return map(self.batch, range(3))


def test_a_step_lasts_as_long_as_reading_its_batch():
    figures = run(0.02, touch_seconds=0.14)
    assert figures.au_ideal == pytest.approx(STEP / 0.16)
    # The trainer reads the batch, so the measured utilisation includes that time.
    assert figures.au_measured == pytest.approx(0.14 / 0.16)


def test_real_step_is_measured_not_emulated():
    figures = run(0.02, touch_seconds=0.06, is_emulated=False)
    assert figures.au_measured == pytest.approx(0.75)
    # The ideal utilisation relates the nominal step to the time per step.
    assert figures.au_ideal == pytest.approx(STEP / 0.08)


def test_fast_loader_reaches_full_utilisation():
    assert run(0.0).au_ideal == pytest.approx(1.0)


def test_run_is_extended_for_few_steps_within_its_limit():
    assert 10 <= run(0.02, length=Length(1.0, 8.0, 10)).steps < 12
    assert run(0.02, length=Length(1.0, 8.0, 32)).steps == 32
    assert 20 <= run(0.02, length=Length(1.0, 2.0, 32)).steps < 22
    # The shortest run has one step.
    assert run(0.02, length=Length(0.0, 0.0, 1)).steps == 1


def test_kept_waits_are_bounded_and_evenly_spread():
    waits = Waits()
    for number in range(3 * WAITS_MAX):
        waits.add(number / 1e3)
    assert len(waits.milliseconds) < WAITS_MAX
    assert waits.milliseconds == [float(n) for n in range(0, 3 * WAITS_MAX, waits.stride)]
    assert waits.longest == (3 * WAITS_MAX - 1) / 1e3


def test_epochs_repeat_and_an_empty_one_is_an_error():
    source = endless([1, 2])
    assert [next(source) for _ in range(5)] == [1, 2, 1, 2, 1]
    with pytest.raises(RuntimeError, match="no batch"):
        next(endless([]))
