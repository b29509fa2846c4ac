"""Sample counts that no manifest gave: learnt in a first epoch, used from the next on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from conftest import sample, write_manifest, write_shard
from forebay import _native

SHARDS, SAMPLES = 8, 5
OPTIONS: dict[str, Any] = {"fields": None, "batch_size": 4, "shuffle": True, "window": 2}


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    """Eight shards of five samples each: enough for two lanes where their counts are known."""
    folder = tmp_path / "learnt"
    folder.mkdir()
    return [
        write_shard(folder / f"{shard}.tar", [sample(shard * SAMPLES + n) for n in range(SAMPLES)])
        for shard in range(SHARDS)
    ]


@pytest.fixture
def listed(urls: list[str], tmp_path: Path) -> str:
    """Their manifest."""
    return write_manifest(tmp_path / "listed.json", [(url, SAMPLES) for url in urls])


def keys(batches: Iterator[Any] | Any) -> list[list[str]]:
    """The keys of each batch."""
    return [list(batch["__key__"]) for batch in batches]


def test_the_second_epoch_is_that_of_a_manifest(
    urls: list[str], listed: str, make: Callable[..., Any]
) -> None:
    """The first is that of a job that knows nothing, and the length is known from its end on."""
    loader, knows = make(urls, **OPTIONS), make(urls, manifest=listed, **OPTIONS)
    with pytest.raises(TypeError, match="manifest"):
        len(loader)
    first, second = keys(loader), keys(loader)
    of_manifest = [keys(knows), keys(knows)]
    assert first != of_manifest[0], "two lanes would say nothing here"
    assert second == of_manifest[1]
    assert len(loader) == len(second) == 10
    assert loader.num_samples == SHARDS * SAMPLES
    assert keys(loader) == keys(knows)


def test_an_epoch_that_was_left_teaches_nothing(urls: list[str], make: Callable[..., Any]) -> None:
    """A resumed loader has the counts of the first one."""
    loader = make(urls, **OPTIONS)
    next(iter(loader))
    other = make(urls, **OPTIONS)
    other.set_epoch(1)
    assert keys(loader) == keys(other)


def test_a_state_goes_on_with_what_was_learnt(
    urls: list[str], listed: str, make: Callable[..., Any]
) -> None:
    """In a loader that knows nothing yet, and in one that has the manifest."""
    loader = make(urls, **OPTIONS)
    unlearnt = loader.state_dict()
    first = keys(loader)
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = keys(epoch)
    assert len(rest) == 7
    for options in ({}, {"manifest": listed}):
        other = make(urls, **OPTIONS, **options)
        other.load_state_dict(state)
        assert keys(other) == rest
        assert other.epoch == 2
    # And back to where nothing was known.
    loader.load_state_dict(unlearnt)
    assert keys(loader) == first


def test_a_state_of_other_counts_is_refused(urls: list[str], make: Callable[..., Any]) -> None:
    """A shard that has other samples by now is another data set."""
    loader = make(urls, **OPTIONS)
    keys(loader)
    state = loader.state_dict()
    then = [(url, SAMPLES + (url == urls[3])) for url in urls]
    changed = state | {"shards": _native.manifest_hash(then)}
    with pytest.raises(forebay.Invalid, match="other shards"):
        make(urls, **OPTIONS).load_state_dict(changed)
    with pytest.raises(forebay.Invalid, match="other shards"):
        make(urls[:-1], **OPTIONS).load_state_dict(state)


def test_counts_go_on_where_the_session_changes(urls: list[str], make: Callable[..., Any]) -> None:
    """The second epoch's session is another; the user's figures are not."""
    loader = make(urls, **OPTIONS)
    keys(loader)
    before = loader.stats()
    keys(loader)
    after = loader.stats()
    assert after["samples"] == 2 * before["samples"] == 2 * SHARDS * SAMPLES
    assert sum(after["bytes"].values()) == 2 * sum(before["bytes"].values()) > 0
    assert after["wait"]["total_seconds"] >= before["wait"]["total_seconds"]


def test_a_broken_shard_teaches_nothing(urls: list[str], make: Callable[..., Any]) -> None:
    """The remaining samples do not reveal the full count."""
    whole = Path(urls[2]).read_bytes()
    Path(urls[2]).write_bytes(whole[: len(whole) // 2 // 512 * 512 + 100])
    loader = make(urls, on_error="skip", **OPTIONS)
    assert 0 < sum(map(len, keys(loader))) < SHARDS * SAMPLES
    with pytest.raises(TypeError, match="manifest"):
        len(loader)


def test_several_ranks_learn_nothing(urls: list[str], make: Callable[..., Any]) -> None:
    """They would have to agree on it first."""
    both = [
        make(urls, rank=rank, world_size=2, epoch_samples=SHARDS * SAMPLES, **OPTIONS)
        for rank in range(2)
    ]
    alone = make(urls, epoch_samples=SHARDS * SAMPLES, **(OPTIONS | {"batch_size": 8}))
    for epoch in range(2):
        alone.set_epoch(epoch)
        parts = [keys(loader) for loader in both]
        if epoch == 0:
            assert [a + b for a, b in zip(*parts, strict=True)] == keys(alone)
    assert "urls" not in both[0].state_dict()
    assert "urls" in alone.state_dict()
