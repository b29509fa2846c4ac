"""Joined shards: one sample of the members that several tars have under one key."""

from __future__ import annotations

import json
import os
import pickle

import numpy
import pytest

import forebay
from conftest import npy, write_shard
from forebay import _native
from forebay._launch import command

# Samples of each shard.
COUNTS = [7, 3, 12, 1, 5]
TOTAL = sum(COUNTS)


def key(shard: int, number: int) -> str:
    return f"{shard}-{number:03}"


KEYS = [key(shard, number) for shard, count in enumerate(COUNTS) for number in range(count)]


def first(shard: int, number: int) -> dict[str, bytes]:
    document = {"side": number, "shard": shard}
    return {"cls": b"%d" % (shard * 100 + number), "json": json.dumps(document).encode()}


def second(shard: int, number: int) -> dict[str, bytes]:
    return {"npy": npy(numpy.full(4, shard * 100 + number, dtype=numpy.float32))}


def write(folder, make, counts=COUNTS):
    """Write shards of samples that `make` gives; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, count in enumerate(counts):
        samples = [(key(shard, number), make(shard, number)) for number in range(count)]
        write_shard(folder / f"{shard}.tar", samples)
    return [f"{shard}.tar" for shard in range(len(counts))]


@pytest.fixture(scope="module")
def data(store, tmp_path_factory):
    """Labels in a bucket, embeddings in local files, and both in one tar."""
    bucket, environment = store
    names = write(bucket / "join", first)
    local, whole = tmp_path_factory.mktemp("npy"), tmp_path_factory.mktemp("whole")
    write(local, second)
    write(whole, lambda shard, number: first(shard, number) | second(shard, number))
    manifest = tmp_path_factory.mktemp("join") / "m.json"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        labels = [f"s3://bucket/join/{name}" for name in names]
        columns = ["--columns", "json:side,shard"]
        arguments = ["index", *labels, "-o", str(manifest), *columns]
        assert _native.main(arguments, command()) == 0
        yield {
            "labels": labels,
            "arrays": [str(local / name) for name in names],
            "whole": [str(whole / name) for name in names],
            "manifest": str(manifest),
        }


FIELDS = {"label": forebay.Int("cls"), "array": forebay.Npy("npy")}


def loader(urls, **options):
    settings = {"batch_size": 4, "fields": FIELDS, "framework": "numpy", "timeout": 60.0}
    return forebay.DataLoader(urls, **(settings | options))


def rows(batches):
    """Return keys with their labels and arrays, and check that these belong together."""
    found = []
    for batch in batches:
        valid = batch["__valid__"].tolist()
        for number, name in enumerate(batch["__key__"]):
            if valid[number]:
                assert batch["array"][number].tolist() == [float(batch["label"][number])] * 4
                found.append((name, int(batch["label"][number])))
    return found


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("listed", [False, True])
def test_joined_shards_play_as_one_tar_with_all_members(data, shuffle, listed):
    options = {"shuffle": shuffle, "window": 2, "seed": 5}
    if listed:
        options["manifest"] = data["manifest"]
    with loader(forebay.Join([data["labels"], data["arrays"]]), **options) as joined:
        first, second = rows(joined), rows(joined)
        assert joined.num_samples == TOTAL
    assert sorted(name for name, _ in first) == sorted(KEYS)
    assert (first == second) == (shuffle is False)
    with loader(data["labels"], **(options | {"fields": {"label": forebay.Int("cls")}})) as alone:
        names = [name for batch in alone for name in batch["__key__"]]
        names += [name for batch in alone for name in batch["__key__"]]
    assert [name for name, _ in first + second] == names


def test_patterns_and_either_place_of_a_part(data, tmp_path):
    folder = os.path.dirname(data["arrays"][0])
    join = forebay.Join([f"{folder}/{{0..4}}.tar", "s3://bucket/join/{0..4}.tar"])
    with loader(join) as joined:
        assert [name for name, _ in rows(joined)] == KEYS


def test_without_fields_every_member_comes_under_its_name(data):
    join = forebay.Join({"": data["labels"], "clip": data["arrays"]})
    with loader(join, fields=None) as joined:
        batch = next(iter(joined))
    assert {"cls", "json", "clip.npy"} == {name for name in batch if not name.startswith("__")}
    assert batch["clip.npy"][2] == second(0, 2)["npy"]
    assert set(batch["__url__"]) == {"s3://bucket/join/0.tar"}


def test_names_of_parts_tell_equal_fields_apart(data):
    fields = {"label": forebay.Int("cls"), "again": forebay.Int("more.cls")}
    join = forebay.Join({"": data["labels"], "more": data["whole"]})
    with loader(join, fields=fields) as joined:
        for batch in joined:
            assert batch["label"].tolist() == batch["again"].tolist()


def test_field_of_two_parts_is_an_error_unless_unread(data):
    join = forebay.Join([data["labels"], data["whole"]])
    with loader(join, on_error="skip") as joined, pytest.raises(forebay.Invalid) as caught:
        next(iter(joined))
    assert caught.value.places["field"] == "cls"
    with loader(join, fields={"array": forebay.Npy("npy")}) as joined:
        assert sum(len(batch["__key__"]) for batch in joined) == TOTAL


def test_missing_field_names_those_of_all_parts(data):
    join = forebay.Join([data["labels"], data["arrays"]])
    fields = {"label": forebay.Int("cls"), "image": forebay.Bytes("jpg")}
    with loader(join, fields=fields) as joined, pytest.raises(forebay.BadSample) as caught:
        next(iter(joined))
    assert "npy" in str(caught.value)
    assert caught.value.places["field"] == "image"


def other(tmp_path, keys):
    """Write the arrays of shard 2 under other keys; return the folder's shards."""
    write(tmp_path, second)
    samples = [(name, second(2, number)) for number, name in enumerate(keys)]
    write_shard(tmp_path / "2.tar", samples)
    return [str(tmp_path / f"{shard}.tar") for shard in range(len(COUNTS))]


OWN = [key(2, number) for number in range(COUNTS[2])]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("keys", "place", "bad"),
    [
        # A sample is missing: what follows is out of step.
        ([*OWN[:5], *OWN[6:]], (5, OWN[5], OWN[6]), OWN[5:]),
        # Two samples changed places.
        ([OWN[0], OWN[2], OWN[1], *OWN[3:]], (1, OWN[1], OWN[2]), OWN[1:3]),
        # The last ones are missing.
        (OWN[:-2], (10, OWN[10], "no sample"), OWN[10:]),
    ],
)
def test_first_difference_is_named(data, tmp_path, shuffle, listed, keys, place, bad):
    arrays = other(tmp_path, keys)
    options = {"shuffle": shuffle, "window": 2, "on_error": "skip"}
    if listed:
        options["manifest"] = data["manifest"]
    with loader(forebay.Join([data["labels"], arrays]), **options) as joined:
        found = [name for name, _ in rows(joined)]
        errors = joined.stats()["bad"]
    assert sorted(found) == sorted(set(KEYS) - set(bad))
    assert errors["by_kind"] == {"Corrupt": len(bad)}
    assert sorted(error["key"] for error in errors["last"]) == sorted(bad)
    options["on_error"] = "raise"
    joined = loader(forebay.Join([data["labels"], arrays]), **options)
    with joined, pytest.raises(forebay.Corrupt) as caught:
        rows(joined)
    places = caught.value.places
    assert places["url"] == "s3://bucket/join/2.tar"
    assert places["joined"].endswith(arrays[2])
    position, expected, other_key = place
    told = (int(places["position"]), places["expected"], places["found"])
    assert told == (position, expected, other_key)
    assert places["key"] in bad


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_longer_part_is_an_error_once_per_shard(data, tmp_path, shuffle, listed):
    arrays = other(tmp_path, [*OWN, "more", "and-more"])
    options = {"shuffle": shuffle, "window": 2, "on_error": "skip"}
    if listed:
        options["manifest"] = data["manifest"]
    with loader(forebay.Join([data["labels"], arrays]), **options) as joined:
        assert sorted(name for name, _ in rows(joined)) == sorted(KEYS)
        errors = joined.stats()["bad"]
    assert errors["by_kind"] == {"Corrupt": 1}
    assert "position=12" in errors["last"][0]["message"]
    assert "found=more" in errors["last"][0]["message"]


def test_broken_part_is_corrupt_from_there_on(data, tmp_path):
    arrays = other(tmp_path, OWN)
    with open(arrays[2], "r+b") as shard:
        shard.truncate(os.path.getsize(arrays[2]) // 2)
    with loader(forebay.Join([data["labels"], arrays]), on_error="skip") as joined:
        found = [name for name, _ in rows(joined)]
        errors = joined.stats()["bad"]
    missing = [name for name in KEYS if name not in found]
    assert missing
    assert missing == OWN[-len(missing) :]
    assert set(errors["by_kind"]) == {"Corrupt"}


def test_numbers_of_shards_are_compared_at_once(data):
    with pytest.raises(forebay.Invalid, match=r"\[5, 4\]"):
        loader(forebay.Join([data["labels"], data["arrays"][:-1]]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: forebay.Join([["a.tar"]]),
        lambda: forebay.Join([]),
        lambda: forebay.Join("a.tar"),
        lambda: forebay.Join(["a.tar", "b.tar"], on="row"),
        lambda: forebay.Join({"": "a.tar", "A;b": "b.tar"}),
        lambda: forebay.DataLoader([forebay.Join(["a.tar", "b.tar"])]),
        lambda: forebay.DataLoader(forebay.Join(["a.tar", forebay.Join(["b.tar", "c.tar"])])),
    ],
)
def test_joins_without_sense_are_rejected(make):
    with pytest.raises(forebay.Invalid):
        make()


def test_state_resumes_and_belongs_to_its_parts(data):
    join = forebay.Join([data["labels"], data["arrays"]])
    options = {"shuffle": True, "window": 2, "manifest": data["manifest"]}
    with loader(join, **options) as joined:
        whole = rows(joined)
    with loader(join, **options) as joined:
        batches = iter(joined)
        begun = rows([next(batches), next(batches)])
        state = json.loads(json.dumps(joined.state_dict()))
    with loader(join, **options, batch_size=3) as joined:
        joined.load_state_dict(state)
        assert begun + rows(joined) == whole
    for urls in (data["labels"], forebay.Join({"": data["labels"], "x": data["arrays"]})):
        with loader(urls, **options) as another:
            with pytest.raises(forebay.Invalid) as caught:
                another.load_state_dict(state)
            assert caught.value.places["option"] == "join"


def test_ranks_read_each_sample_once(data):
    join = forebay.Join([data["labels"], data["arrays"]])
    found = []
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "manifest": data["manifest"], "shuffle": True}
        with loader(join, **options) as joined:
            found += [name for name, _ in rows(joined)]
    assert sorted(found) == sorted(KEYS)


@pytest.mark.parametrize("listed", [False, True])
def test_shards_of_a_queue_are_joined(data, listed):
    options = {"split": "dynamic", "job": f"join-{listed}", "shuffle": True}
    if listed:
        options["manifest"] = data["manifest"]
    with loader(forebay.Join([data["labels"], data["arrays"]]), **options) as joined:
        assert sorted(name for name, _ in rows(joined)) == sorted(KEYS)


def test_streams_mix_joined_and_other_shards(data):
    streams = [
        forebay.Stream(data["whole"][:2], repeat=1.0, manifest=data["manifest"]),
        forebay.Stream(forebay.Join([data["labels"], data["arrays"]]), manifest=data["manifest"]),
    ]
    with pytest.raises(forebay.Invalid):
        # The manifest lists other shards than the first stream's.
        loader([forebay.Stream(["no.tar"], manifest=data["manifest"]), streams[1]])
    with loader(streams, shuffle=True) as mixed:
        found = [name for name, _ in rows(mixed)]
    assert sorted(found) == sorted(KEYS + KEYS[:10])


def test_filter_chooses_by_columns_of_the_first_part(data):
    join = forebay.Join([data["labels"], data["arrays"]])
    options = {"manifest": data["manifest"], "where": "side >= 3"}
    with loader(join, **options) as joined:
        found = [name for name, _ in rows(joined)]
    assert found == [name for name in KEYS if int(name[2:]) >= 3]


def test_indexed_dataset_joins(data):
    join = forebay.Join([data["labels"], data["arrays"]])
    with forebay.IndexedDataset(join, fields=FIELDS, framework="numpy") as samples:
        assert len(samples) == TOTAL
        for number in (0, 9, TOTAL - 1):
            assert samples[number]["__key__"] == KEYS[number]
            assert samples[number]["array"][0] == samples[number]["label"]
        assert list(samples[[5, 3]]["__key__"]) == [KEYS[5], KEYS[3]]


def test_webdataset_rejects_a_join(data):
    pytest.importorskip("torch")
    with pytest.raises(forebay.Invalid, match="DataLoader"):
        forebay.WebDataset(forebay.Join([data["labels"], data["arrays"]]))


def test_copies_read_the_same_anywhere(data, tmp_path, monkeypatch):
    folder = os.path.dirname(data["arrays"][0])
    monkeypatch.chdir(folder)
    join = forebay.Join(["s3://bucket/join/{0..4}.tar", "{0..4}.tar"])
    stream = forebay.Stream(join, manifest=data["manifest"])
    with loader(join) as alone, loader([stream]) as mixed:
        copies = [pickle.loads(pickle.dumps(each)) for each in (alone, mixed)]
        monkeypatch.chdir(tmp_path)
        expected = rows(alone)
        for copy in copies:
            with copy:
                assert rows(copy) == expected


def test_replaced_part_is_noticed(data, tmp_path):
    arrays = other(tmp_path, OWN)
    join = forebay.Join([data["labels"], arrays])
    with loader(join, prefetch=1) as joined:
        batches = iter(joined)
        next(batches)
        write_shard(tmp_path / "2.new", [(name, second(9, 9)) for name in OWN])
        os.replace(tmp_path / "2.new", arrays[2])
        rest, changed = [], None
        try:
            for batch in batches:
                rest += batch["array"][:, 0].tolist()
        except forebay.Unavailable as error:
            # Unless the old version had arrived before.
            changed = error
        assert 909.0 not in rest
        assert changed is None or changed.places["reason"] == "changed"
    with loader(join) as joined:
        rest = [row for batch in joined for row in batch["array"][:, 0].tolist()]
    assert rest.count(909.0) == COUNTS[2]
