"""Sample counts without a manifest: learnt in the first epoch, and used from the second on."""

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
    """Eight shards of five samples each: enough for two lanes once their counts are known."""
    folder = tmp_path / "learnt"
    folder.mkdir()
    return [
        write_shard(folder / f"{shard}.tar", [sample(shard * SAMPLES + n) for n in range(SAMPLES)])
        for shard in range(SHARDS)
    ]


@pytest.fixture
def listed(urls: list[str], tmp_path: Path) -> str:
    """Manifest of these shards."""
    return write_manifest(tmp_path / "listed.json", [(url, SAMPLES) for url in urls])


def keys(batches: Iterator[Any] | Any) -> list[list[str]]:
    """Return the keys of each batch."""
    return [list(batch["__key__"]) for batch in batches]


def test_second_epoch_equals_that_of_a_manifest(
    urls: list[str], listed: str, make: Callable[..., Any]
) -> None:
    """The first epoch runs without sample counts; the length is known once it ends."""
    loader, counted = make(urls, **OPTIONS), make(urls, manifest=listed, **OPTIONS)
    with pytest.raises(TypeError, match="manifest"):
        len(loader)
    assert loader, "a loader is true though its length is unknown"
    first, second = keys(loader), keys(loader)
    of_manifest = [keys(counted), keys(counted)]
    assert first != of_manifest[0], "the counts make no difference to this order"
    assert second == of_manifest[1]
    assert len(loader) == len(second) == 10
    assert loader.num_samples == SHARDS * SAMPLES
    assert keys(loader) == keys(counted)


def test_abandoned_epoch_teaches_no_sample_counts(
    urls: list[str], make: Callable[..., Any]
) -> None:
    """After an abandoned epoch the next one equals that of a loader without counts."""
    loader = make(urls, **OPTIONS)
    next(iter(loader))
    other = make(urls, **OPTIONS)
    other.set_epoch(1)
    assert keys(loader) == keys(other)


def test_state_resumes_with_learnt_sample_counts(
    urls: list[str], listed: str, make: Callable[..., Any]
) -> None:
    """The state resumes in a loader without counts, and in one with the manifest."""
    loader = make(urls, **OPTIONS)
    initial = loader.state_dict()
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
    # A state from before the first epoch has no counts.
    loader.load_state_dict(initial)
    assert keys(loader) == first


def test_state_with_other_sample_counts_is_rejected(
    urls: list[str], make: Callable[..., Any]
) -> None:
    """A shard with another sample count makes another data set."""
    loader = make(urls, **OPTIONS)
    keys(loader)
    state = loader.state_dict()
    then = [(url, SAMPLES + (url == urls[3])) for url in urls]
    changed = state | {"shards": _native.manifest_hash(then)}
    with pytest.raises(forebay.Invalid, match="other shards"):
        make(urls, **OPTIONS).load_state_dict(changed)
    with pytest.raises(forebay.Invalid, match="other shards"):
        make(urls[:-1], **OPTIONS).load_state_dict(state)


def test_statistics_continue_across_sessions(urls: list[str], make: Callable[..., Any]) -> None:
    """The second epoch opens a new session; the loader's statistics add up over both."""
    loader = make(urls, **OPTIONS)
    keys(loader)
    before = loader.stats()
    keys(loader)
    after = loader.stats()
    assert after["samples"] == 2 * before["samples"] == 2 * SHARDS * SAMPLES
    assert sum(after["bytes"].values()) == 2 * sum(before["bytes"].values()) > 0
    assert after["wait"]["total_seconds"] >= before["wait"]["total_seconds"]


def test_broken_shard_teaches_no_sample_counts(urls: list[str], make: Callable[..., Any]) -> None:
    """The remaining samples do not reveal the full count."""
    whole = Path(urls[2]).read_bytes()
    Path(urls[2]).write_bytes(whole[: len(whole) // 2 // 512 * 512 + 100])
    loader = make(urls, on_error="skip", **OPTIONS)
    assert 0 < sum(map(len, keys(loader))) < SHARDS * SAMPLES
    with pytest.raises(TypeError, match="manifest"):
        len(loader)


def test_several_ranks_learn_no_sample_counts(urls: list[str], make: Callable[..., Any]) -> None:
    """Ranks would have to agree on the counts first."""
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
