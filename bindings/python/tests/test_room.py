"""A window beyond the cache is rejected when the job opens, with the largest one that fits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from conftest import node_daemon
from forebay import ranks

MIB = 1 << 20


def sized(manifest: str, tmp_path: Path, mib: int) -> str:
    """Return a copy of the manifest in which each shard has `mib` MiB."""
    document = json.loads(Path(manifest).read_text())
    for shard in document["shards"]:
        shard["bytes"] = mib * MIB
    path = tmp_path / f"sized-{mib}.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.usefixtures("home")
def test_window_beyond_the_cache_is_rejected_with_a_limit(
    make: Callable[..., Any], manifest: str, tmp_path: Path
) -> None:
    """The cache has 256 MiB: room for three shards of 80 MiB."""
    listed = sized(manifest, tmp_path, 80)
    options: dict[str, Any] = {"fields": None, "manifest": listed, "shuffle": True, "lanes": 1}
    with pytest.raises(forebay.Full) as caught:
        list(make(window=4, **options))
    advised = re.search(r"window=(\d+)", str(caught.value))
    assert advised, caught.value
    assert advised[1] == "3"
    assert f"room={256 * MIB}" in str(caught.value)
    assert sum(len(batch["__key__"]) for batch in make(window=3, **options)) == 60
    # Each lane keeps a shard open, and a global shuffle keeps all of them open.
    with pytest.raises(forebay.Full, match="lanes=2 and window=2"):
        list(make(window=1, **(options | {"lanes": 4})))
    with pytest.raises(forebay.Full, match="shuffle=True and window=3"):
        list(make(**(options | {"shuffle": "global"})))
    assert list(make(**(options | {"shuffle": False})))


def test_disk_filled_by_other_files_is_named(
    shards: list[str], make: Callable[..., Any], manifest: str, tmp_path: Path
) -> None:
    """A disk with less free space than `keep_free` has no room, whatever the capacity."""
    disk = os.statvfs(tmp_path)
    free, used = disk.f_bavail * disk.f_frsize, (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    # Room that others make meanwhile does not count, and the disk is as large.
    keep = free + min(8192 * MIB, used // 2)
    cache, socket, config = tmp_path / "cache", tmp_path / "d.sock", tmp_path / "forebay.toml"
    cache.mkdir()
    config.write_text(
        f'[daemon]\nsocket = "{socket}"\nmemory = "256MiB"\n'
        f'[[tier]]\nname = "nvme0"\npath = "{cache}"\ncapacity = "64MiB"\nkeep_free = "{keep}"\n'
    )
    listed = sized(manifest, tmp_path, 1)
    with node_daemon(config), pytest.raises(forebay.Full, match="keep_free") as caught:
        list(make(manifest=listed, fields=None, daemon=f"unix:{socket}"))
    assert "room=0" in str(caught.value)
    assert "tiers=nvme0" in str(caught.value)


@pytest.mark.usefixtures("home")
def test_manifest_without_shard_sizes_is_accepted(make: Callable[..., Any], manifest: str) -> None:
    """A manifest may lack the sizes of its shards."""
    assert list(make(fields=None, manifest=manifest, shuffle="global"))


@pytest.mark.usefixtures("home")
def test_windows_of_all_streams_must_fit_the_cache(
    shards: list[str], make: Callable[..., Any], manifest: str, tmp_path: Path
) -> None:
    """Two streams with two open shards of 80 MiB each exceed the cache."""
    listed = sized(manifest, tmp_path, 80)
    streams = [forebay.Stream(urls, repeat=1) for urls in (shards[:2], shards[2:])]
    options: dict[str, Any] = {"fields": None, "manifest": listed, "shuffle": True}
    with pytest.raises(forebay.Full, match="window=1"):
        list(make(streams, window=2, **options))
    # Manifests of the single streams give the same result.
    streams = [forebay.Stream(urls, repeat=1, manifest=listed) for urls in (shards[:2], shards[2:])]
    with pytest.raises(forebay.Full, match="window=1"):
        list(make(streams, fields=None, shuffle=True, window=2))
    assert list(make(streams, fields=None, shuffle=True, window=1))


def test_local_ranks_come_from_the_launcher() -> None:
    """Inconsistent variables do not come from a launcher and are ignored."""
    place = ranks.Place(5, 8, "RANK and WORLD_SIZE")
    here = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert ranks.here(place, here) == (4, 4)
    assert ranks.here(place, {}) == (5, 1)
    assert ranks.here(place, here | {"LOCAL_RANK": "6"}) == (5, 1)
    assert ranks.here(ranks.Place(0, 2, "arguments"), here) == (0, 1)
    assert ranks.here(ranks.Place(7, 8, "arguments"), here | {"LOCAL_RANK": "0"}) == (7, 1)
