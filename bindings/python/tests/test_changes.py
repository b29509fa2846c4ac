"""A data set that changes: each epoch is one version of it, or an error that names the shard."""

from __future__ import annotations

import os

import pytest

import forebay

# More shards than a job opens ahead of its first batch.
SHARDS = 40


def labels(batches):
    return [int(label) for batch in batches for label in batch["label"]]


@pytest.fixture
def data(tmp_path, shard_of):
    """Write a generation of the data set, or of one of its shards, in place of the one before."""

    def write(generation: int, shards=range(SHARDS)) -> list[str]:
        for n in shards:
            samples = [(f"{i:03d}", {"cls": str(generation).encode()}) for i in range(4)]
            os.replace(shard_of(samples), tmp_path / f"{n:02d}.tar")
        return [str(tmp_path / f"{n:02d}.tar") for n in range(SHARDS)]

    return write


def test_epochs_and_jobs_read_files_replaced_before_them(make, data):
    loader = make(data(1), fields={"label": forebay.Int("cls")})
    assert set(labels(loader)) == {1}
    urls = data(2)
    assert set(labels(loader)) == {2}
    data(3)
    assert set(labels(make(urls, fields={"label": forebay.Int("cls")}))) == {3}


def test_change_during_an_epoch_is_served_on_request(make, data):
    options = {"fields": {"label": forebay.Int("cls")}, "shuffle": False, "prefetch": 1}
    epoch = iter(make(data(1), on_change="serve", **options))
    seen = labels([next(epoch)])
    data(2, [SHARDS - 1])
    assert sorted(seen + labels(epoch)) == [1] * 4 * (SHARDS - 1) + [2] * 4


def test_unknown_word_is_rejected(make, data):
    with pytest.raises(forebay.Invalid) as caught:
        make(data(1), on_change="ignore")
    assert caught.value.places == {"option": "on_change"}
