"""Mixtures of streams: shares of every prefix, the order of each stream, and resuming."""

from __future__ import annotations

import pytest

import forebay
from conftest import write_manifest, write_shard

FIELDS = {"label": forebay.Int("cls")}
# Sample counts of the shards of three data sets.
SETS = {"a": (9, 4, 7), "b": (6, 5), "c": (10,)}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Shards and manifest of each data set, by name."""
    folder = tmp_path_factory.mktemp("streams")
    made = {}
    for name, counts in SETS.items():
        urls = [
            write_shard(
                folder / f"{name}{shard}.tar",
                [(f"{name}-{shard}-{n:03}", {"cls": b"%d" % n}) for n in range(count)],
            )
            for shard, count in enumerate(counts)
        ]
        listed = list(zip(urls, counts, strict=True))
        made[name] = (urls, write_manifest(folder / f"{name}.json", listed))
    return made


def keys(loader):
    return [key for batch in loader for key in batch["__key__"]]


def weighted(sets, *weights):
    return [
        forebay.Stream(urls, weight=weight, manifest=manifest)
        for (urls, manifest), weight in zip(sets.values(), weights, strict=True)
    ]


def repeated(sets, *repeats):
    return [
        forebay.Stream(urls, repeat=repeat, manifest=manifest)
        for (urls, manifest), repeat in zip(sets.values(), repeats, strict=True)
    ]


@pytest.mark.parametrize("with_counts", [True, False])
def test_share_of_each_prefix_is_within_one_sample(make, sets, with_counts):
    streams = weighted(sets, 0.5, 0.3, 0.2)
    if not with_counts:
        streams = [forebay.Stream(stream.urls, weight=stream.weight) for stream in streams]
    loader = make(streams, fields=FIELDS, shuffle=True, epoch_samples=200, seed=2)
    seen = keys(loader)
    assert len(seen) == loader.num_samples == 200
    for end in range(1, 201):
        for name, weight in zip(SETS, (0.5, 0.3, 0.2), strict=True):
            had = sum(key.startswith(name) for key in seen[:end])
            assert abs(had - weight * end) < 1, (name, end)
    # A short stream is repeated: its samples are read equally often, or once more.
    for name, counts in SETS.items():
        of_it = [key for key in seen if key.startswith(name)]
        times = {key: of_it.count(key) for key in of_it}
        assert len(times) == sum(counts)
        assert max(times.values()) - min(times.values()) <= 1
        first, second = of_it[: sum(counts)], of_it[sum(counts) : 2 * sum(counts)]
        assert len(set(first)) == sum(counts)
        assert first != second


def test_repeat_sets_the_passes_over_each_stream(make, sets):
    loader = make(repeated(sets, 1, 2, 0.5), fields=FIELDS, shuffle=True, window=2)
    seen = keys(loader)
    assert len(seen) == loader.num_samples == 20 + 22 + 5
    assert len(loader) == 12
    times = {key: seen.count(key) for key in seen}
    assert {times[key] for key in times if key.startswith("a")} == {1}
    assert {times[key] for key in times if key.startswith("b")} == {2}
    assert [times[key] for key in times if key.startswith("c")] == [1] * 5
    # A stream without weight or repeat is read once.
    urls, manifest = sets["a"]
    assert len(keys(make([forebay.Stream(urls, manifest=manifest)], fields=FIELDS))) == 20


def test_order_of_a_stream_does_not_depend_on_the_others(make, sets):
    def of_a(*weights):
        loader = make(weighted(sets, *weights), fields=FIELDS, shuffle=True, epoch_samples=90)
        return [key for key in keys(loader) if key.startswith("a")][:15]

    assert of_a(1, 1, 1) == of_a(4, 1, 2)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_mixture_resumes_in_every_world(make, sets, world):
    options = {"fields": FIELDS, "shuffle": True, "seed": 5}
    streams = repeated(sets, 1, 2, 3)
    whole = keys(make(streams, **options))
    for steps in (0, 1, 7, 12):
        loader = make(streams, batch_size=5, **options)
        batches = iter(loader)
        done = [key for _ in range(steps) for key in next(batches)["__key__"]]
        ranks = []
        for rank in range(world):
            other = make(streams, batch_size=3, rank=rank, world_size=world, **options)
            other.load_state_dict(loader.state_dict())
            ranks.append([list(batch["__key__"]) for batch in other])
        assert len({len(batches) for batches in ranks}) == 1
        together = [key for step in zip(*ranks, strict=True) for part in step for key in part]
        # The tail repeats a sample for a rank that would otherwise have none.
        assert done + together[: len(whole) - len(done)] == whole


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda sets: {"urls": [*weighted(sets, 1, 1, 1), "x.tar"]}, "Stream of each"),
        (lambda sets: {"urls": weighted(sets, 1, 1, 1)}, "epoch_samples"),
        (lambda sets: {"urls": [forebay.Stream(sets["a"][0])]}, "manifest"),
        (
            lambda sets: {"urls": [*weighted(sets, 1, 1, 1), forebay.Stream(sets["a"][0])]},
            "all of them",
        ),
    ],
)
def test_invalid_mixture_is_rejected_with_advice(make, sets, change, named):
    with pytest.raises(forebay.Invalid, match=named):
        make(**change(sets))


def test_invalid_streams_are_rejected_at_creation():
    for arguments in (
        {"weight": 0},
        {"weight": -1.0},
        {"repeat": float("nan")},
        {"weight": 1, "repeat": 1},
        {"repeat": "2"},
    ):
        with pytest.raises(forebay.Invalid, match=r"weight|repeat"):
            forebay.Stream("x.tar", **arguments)


def test_state_of_another_mixture_is_rejected(make, sets):
    options = {"fields": FIELDS, "epoch_samples": 50}
    state = make(weighted(sets, 1, 1, 1), **options).state_dict()
    make(weighted(sets, 1, 1, 1), **options).load_state_dict(state)
    with pytest.raises(forebay.Invalid, match="streams"):
        make(weighted(sets, 1, 1, 2), **options).load_state_dict(state)
