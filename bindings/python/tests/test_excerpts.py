"""Jobs that want a part of their shards, on a real S3 server: batches, the way chosen, errors."""

from __future__ import annotations

import json
import shutil

import numpy
import pytest

import forebay
from conftest import write_shard
from forebay import _native
from forebay._launch import command

SHARDS, SAMPLES = 3, 20
# Neighbours of one field are further apart than what a request costs.
SIZE = 150_000
VIEWS = ("front", "left", "right")


def view(number: int, name: str) -> bytes:
    """Return a member's bytes."""
    dice = numpy.random.default_rng([number, VIEWS.index(name)])
    return dice.bytes(SIZE)


def run(*arguments: object) -> int:
    return _native.main([str(argument) for argument in arguments], command())


@pytest.fixture(scope="module")
def data(store, tmp_path_factory):
    """Shards in a bucket, with manifest and member index, as arguments of a loader."""
    bucket, environment = store
    (bucket / "excerpts").mkdir()
    for shard in range(SHARDS):
        samples = []
        for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
            views = {name: view(number, name) for name in VIEWS}
            facts = {"json": json.dumps({"n": number}).encode(), "cls": b"%d" % number}
            # The label lies beside the view on the left.
            samples.append((f"{number:04}", {"left": views.pop("left")} | facts | views))
        write_shard(bucket / "excerpts" / f"{shard}.tar", samples)
    urls = [f"s3://bucket/excerpts/{shard}.tar" for shard in range(SHARDS)]
    manifest = tmp_path_factory.mktemp("excerpts") / "m.json"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert run("index", *urls, "-o", manifest, "--columns", "json:n") == 0
        yield {"urls": urls, "manifest": str(manifest)}


@pytest.fixture
def plain(data, tmp_path):
    """The same without a member index."""
    shutil.copy(data["manifest"], tmp_path / "m.json")
    return data | {"manifest": str(tmp_path / "m.json")}


def loader(data, *names, **options):
    fields = {name: forebay.Bytes(name) for name in names} | {"label": forebay.Int("cls")}
    settings = {"batch_size": 4, "fields": fields, "framework": "numpy", "timeout": 60.0}
    return forebay.DataLoader(**(data | settings | options))


def rows(batches):
    return [
        (
            key,
            int(batch["label"][row]),
            *(bytes(batch[name][row]) for name in VIEWS if name in batch),
        )
        for batch in batches
        for row, key in enumerate(batch["__key__"])
        if batch["__valid__"][row]
    ]


def reading(capsys, job):
    capsys.readouterr()
    assert run("status", "--json") == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    (told,) = (one.get("reading") for one in jobs if one["name"] == job)
    return told


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_fields_come_as_from_whole_shards(data, plain, shuffle, capfd):
    options = {"shuffle": shuffle, "window": 2, "seed": 5}
    with (
        loader(data, "left", job="some", **options) as some,
        loader(plain, "left", job="all", **options) as everything,
    ):
        first = rows(some)
        assert first == rows(everything)
        assert {key: left for key, _, left in first} == {
            f"{number:04}": view(number, "left") for number in range(SHARDS * SAMPLES)
        }
        assert rows(some) == rows(everything), "the second epoch"
        assert reading(capfd, "some").startswith("excerpts")
        assert reading(capfd, "all") is None


def test_filter_resumes_in_another_world(data):
    options = {"where": "n in (3, 21, 22, 23, 40, 44, 59)", "batch_size": 1, "shuffle": True}
    with loader(data, *VIEWS, seed=2, **options) as one:
        whole = rows(one)
    assert sorted(label for _, label, *_ in whole) == [3, 21, 22, 23, 40, 44, 59]
    for _, label, *views in whole:
        assert views == [view(label, name) for name in VIEWS]
    with loader(data, *VIEWS, seed=2, **options) as one:
        batches = iter(one)
        begun = rows([next(batches), next(batches)])
        state = one.state_dict()
    rest = []
    for rank in range(2):
        with loader(data, *VIEWS, seed=2, rank=rank, world_size=2, **options) as part:
            part.load_state_dict(state)
            rest += rows(part)
    assert sorted(begun + rest) == sorted(whole)


def test_all_fields_are_read_whole(data, capfd):
    with loader(data, *VIEWS, job="whole") as every:
        next(iter(every))
        assert reading(capfd, "whole").startswith("whole shards")


def test_missing_field_is_named(data):
    with (
        loader(data, "left", "rear", on_error="raise") as some,
        pytest.raises(forebay.ForebayError, match="rear"),
    ):
        next(iter(some))


def test_replaced_shard_is_told(data, store, tmp_path, monkeypatch):
    bucket, environment = store
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    folder = bucket / "replaced"
    shutil.copytree(bucket / "excerpts", folder)
    urls = [f"s3://bucket/replaced/{shard}.tar" for shard in range(SHARDS)]
    manifest = tmp_path / "m.json"
    assert run("index", *urls, "-o", manifest, "--members") == 0
    assert run("dataset", "evict", *urls) == 0, "the indexer's copies"
    shutil.copy(folder / "0.tar", folder / "1.tar")
    with (
        loader({"urls": urls, "manifest": str(manifest)}, "left") as stale,
        pytest.raises(forebay.Invalid) as told,
    ):
        rows(stale)
    assert told.value.places["url"] == urls[1]
    assert told.value.places["listed"] != told.value.places["found"]


def test_new_manifest_removes_the_member_index_of_the_old_one(data, tmp_path, capfd):
    manifest = tmp_path / "m.json"
    members = manifest.with_name(manifest.name + ".members")
    assert run("index", *data["urls"], "-o", manifest, "--members") == 0
    assert run("index", *data["urls"], "-o", manifest) == 0
    assert members.exists(), "the index is that of this manifest"
    fewer = {"urls": data["urls"][:1], "manifest": str(manifest)}
    assert run("index", *fewer["urls"], "-o", manifest) == 0
    assert not members.exists()
    assert str(members) in capfd.readouterr().err
    with loader(fewer, "left") as rest:
        assert len(rows(rest)) == SAMPLES


def test_joined_shards_are_read_whole(data, capfd):
    joined = data | {"urls": forebay.Join({"": data["urls"], "more": data["urls"]})}
    with loader(joined, "left", job="joined") as both:
        assert len(rows(both)) == SHARDS * SAMPLES
        assert reading(capfd, "joined") is None
