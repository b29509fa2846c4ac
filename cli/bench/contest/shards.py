"""Content of a shard: samples, by the rule all readers of WebDataset shards share.

Members of one sample are adjacent and share the name up to the first dot of its last part; the rest
of the name is the field.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

Sample = dict[str, bytes]
PHOTOS = ("jpg", "jpeg", "png")
LABEL = "cls"


class Unfit(Exception):
    """The shards do not hold what was asked for."""


def samples(shard: str) -> Iterator[tuple[str, Sample]]:
    """Read a shard's samples: key and members by extension."""
    key, members = None, Sample()
    with tarfile.open(shard, "r|") as tar:
        for member in tar:
            if not member.isfile():
                continue
            folder, slash, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            here = f"{folder}{slash}{stem}"
            if here != key:
                if key is not None:
                    yield key, members
                key, members = here, Sample()
            file = tar.extractfile(member)
            assert file is not None
            members[extension] = file.read()
    if key is not None:
        yield key, members


def fields(shard: str, images: bool) -> list[str]:
    """Return the extensions that contenders deliver, as the first sample has them.

    Raises `Unfit` if it is no plain tar, or if images are asked for and it has no photo with a
    label.
    """
    try:
        first = next(samples(shard), None)
    except tarfile.TarError as error:
        raise Unfit(
            f"{shard} is no plain tar ({error}): rivals read only those, so unpack it"
        ) from error
    if first is None:
        raise Unfit(f"{shard} holds no sample")
    extensions = sorted(first[1])
    if not images:
        return extensions
    photo = next((extension for extension in PHOTOS if extension in extensions), None)
    if photo is None or LABEL not in extensions:
        raise Unfit(
            f"{shard}: images need a photo ({', '.join(PHOTOS)}) and its class (.{LABEL});"
            f" the first sample has {', '.join(extensions)}"
        )
    return [photo, LABEL]
