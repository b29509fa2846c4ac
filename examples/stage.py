"""Set-up of an experiment: photos in shards, an S3 server, a cache of its own.

A function's processes end when its `with` block is left, on failure and Ctrl-C as well. The user's
own daemon and cache are not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import make_photos
from daemons import FOREBAY, private_daemon
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".data"
RUN = ROOT / ".run"
BUCKET = "photos"
SAMPLES_PER_SHARD = 256
# Classes of the photos of `forebay demo`.
DEMO_CLASSES = 10
KEYS = {
    "AWS_ACCESS_KEY_ID": "example",
    "AWS_SECRET_ACCESS_KEY": "example-secret",
    "AWS_REGION": "us-east-1",
}


def shards(count: int) -> Path:
    """Return a folder with `photos/train-NNNNNN.tar`, made now unless an earlier run left it."""
    folder = DATA / f"photos-{count}"
    if folder.is_dir():
        return folder
    DATA.mkdir(exist_ok=True)
    # Made aside and renamed when whole, so that an interrupted run leaves nothing half made.
    with tempfile.TemporaryDirectory(dir=DATA) as aside:
        loose = Path(aside, "loose")
        photos = make_photos.make(loose, count)
        size = sum(tqdm(photos, total=count, desc="making photos", unit="img"))
        pack(Path(aside), [loose]).rename(folder)
        print(f"{count} photos, {size / 1e6:.0f} MB, in {folder}")
    return folder


def indexed_shards(count: int) -> Path:
    """Return a folder as of `shards`, with the same photos, which have an index."""
    folder, plain = DATA / f"photos-{count}-indexed", shards(count)
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=DATA) as aside:
        tars = sorted((plain / BUCKET).glob("*.tar"))
        pack(Path(aside), tars, "--jpeg-index").rename(folder)
    return folder


def pack(aside: Path, inputs: list[Path], *options: str) -> Path:
    """Pack `inputs` into a bucket's shards, and return the folder with the bucket."""
    packed = aside / "packed"
    pattern = packed / BUCKET / "train-{:06d}.tar"
    limit = ["--samples", str(SAMPLES_PER_SHARD)]
    subprocess.run([FOREBAY, "pack", *inputs, "-o", pattern, *limit, *options], check=True)
    return packed


def demo_shards(count: int) -> Path:
    """Return a folder as of `shards`, with the photos of `forebay demo`: none needs NumPy.

    Benchmarks keep those of `shards`, on which earlier figures were measured.
    """
    folder = DATA / f"demo-{count}"
    if folder.is_dir():
        return folder
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as aside:
        packed = Path(aside, "packed")
        packed.mkdir()
        make: list[str | Path] = [FOREBAY, "demo", "--shards-only", packed / BUCKET]
        subprocess.run([*make, "--photos", str(count)], check=True)
        packed.rename(folder)
    return folder


def shard_urls(folder: Path) -> str:
    """Return the S3 URLs of the shards in `folder`, in one text with braces."""
    last = len(list((folder / BUCKET).glob("*.tar"))) - 1
    return f"s3://{BUCKET}/train-{{000000..{last:06d}}}.tar"


def origin_program() -> Path:
    """Return the S3 server that `make setup` built."""
    program = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/forebay-origin"
    if not program.exists():
        sys.exit(f"{program} is missing: run `make setup`")
    return program


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serve `folder`, whose folders are the buckets, on a free loopback port.

    Yields the environment variables that lead to it.
    """
    access, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
    keys = ["--access-key", access, "--secret-key", secret]
    # A session of its own: Ctrl-C goes to the training, and the server ends after it. Should this
    # process be killed outright, the server sees its input end and ends too.
    server = subprocess.Popen(
        [origin_program(), "--dir", folder, "--port", "0", "--until-eof", *keys],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        first_line = server.stdout.readline()
        if not first_line.startswith("listening on "):
            sys.exit("the S3 server did not start")
        yield {**KEYS, "AWS_ENDPOINT_URL": first_line.removeprefix("listening on ").strip()}
    finally:
        # Waits for it, and closes its pipes.
        with server:
            server.terminate()


@contextmanager
def private_cache() -> Iterator[Path]:
    """Yield an empty folder for a cache; remove it afterwards."""
    RUN.mkdir(exist_ok=True)
    cache = Path(tempfile.mkdtemp(prefix="cache-", dir=RUN))
    try:
        yield cache
    finally:
        shutil.rmtree(cache)


def index(urls: str, folder: Path, environment: dict[str, str]) -> Path:
    """Count the samples of `urls` once; the manifest gives the progress bar its end."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        # In a cache of its own, or the first epoch would find the shards already there.
        aside = dict(environment)
        with private_cache() as cache, private_daemon(aside, cache):
            subprocess.run([FOREBAY, "index", urls, "-o", manifest], env=aside, check=True)
    return manifest
