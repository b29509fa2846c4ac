"""Data sets of which jobs want a part, and the server that has them at the far end of a link."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MIB, KIB = 1 << 20, 1 << 10
PORT = 8099
SEED = 1
# One sample of so many passes the filter.
ONE_IN = 100


class Data:
    """A data set: shards of samples with members of these bytes, or of bytes in these ranges, and
    JSON with the filter's column.

    `scattered`: the samples that pass lie anywhere; otherwise they follow each other, as in data
    that are sorted.
    """

    def __init__(
        self, shards: int, samples: int, members: dict[str, int | range], scattered: bool
    ) -> None:
        """Describe it."""
        self.shards, self.samples, self.members = shards, samples, members
        self.count = shards * samples
        wanted = self.count // ONE_IN
        dice = random.Random(SEED)
        places = dice.sample(range(self.count), wanted) if scattered else range(wanted)
        self.passing = frozenset(places)

    def write(self, folder: Path) -> None:
        """Write the shards."""
        folder.mkdir(parents=True)
        dice = random.Random(SEED)
        for shard in range(self.shards):
            with tarfile.open(folder / f"{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for sample in range(self.samples):
                    number = shard * self.samples + sample
                    facts = json.dumps({"keep": int(number in self.passing)}).encode()
                    add(tar, f"{number:06}.json", facts)
                    for field, size in self.members.items():
                        bytes_ = size if isinstance(size, int) else dice.choice(size)
                        add(tar, f"{number:06}.{field}", os.urandom(bytes_))


# Clips, photos in any order, photos that are sorted, and samples of four views.
DATA = {
    "clips": Data(8, 50, {"mp4": range(2 * MIB, 6 * MIB)}, scattered=True),
    "photos": Data(4, 1000, {"jpg": 100 * KIB}, scattered=True),
    "sorted": Data(4, 1000, {"jpg": 100 * KIB}, scattered=False),
    "views": Data(4, 100, {f"v{n}": 256 * KIB for n in range(4)}, scattered=True),
}


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


class Server:
    """The S3 server and its counters."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Read its address."""
        assert process.stdin is not None
        assert process.stdout is not None
        self.asked: IO[str] = process.stdin
        self.told: IO[str] = process.stdout
        self.endpoint = self.told.readline().removeprefix("listening on ").strip()

    def counts(self) -> tuple[int, int]:
        """Return requests and body bytes so far."""
        self.asked.write("\n")
        self.asked.flush()
        requests, sent = self.told.readline().split()
        return int(requests), int(sent)


@contextmanager
def served(program: str, folder: Path) -> Iterator[Server]:
    """Serve a folder at the link's far end; without a link, on this machine."""
    far = os.environ.get("FOREBAY_LINK_NAMESPACE")
    command = [program, "--dir", str(folder), "--port", str(PORT), "--until-eof"]
    if far is not None:
        address = os.environ["FOREBAY_LINK_ADDRESS"]
        command = ["ip", "netns", "exec", far, *command, "--host", address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Server(process)
        finally:
            process.terminate()
