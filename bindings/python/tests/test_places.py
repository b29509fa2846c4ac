"""Random access by a member index on a real S3 server: cold samples, remote manifests, samplers,
processes, and errors.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import forebay
from conftest import Home, write_shard
from forebay import _native
from forebay._launch import command
from test_processes import in_a_fork

COUNTS = (9, 0, 30, 17)
FIELDS = {"label": forebay.Int("cls"), "text": forebay.Text("txt")}


def run(*arguments: object) -> int:
    return _native.main([str(argument) for argument in arguments], command())


@pytest.fixture(scope="module")
def data(store, tmp_path_factory):
    """Shards, manifest and index in a bucket and in a folder, made by another daemon's cache."""
    bucket, environment = store
    folder = bucket / "places"
    folder.mkdir()
    number = 0
    for shard, count in enumerate(COUNTS):
        samples = []
        for _ in range(count):
            fields = {
                "bin": bytes(50_000),
                "cls": b"%d" % number,
                "json": json.dumps({"odd": number % 2}).encode(),
                "txt": b"t" * number,
            }
            samples.append((f"k{number:03}", fields))
            number += 1
        write_shard(folder / f"{shard}.tar", samples)
    urls = [f"s3://bucket/places/{shard}.tar" for shard in range(len(COUNTS))]
    home = Home(tmp_path_factory.mktemp("indexing"))
    manifest = tmp_path_factory.mktemp("places") / "m.json"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.MonkeyPatch.context() as apart:
            for name, value in home.environment.items():
                apart.setenv(name, value)
            assert run("index", *urls, "-o", manifest, "--columns", "json:odd") == 0
        for path in (manifest, Path(f"{manifest}.members")):
            shutil.copy(path, folder / path.name)
        yield {"urls": urls, "manifest": str(manifest)}


def dataset(data, **options):
    settings = {"fields": FIELDS, "framework": "numpy", "timeout": 60.0}
    return forebay.IndexedDataset(**(data | settings | options))


def assert_sample(sample, number):
    assert sample["__key__"] == f"k{number:03}"
    assert (sample["label"], sample["text"]) == (number, "t" * number)


@pytest.mark.parametrize("place", ["here", "in the bucket"])
def test_cold_samples_come_without_their_shards(data, place):
    where = {} if place == "here" else {"manifest": "s3://bucket/places/m.json"}
    with dataset(data, **where) as places:
        assert len(places) == sum(COUNTS)
        for number in (55, 0, 9, 38, 39, -1):
            assert_sample(places[number], number % sum(COUNTS))
        batch = places[[40, 3, 41, 3]]
        assert batch["label"].tolist() == [40, 3, 41, 3]
        with pytest.raises(IndexError):
            places[sum(COUNTS)]


def test_filter_of_a_remote_index_numbers_the_samples_that_pass(data):
    with dataset(data, manifest="s3://bucket/places/m.json", where="odd = 1") as odd:
        assert len(odd) == sum(COUNTS) // 2
        assert odd[[0, 27, 5]]["label"].tolist() == [1, 55, 11]
    with forebay.DataLoader(
        data["urls"],
        manifest="s3://bucket/places/m.json",
        where="odd = 1",
        fields=FIELDS,
        batch_size=8,
        framework="numpy",
    ) as loader:
        labels = [label for batch in loader for label in batch["label"].tolist()]
    assert labels == list(range(1, sum(COUNTS), 2))


def test_copies_and_forks_open_the_index_themselves(data):
    places = dataset(data, manifest="s3://bucket/places/m.json")
    assert_sample(places[50], 50)
    copy = pickle.loads(pickle.dumps(places))
    assert_sample(copy[12], 12)

    def child():
        assert_sample(places[51], 51)

    in_a_fork(child)
    assert_sample(places[52], 52)
    places.close()
    copy.close()


def test_torch_workers_draw_at_random(data):
    torch = pytest.importorskip("torch")
    places = dataset(data, framework="torch")
    generator = torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(places, generator=generator)
    # A fork would copy the threads of what other tests imported.
    loader = torch.utils.data.DataLoader(
        places, batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context="spawn"
    )
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(labels) == list(range(sum(COUNTS)))


def test_wrong_places_are_errors(data, tmp_path):
    manifest = tmp_path / "m.json"
    shutil.copy(data["manifest"], manifest)
    whole = Path(f"{data['manifest']}.members").read_bytes()
    Path(f"{manifest}.members").write_bytes(whole[: len(whole) // 2])
    with dataset(data, manifest=manifest) as places, pytest.raises(forebay.Corrupt):
        places[0]
    with pytest.raises(forebay.NotFound):
        dataset(data, manifest="s3://bucket/places/none.json")
    relative = os.path.relpath(data["manifest"])
    with dataset(data, manifest=relative) as places:
        assert_sample(places[1], 1)
