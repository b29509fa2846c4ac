"""Epochs, positions and states: every sample once, and the same order after each resume."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle

import pytest

import forebay
from conftest import sample, write_manifest, write_shard

FIELDS = {"label": forebay.Int("cls")}


def keys(batches):
    return [list(batch["__key__"]) for batch in batches]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_an_epoch_has_every_sample_once(make, manifest, shuffle):
    loader = make(fields=FIELDS, shuffle=shuffle, manifest=manifest, window=3)
    epochs = [flat(keys(loader)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == [f"s{number:05}" for number in range(60)]
    assert (epochs[0] == sorted(epochs[0])) == (shuffle is False)
    assert (epochs[0] == epochs[1]) == (shuffle is False)


def test_exhausting_and_abandoning_advance_the_epoch_by_one(make):
    loader = make(fields=FIELDS, shuffle="global")
    assert loader.epoch == 0
    list(loader)
    assert loader.epoch == 1
    for _ in loader:
        assert loader.epoch == 1
        break
    assert loader.epoch == 2
    third = keys(loader)
    assert loader.epoch == 3
    loader.set_epoch(2)
    assert keys(loader) == third
    loader.set_epoch(0)
    assert keys(loader) != third
    assert loader.epoch == 1


def test_older_iteration_fails_once_a_new_one_starts(make):
    loader = make(fields=FIELDS)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(forebay.Invalid, match="new one"):
        next(first)
    assert next(second)["__key__"][0] == "s00000"
    list(second)
    with pytest.raises(StopIteration):
        next(second)


@pytest.mark.parametrize("with_manifest", [False, True])
@pytest.mark.parametrize("after", [0, 1, 7, 14, 15])
def test_a_state_resumes_with_the_next_batch(make, manifest, after, with_manifest):
    options = {"fields": FIELDS, "shuffle": True, "window": 2, "seed": 3}
    options |= {"manifest": manifest} if with_manifest else {}
    whole = make(**options)
    expected = [keys(whole), keys(whole)]
    loader = make(**options)
    iteration = iter(loader)
    done = [list(next(iteration)["__key__"]) for _ in range(after)]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make(**options)
    resumed.load_state_dict(state)
    rest = keys(resumed)
    if after < 15:
        assert done + rest == expected[0]
        assert resumed.epoch == 1
    else:
        assert rest == expected[1]
        assert resumed.epoch == 2


def test_state_after_a_break_resumes_behind_the_last_batch(make):
    loader = make(fields=FIELDS)
    for batch in loader:
        last = batch["__key__"][-1]
        if last == "s00019":
            break
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 20)
    loader.load_state_dict(state)
    assert keys(loader)[0][0] == "s00020"


def test_loaded_epoch_keeps_its_position_others_restart(make):
    loader = make(fields=FIELDS)
    iteration = iter(loader)
    next(iteration)
    state = loader.state_dict()
    for epoch, first in ((0, "s00004"), (1, "s00000")):
        resumed = make(fields=FIELDS)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert keys(resumed)[0][0] == first
        assert resumed.epoch == epoch + 1


def test_finished_epoch_is_empty_when_resumed(make):
    loader = make(fields=FIELDS)
    iteration = iter(loader)
    for _ in range(15):
        next(iteration)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 60)
    resumed = make(fields=FIELDS)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert keys(resumed) == []
    assert resumed.epoch == 1
    assert len(keys(resumed)) == 15


# The last two worlds resume at a position that is no batch boundary of theirs.
@pytest.mark.parametrize(("world", "batch_size"), [(2, 4), (4, 2), (1, 4), (2, 2), (1, 5), (3, 7)])
@pytest.mark.parametrize("lanes", [1, 6])
def test_state_resumes_in_another_world(make, manifest, world, batch_size, lanes):
    options = {"fields": FIELDS, "shuffle": True, "manifest": manifest, "seed": 5}
    options["lanes"] = lanes
    (whole,) = [flat(keys(make(batch_size=8, rank=0, world_size=1, **options)))]
    loader = make(batch_size=8, rank=0, world_size=1, **options)
    iteration = iter(loader)
    done = flat([list(next(iteration)["__key__"]) for _ in range(3)])
    state = loader.state_dict()
    ranks = []
    for rank in range(world):
        other = make(batch_size=batch_size, rank=rank, world_size=world, **options)
        other.load_state_dict(state)
        assert other.state_dict()["epoch"] == 0
        ranks.append(keys(other))
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(done + flat(flat(ranks))) == sorted(whole)
    step = world * batch_size
    rest = whole[24:]
    for number, parts in enumerate(zip(*ranks, strict=True)):
        assert sorted(flat(parts)) == sorted(rest[number * step : (number + 1) * step])


def test_loaded_position_continues_with_another_batch_size(make, manifest):
    options = {"fields": FIELDS, "manifest": manifest}
    loader = make(batch_size=4, **options)
    next(iter(loader))
    other = make(batch_size=7, **options)
    other.load_state_dict(loader.state_dict())
    iteration = iter(other)
    assert next(iteration)["__key__"] == [f"s{number:05}" for number in range(4, 11)]
    assert other.state_dict()["samples"] == 11
    assert [len(batch) for batch in keys(iteration)] == [7] * 7
    assert (other.epoch, other.state_dict()["epoch"]) == (1, 1)
    other.load_state_dict(other.state_dict() | {"epoch": 0, "samples": 59})
    assert keys(other) == [["s00059"]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seed", 1),
        ("shuffle", "global"),
        ("window", 5),
        ("lanes", 2),
        ("epoch_samples", 30),
        ("drop_last", True),
        ("pad_last", True),
        ("urls", None),
    ],
)
def test_state_of_another_order_is_rejected_with_the_option(make, manifest, shards, option, value):
    options = {"fields": FIELDS, "shuffle": True, "manifest": manifest}
    loader = make(**options)
    next(iter(loader))
    state = loader.state_dict()
    other = make(shards[:5], **options) if option == "urls" else make(**options | {option: value})
    with pytest.raises(forebay.Invalid, match=option) as caught:
        other.load_state_dict(state)
    assert caught.value.places["option"] == option
    with pytest.raises(forebay.Invalid, match="state_dict"):
        other.load_state_dict({"epoch": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("epoch", 1.5),
        ("epoch", 2**64),
        ("samples", "3"),
        ("samples", -1),
        ("samples", None),
        ("version", 1),
        ("draws", 0),
        ("order", 0),
        ("order", 3),
        ("order", "1"),
    ],
)
def test_invalid_state_is_rejected_with_the_key(make, key, value):
    loader = make(fields=FIELDS)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(forebay.Invalid, match=key):
        make(fields=FIELDS).load_state_dict(state | {key: value})


@pytest.fixture
def many(tmp_path):
    """Forty shards of four samples each, and their manifest."""
    urls = [
        write_shard(tmp_path / f"{shard:02}.tar", [sample(shard * 4 + n) for n in range(4)])
        for shard in range(40)
    ]
    return urls, write_manifest(tmp_path / "many.json", [(url, 4) for url in urls])


def world_of(make, many, world_size, **options):
    urls, listed = many
    options = {"fields": FIELDS, "shuffle": True, "manifest": listed} | options
    return [make(urls, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def lanes_of(loader):
    """Return the lanes that the state of an iterated loader names."""
    return loader.state_dict()["options"]["lanes"]


# Bears promise 5: ten lanes at most have four shards each.
@pytest.mark.parametrize(
    ("world", "batch_size", "lanes"), [(1, 8, 8), (2, 4, 8), (4, 3, 4), (8, 1, 8), (5, 4, 5)]
)
def test_each_rank_reads_lanes_of_its_own(make, many, world, batch_size, lanes):
    epochs, shards = [], []
    for loader in world_of(make, many, world, batch_size=batch_size):
        batches = list(loader)
        assert lanes_of(loader) == lanes
        epochs += flat(batch["__key__"] for batch in batches)
        shards.append({int(key[1:]) // 4 for key in flat(batch["__key__"] for batch in batches)})
    assert sorted(epochs) == [f"s{number:05}" for number in range(160)]
    # The last global batch is split evenly, and lanes begin in the middle of shards.
    assert sum(map(len, shards)) <= 40 + lanes + world * batch_size


# Bears promise 5: a state of the version before goes on in the order of that version.
@pytest.mark.parametrize("saved_lanes", [8, None])
def test_state_of_the_version_before_keeps_its_order(make, many, saved_lanes):
    options = {"seed": 7, "batch_size": 4}
    (before,) = world_of(make, many, 1, lanes=8, **options)
    (now,) = world_of(make, many, 1, **options)
    whole = [keys(before), keys(before)]
    others = [keys(now), keys(now)]
    assert lanes_of(now) == 4
    assert whole[0] != others[0]
    # As that release saved it: in mid-epoch with its lanes, or before it had any.
    state = now.state_dict()
    assert state["order"] == 2
    state["options"]["lanes"] = saved_lanes
    done = 3 if saved_lanes else 0
    state |= {"order": 1, "epoch": 0, "samples": 4 * done}
    for loader in (now, *world_of(make, many, 1, **options)):
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert keys(loader) == whole[0][done:]
        assert keys(loader) == whole[1]
        assert (loader.state_dict()["order"], lanes_of(loader)) == (1, 8)
    # A state of this version leads back.
    now.load_state_dict(state | {"order": 2, "samples": 0, "options": now._order() | {"lanes": 4}})
    assert keys(now) == others[0]
    with pytest.raises(forebay.Invalid, match="lanes") as caught:
        world_of(make, many, 1, lanes=4, **options)[0].load_state_dict(before.state_dict())
    assert caught.value.places["option"] == "lanes"


def test_lanes_of_a_state_outlive_another_world(make, many):
    (loader,) = world_of(make, many, 1, batch_size=4, seed=2)
    whole = flat(keys(loader))
    loader.set_epoch(0)
    iteration = iter(loader)
    done = flat([list(next(iteration)["__key__"]) for _ in range(3)])
    state = loader.state_dict()
    rest = []
    for other in world_of(make, many, 5, batch_size=4, seed=2):
        # It has chosen lanes of its own already.
        next(iter(other))
        assert lanes_of(other) == 5
        other.load_state_dict(state)
        rest += flat(keys(other))
        assert lanes_of(other) == 4
    assert sorted(done + rest) == sorted(whole)


def test_length_requires_sample_counts(make, manifest):
    with pytest.raises(TypeError, match="forebay index"):
        len(make())
    assert len(make(manifest=manifest)) == 15
    assert len(make(manifest=manifest, batch_size=7)) == 9
    assert len(make(manifest=manifest, batch_size=7, drop_last=True)) == 8
    assert len(make(manifest=manifest, batch_size=7, rank=1, world_size=2)) == 5
    assert make(manifest=manifest).num_samples == 60
    assert make(epoch_samples=25).num_samples == 25
    assert len(keys(make(epoch_samples=25))) == len(make(epoch_samples=25)) == 7
    assert len(flat(keys(make(epoch_samples=75)))) == 75


def test_last_batch_is_dropped_padded_or_shared(make, manifest):
    options = {"fields": FIELDS, "manifest": manifest, "batch_size": 7}
    assert len(keys(make(drop_last=True, **options))) == 8
    last = list(make(pad_last=True, **options))[-1]
    assert last["__valid__"].tolist() == [True] * 4 + [False] * 3
    assert last["label"].shape == (7,)
    ranks = [list(make(rank=rank, world_size=2, **options)) for rank in range(2)]
    assert [len(batches[-1]["label"]) for batches in ranks] == [2, 2]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_transform_gets_each_batch_in_order(make, workers):
    def transform(batch):
        return batch["label"].sum(), list(batch["__key__"])

    loader = make(fields=FIELDS, transform=transform, workers=workers)
    for number, (total, names) in enumerate(loader):
        assert total == sum(range(4 * number, 4 * number + 4))
        assert names[0] == f"s{4 * number:05}"
        # After the last batch the state may already name the next epoch.
        assert loader.state_dict()["samples"] == (number + 1) * 4 or number == 14
    assert number == 14


@pytest.mark.parametrize("workers", [0, 2])
def test_failed_transform_loses_no_samples(make, workers):
    failures = []

    def transform(batch):
        if batch["__key__"][0] == "s00012" and not failures:
            failures.append(1)
            raise RuntimeError("once")
        return batch

    iteration = iter(make(fields=FIELDS, transform=transform, workers=workers))
    seen = [list(next(iteration)["__key__"]) for _ in range(3)]
    with pytest.raises(RuntimeError, match="once"):
        next(iteration)
    seen += keys(iteration)
    assert flat(seen) == [f"s{number:05}" for number in range(60)]


def _labels(loader, queue):
    queue.put(sorted(flat(keys(loader))))


def test_pickled_loader_opens_a_separate_job(make):
    loader = make(fields=FIELDS)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.epoch == 0
    assert len(keys(copy)) == 15
    copy.close()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_labels, args=(loader, queue))
    process.start()
    assert queue.get(timeout=60) == [f"s{number:05}" for number in range(60)]
    process.join()
    assert process.exitcode == 0
