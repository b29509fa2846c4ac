"""`select` leaves samples out of their batches without moving the others."""

from __future__ import annotations

import json

import numpy
import pytest

import forebay

FIELDS = {"label": forebay.Int("cls"), "image": forebay.Image("png")}


def odd(sample):
    return sample["label"] % 2


def late(sample):
    return sample["label"] >= 8


def labels(loader):
    return [batch["label"].tolist() for batch in loader]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_batch_is_shorter_by_its_deselected_samples(make, shards, framework):
    seen = []

    def select(sample):
        seen.append(sample)
        return sample["label"] % 3 == 0

    fields = FIELDS | {"text": forebay.Text("txt"), "lack": forebay.Int("nope", optional=True)}
    loader = make(fields=fields, select=select, framework=framework)
    batches = list(loader)
    assert len(batches) == 15
    assert [row for batch in batches for row in batch["label"].tolist()] == list(range(0, 60, 3))
    first = batches[0]
    assert first["label"].tolist() == [0, 3]
    assert list(first["__key__"]) == ["s00000", "s00003"]
    assert list(first["__url__"]) == [shards[0]] * 2
    assert first["image"].shape == (2, 3, 8, 6)
    assert first["__valid__"].tolist() == [True, True]
    assert first["lack_present"].tolist() == [False, False]
    assert first["text"] == ["text 0 é", "text 3 é"]
    assert type(first["image"]) is type(first["__valid__"]) is type(first["label"])
    assert set(seen[0]) == {*fields, "__key__", "__url__"}
    assert (seen[1]["__key__"], seen[1]["__url__"]) == ("s00001", shards[0])
    assert (seen[1]["text"], seen[1]["lack"]) == ("text 1 é", None)
    assert seen[1]["image"].shape == (3, 8, 6)


@pytest.mark.parametrize(
    "workers",
    [{}, {"workers": 2}, {"workers": 2, "worker_type": "process"}],
    ids=["here", "threads", "processes"],
)
def test_deselected_samples_are_counted_apart_from_errors(make, shard_of, workers):
    from conftest import sample

    samples = [sample(number) for number in range(10)]
    samples[3][1]["cls"] = b"no number"
    loader = make(shard_of(samples), fields=FIELDS, select=odd, on_error="skip", **workers)
    assert labels(loader) == [[1], [5, 7], [9]]
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["deselected"]) == (3, 4, 5)
    assert (stats["errors"], stats["bad"]["by_kind"]) == (1, {"BadSample": 1})


@pytest.mark.parametrize(
    "workers",
    [{}, {"workers": 2}, {"workers": 2, "worker_type": "process"}],
    ids=["here", "threads", "processes"],
)
def test_fully_deselected_batches_are_dropped(make, workers):
    made = []
    code = {} if "worker_type" in workers else {"transform": lambda batch: made.append(1) or batch}
    loader = make(fields=FIELDS, select=late, **workers, **code)
    assert labels(loader) == [[n, n + 1, n + 2, n + 3] for n in range(8, 60, 4)]
    assert len(made) in (0, 13)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["deselected"]) == (13, 52, 8)
    # Their positions are passed.
    iteration = iter(loader)
    next(iteration)
    assert loader.state_dict()["samples"] == 12
    again = make(fields=FIELDS, select=late)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again))["label"].tolist() == [12, 13, 14, 15]


def test_epoch_of_deselected_samples_alone_ends(make):
    loader = make(fields=FIELDS, select=lambda sample: False)
    assert list(loader) == list(loader) == []
    assert loader.epoch == 2


def test_ranks_in_step_keep_empty_batches(make, manifest):
    options = {"fields": FIELDS, "manifest": manifest, "world_size": 2, "rank": 0}
    batches = labels(make(**options, select=late))
    assert (len(batches), batches[0]) == (8, [])
    assert len(labels(make(**options, select=late, drop_empty=True))) == 7


def test_fully_deselected_batch_is_kept_on_request(make):
    loader = make(fields=FIELDS, select=late, drop_empty=False)
    batches = list(loader)
    assert len(batches) == 15
    assert batches[0]["image"].shape == (0, 3, 8, 6)
    assert batches[0]["label"].dtype == numpy.int64
    assert list(batches[0]["__key__"]) == []


@pytest.mark.parametrize("world", [1, 2, 3])
def test_selection_is_stable_across_worlds_and_resumes(make, manifest, world):
    def chosen(rank, world_size, batch_size, state=None, stop=None):
        loader = make(
            fields={"label": FIELDS["label"]},
            select=odd,
            shuffle=True,
            seed=3,
            manifest=manifest,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch["label"][batch["__valid__"]].tolist())
            if number + 1 == stop:
                return batches, loader.state_dict()
        return batches, None

    alone, _ = chosen(0, 1, 12)
    assert sorted(value for batch in alone for value in batch) == list(range(1, 60, 2))
    ranks = [chosen(rank, world, 12 // world)[0] for rank in range(world)]
    for number, batch in enumerate(alone):
        together = [value for rank in ranks for value in rank[number]]
        assert sorted(together) == sorted(batch)
    begun, state = chosen(0, 1, 12, stop=2)
    assert begun == alone[:2]
    assert state["samples"] == 24
    rest = [chosen(rank, world, 12 // world, state)[0] for rank in range(world)]
    for number, batch in enumerate(alone[2:]):
        assert sorted(value for rank in rest for value in rank[number]) == sorted(batch)


def test_deselected_padding_is_not_counted(make, shard_of):
    from conftest import sample

    url = shard_of([sample(number) for number in range(5)])
    loader = make(url, fields=FIELDS, select=odd, batch_size=4, epoch_samples=5, pad_last=True)
    kept = [row for batch in loader for row in batch["label"][batch["__valid__"]].tolist()]
    assert kept == [1, 3]
    assert (loader.stats()["samples"], loader.stats()["deselected"]) == (2, 3)


def test_select_runs_before_map_and_names_the_sample(make, shards):
    mapped = []
    fields = {"label": forebay.Int("cls", map=lambda label: mapped.append(int(label)) or label)}
    list(make(fields=fields, select=odd))
    assert mapped == list(range(1, 60, 2))

    def refuse(sample):
        if sample["label"] == 6:
            raise KeyError("six")
        return True

    iteration = iter(make(fields=FIELDS, select=refuse))
    next(iteration)
    for _ in range(2):
        with pytest.raises(KeyError, match="six") as caught:
            next(iteration)
        assert caught.value.places["key"] == "s00006"
        assert caught.value.places["url"] == shards[0]
        assert int(caught.value.places["offset"]) > 0


def test_select_gets_every_field_if_none_is_named(make):
    loader = make(select=lambda sample: sample["cls"] in (b"1", b"59"))
    keys = [key for batch in loader for key in batch["__key__"]]
    assert keys == ["s00001", "s00059"]
