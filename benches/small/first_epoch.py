r"""Time of a cold epoch over local shards of one sample each, beside webdataset's.

    .venv/bin/python benches/small/first_epoch.py --directory /mnt/nvme

Each loader plays in a process of its own, in turns; each round of Forebay's has a new cache, whose
daemon runs already. What a job waits for here is a core: opening a file, copying it into the cache,
three syncs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

# A photo of thumbnail size and its label.
PHOTO = 8000
# Caches of earlier rounds stay until the end: ext4 searches past inodes that were freed in the last
# minutes. So begin some minutes after files were deleted, too.
ROUNDS = 7

FOREBAY = """
import glob, sys, time
import forebay
fields = {"jpg": forebay.Bytes("jpg")}
urls = sorted(glob.glob(sys.argv[1] + "/*.tar"))
with forebay.DataLoader(urls[:1], batch_size=1, fields=fields) as first:
    list(first)
    begin = time.perf_counter()
    with forebay.DataLoader(urls, batch_size=16, fields=fields) as loader:
        samples = sum(len(batch["__key__"]) for batch in loader)
    print(samples, time.perf_counter() - begin)
"""

WEBDATASET = """
import glob, sys, time
import webdataset
urls = sorted(glob.glob(sys.argv[1] + "/*.tar"))
begin = time.perf_counter()
loader = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
samples = sum(len(batch[0]) for batch in loader.to_tuple("jpg").batched(16))
print(samples, time.perf_counter() - begin)
"""

LOADERS = {"forebay": FOREBAY, "webdataset": WEBDATASET}


def make_shards(folder: Path, shards: int) -> None:
    """Make shards of one sample."""
    folder.mkdir()
    dice = random.Random(1)
    for number in range(shards):
        path = folder / f"{number:06d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in (("jpg", dice.randbytes(PHOTO)), ("cls", b"1")):
                member = tarfile.TarInfo(f"{number:06d}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    os.sync()


def play(loader: str, folder: Path, shards: int) -> float:
    """Play an epoch; returns its seconds."""
    home = tempfile.mkdtemp(prefix="cache-", dir=folder)
    environment = {**os.environ, "FOREBAY_CACHE": home, "FOREBAY_CAPACITY": "1GiB"}
    command = [sys.executable, "-c", LOADERS[loader], str(folder / "data")]
    played = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    samples, seconds = played.stdout.split()
    if int(samples) != shards:
        raise SystemExit(f"{loader} delivered {samples} of {shards} samples")
    return float(seconds)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=2_000)
    parser.add_argument("--directory", default=".", help="a disk for cache and shards")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {loader: [] for loader in LOADERS}
    with tempfile.TemporaryDirectory(prefix="small-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        make_shards(folder / "data", arguments.shards)
        for _ in range(ROUNDS):
            for loader, of in seconds.items():
                of.append(play(loader, folder, arguments.shards))
    median = {loader: statistics.median(of) for loader, of in seconds.items()}
    figures = {"shards": arguments.shards, "seconds": seconds, "median": median}
    print(json.dumps(figures, indent=1))
    report = {"machine": machine.describe(Path(arguments.directory))}
    machine.record(report | figures, "small_first_epoch.json")


if __name__ == "__main__":
    main()
