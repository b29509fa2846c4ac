"""Weights that change during a job: by a schedule, by `set_weights`, and over states."""

from __future__ import annotations

import json

import pytest

import forebay
from conftest import write_shard

FIELDS = {"label": forebay.Int("cls")}
# Samples of an epoch.
EPOCH = 60


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Two data sets of one shard each."""
    folder = tmp_path_factory.mktemp("schedules")
    return [
        write_shard(
            folder / f"{name}.tar", [(f"{name}{n:02}", {"cls": b"%d" % n}) for n in range(40)]
        )
        for name in "ab"
    ]


@pytest.fixture
def mixed(make, urls):
    """Make a loader of both data sets, by their weights."""

    def made(*weights, **options):
        streams = [forebay.Stream(url, weight=w) for url, w in zip(urls, weights, strict=True)]
        arguments = {"batch_size": 5, "fields": FIELDS, "epoch_samples": EPOCH, "seed": 3}
        return make(streams, **(arguments | options))

    return made


def keys(batches):
    return [key for batch in batches for key in batch["__key__"]]


def of_b(keys):
    return sum(key.startswith("b") for key in keys)


def test_schedule_steps_at_its_sample_of_the_job(mixed):
    loader = mixed(1.0, forebay.Schedule({0: 0.0, 30: 1.0, 80: 3.0}))
    first, second = keys(loader), keys(loader)
    assert [of_b(first[:30]), of_b(first[30:]), of_b(second[:20]), of_b(second[20:])] == [
        0,
        15,
        10,
        30,
    ]


def test_interpolated_share_changes_evenly(mixed):
    rise = forebay.Schedule({0: 0.0, 1: 1.0}, by="epochs", interpolate=True)
    fall = forebay.Schedule({0: 1.0, 1: 0.0}, by="epochs", interpolate=True)
    seen = keys(mixed(fall, rise))
    for end in range(1, EPOCH + 1):
        # The integral of a share that rises from 0 to 1.
        assert abs(of_b(seen[:end]) - end * end / (2 * EPOCH)) <= 1
    assert of_b(seen) == EPOCH // 2


def test_schedule_goes_on_in_another_world(mixed):
    def job(**options):
        return mixed(1.0, forebay.Schedule({0: 1.0, 40: 0.1}, interpolate=True), **options)

    whole = keys(job())
    loader = job()
    batches = iter(loader)
    before = [next(batches) for _ in range(4)]
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = [job(batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    after = [sorted(keys(pair)) for pair in zip(*ranks, strict=True)]
    assert keys(before) == whole[:20]
    assert after == [sorted(whole[at : at + 8]) for at in range(20, EPOCH, 8)]


def test_weights_set_in_mid_epoch_hold_from_the_next_batch(mixed):
    plain = keys(mixed(1.0, 1.0))
    loader = mixed(1.0, 1.0)
    batches = iter(loader)
    before = [next(batches) for _ in range(4)]
    loader.set_weights([0, 1])
    after = keys(batches)
    assert keys(before) == plain[:20]
    assert len(after) == 40
    assert of_b(after) == 40
    # They hold for later epochs, which are those of a job that always had them.
    assert of_b(keys(loader)) == EPOCH


def test_set_weights_are_part_of_the_state(mixed):
    loader = mixed(1.0, 1.0)
    batches = iter(loader)
    next(batches)
    loader.set_weights([3, 1])
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = keys(batches)
    resumed = mixed(1.0, 1.0)
    # A change of its own is forgotten.
    resumed.set_weights([0, 1])
    resumed.load_state_dict(state)
    assert keys(resumed) == rest
    assert resumed.state_dict()["weights"] == state["weights"]


def test_earlier_change_replaces_later_ones(mixed):
    loader = mixed(1.0, 1.0)
    loader.set_epoch(2)
    loader.set_weights([0, 1])
    loader.set_epoch(1)
    loader.set_weights([1, 0])
    assert of_b(keys(loader)) == 0
    assert of_b(keys(loader)) == 0


def test_state_of_another_schedule_is_rejected(mixed):
    state = mixed(1.0, forebay.Schedule({0: 1.0, 30: 2.0})).state_dict()
    with pytest.raises(forebay.Invalid) as error:
        mixed(1.0, forebay.Schedule({0: 1.0, 31: 2.0})).load_state_dict(state)
    assert error.value.places["option"] == "streams"
    for weights in (7, [3], [["x", [1, 1]]], [[5, [-1, 1]]]):
        with pytest.raises(forebay.Invalid):
            mixed(1.0, 1.0).load_state_dict(mixed(1.0, 1.0).state_dict() | {"weights": weights})


@pytest.mark.parametrize(
    "points", [{}, {1: 1.0}, {0: -1.0}, {0: float("nan")}, {0: "x"}, {0: 1.0, -5: 1.0}, 0.5]
)
def test_senseless_points_are_rejected(points):
    with pytest.raises(forebay.Invalid):
        forebay.Schedule(points)


def test_weights_that_do_not_fit_are_rejected(mixed, make, urls):
    loader = mixed(1.0, 1.0)
    for weights in ([1], [1, 2, 3], [0, 0], [1, -1], "ab", 7, [1, None]):
        with pytest.raises(forebay.Invalid):
            loader.set_weights(weights)
    with pytest.raises(forebay.Invalid):
        make(urls[0], fields=FIELDS).set_weights([1])
    # All streams rest at sample 0.
    rests = mixed(forebay.Schedule({0: 0.0, 9: 1.0}), forebay.Schedule({0: 0.0, 9: 1.0}))
    with pytest.raises(forebay.Invalid):
        next(iter(rests))
