"""A data set without samples is an error, not an epoch without batches."""

from __future__ import annotations

import subprocess

import pytest

import forebay
from conftest import write_manifest
from forebay._launch import command


@pytest.mark.parametrize("known", [False, True], ids=["learnt", "manifest"])
def test_data_set_without_samples_raises(make, shard_of, tmp_path, known):
    urls = [shard_of([]), shard_of([])]
    options = {}
    if known:
        options["manifest"] = write_manifest(tmp_path / "m.json", [(url, 0) for url in urls])
    loader = make(urls, **options)
    for _ in range(2):
        with pytest.raises((forebay.NotFound, forebay.Invalid)) as caught:
            next(iter(loader))
        assert known or caught.value.places == {"url": urls[0], "shards": "2"}
    with pytest.raises(forebay.NotFound):
        len(forebay.IndexedDataset(urls, **options))


def test_data_set_with_an_empty_shard_is_read(make, shard_of, shards):
    batches = list(make([shard_of([]), shards[0]], fields={"label": forebay.Int("cls")}))
    assert sum(len(batch["label"]) for batch in batches) == 10


def test_webdataset_reads_past_empty_shards(shard_of, shards):
    assert len(list(forebay.WebDataset([shard_of([]), shards[0]]))) == 10


def test_index_of_empty_shards_fails_and_writes_nothing(shard_of, tmp_path):
    manifest = tmp_path / "m.json"
    index = [*command(), "index", shard_of([]), "-o", str(manifest)]
    done = subprocess.run(index, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NotFound" in done.stderr
    assert not manifest.exists()
