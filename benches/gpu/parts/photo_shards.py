"""Photos as shards, for loaders that a GPU's benchmarks feed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path


def write(folder: Path, files: Sequence[bytes], samples: int, shards: int) -> list[str]:
    """Write that many samples, the files in turn, as shards; return their paths.

    A sample is a file (`jpg`) and its number among the files (`cls`).
    """
    each = samples // shards
    urls = []
    for shard in range(shards):
        path = folder / f"{shard:03}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * each, (shard + 1) * each):
                photo = number % len(files)
                for suffix, data in (("jpg", files[photo]), ("cls", str(photo).encode())):
                    member = tarfile.TarInfo(f"s{number:06}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        urls.append(str(path))
    return urls


def link(urls: Sequence[str], times: int) -> list[str]:
    """Give each shard that many more names, and return these: more data in the same bytes."""
    links = []
    for turn in range(1, times + 1):
        for url in urls:
            path = Path(url)
            other = path.with_name(f"{turn}-{path.name}")
            other.hardlink_to(path)
            links.append(str(other))
    return links
