r"""Lance and Mosaic Streaming beside Forebay, where they can read a part of the data.

    python3 benches/link/delay_line.py --rtt-ms 10 --mbit 1000 -- \
        .venv/bin/python benches/projection/rivals.py --origin target/release/forebay-origin

Each has the same samples in its own format on the project's S3 server at the far end of a limited
link. Single samples are read by number in one random order, cold; a column is one of four; a filter
passes one sample of a hundred. Bytes and requests are the server's. Each job is a process of its
own, and jobs take turns. The link needs root; `requirements.txt` beside this file has the rivals.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "parts"), str(HERE.parent / "rivals")]
import machine  # noqa: E402
from projection_data import DATA, SEED, Data, Server, served  # noqa: E402

# Packages of the rivals.
RIVALS = ("pylance", "mosaicml-streaming")
# Single samples that each reads.
READS = 100
ROUNDS = 3
# Bytes of a Mosaic shard: its own default.
SHARD_BYTES = 1 << 26
# Jobs: what is read, of which data.
JOBS = {"single samples": "photos", "one column of four": "views", "1 % filter": "photos"}
# Mosaic has neither columns nor filters: it moves whole shards.
CONTENDERS = {
    "forebay": tuple(JOBS),
    "lance": tuple(JOBS),
    "mosaic": ("single samples",),
}


def samples(data: Data) -> Iterator[dict[str, Any]]:
    """Yield the samples of a data set, with bytes that no codec shrinks."""
    dice = random.Random(SEED)
    for number in range(data.count):
        row: dict[str, Any] = {"number": number, "keep": int(number in data.passing)}
        for field, size in data.members.items():
            row[field] = os.urandom(size if isinstance(size, int) else dice.choice(size))
        yield row


def write_lance(name: str, folder: Path) -> None:
    """Write a data set as Lance's own format."""
    import lance
    import pyarrow as pa

    data = DATA[name]
    fields = [pa.field("number", pa.int64()), pa.field("keep", pa.int64())]
    schema = pa.schema(fields + [pa.field(field, pa.binary()) for field in data.members])

    def batches() -> Iterator[Any]:
        for row in samples(data):
            columns = {key: [value] for key, value in row.items()}
            yield pa.RecordBatch.from_pydict(columns, schema=schema)

    rows = -(-data.count // data.shards)
    lance.write_dataset(
        batches(), str(folder / f"{name}.lance"), schema=schema, max_rows_per_file=rows
    )


def write_mosaic(name: str, folder: Path) -> None:
    """Write a data set as Mosaic's shards."""
    from streaming import MDSWriter

    data = DATA[name]
    columns = {"number": "int", "keep": "int"} | dict.fromkeys(data.members, "bytes")
    out = str(folder / f"{name}.mds")
    with MDSWriter(out=out, columns=columns, size_limit=SHARD_BYTES) as writer:
        for row in samples(data):
            writer.write(row)


def order(data: Data) -> list[int]:
    """Return the samples that are read one by one."""
    return random.Random(SEED).sample(range(data.count), READS)


def by_forebay(job: str, name: str, root: Path) -> dict[str, Any]:
    """Run a job by Forebay."""
    import forebay

    data = DATA[name]
    urls = [f"s3://bucket/{name}/{shard:03}.tar" for shard in range(data.shards)]
    manifest = str(root / f"{name}.json")
    fields = [*data.members][:1]
    wanted = {field: forebay.Bytes(field) for field in fields}
    if job == "single samples":
        since = time.perf_counter()
        indexed = forebay.IndexedDataset(urls, fields=wanted, manifest=manifest)
        return single(data, lambda number: len(indexed[number][fields[0]]), since)
    where = "keep = 1" if job == "1 % filter" else None
    since, taken = time.perf_counter(), 0
    with forebay.DataLoader(
        urls, batch_size=8, fields=wanted, manifest=manifest, where=where, framework="numpy"
    ) as loader:
        for batch in loader:
            taken += sum(len(row) for row in batch[fields[0]] if row is not None)
    return {"bytes": taken, "seconds": time.perf_counter() - since}


def by_lance(job: str, name: str, _: Path) -> dict[str, Any]:
    """Run a job by Lance."""
    import lance

    data = DATA[name]
    options = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "allow_http": "true",
        "aws_region": os.environ["AWS_REGION"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    field = next(iter(data.members))
    since, taken = time.perf_counter(), 0
    opened = lance.dataset(f"s3://bucket/{name}.lance", storage_options=options)
    if job == "single samples":

        def read(number: int) -> int:
            return len(opened.take([number], columns=[field])[field][0].as_py())

        return single(data, read, since)
    where = "keep = 1" if job == "1 % filter" else None
    for batch in opened.to_batches(columns=[field], filter=where, batch_size=8):
        taken += sum(len(one) for one in batch[field].to_pylist())
    return {"bytes": taken, "seconds": time.perf_counter() - since}


def by_mosaic(_: str, name: str, __: Path) -> dict[str, Any]:
    """Read single samples by Mosaic Streaming."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    data = DATA[name]
    field = next(iter(data.members))
    with tempfile.TemporaryDirectory(prefix="mosaic-") as local:
        since = time.perf_counter()
        remote = f"s3://bucket/{name}.mds"
        made = StreamingDataset(remote=remote, local=local, batch_size=1, shuffle=False)
        return single(data, lambda number: len(made[number][field]), since)


WAYS: dict[str, Callable[[str, str, Path], dict[str, Any]]] = {
    "forebay": by_forebay,
    "lance": by_lance,
    "mosaic": by_mosaic,
}


def single(data: Data, read: Callable[[int], int], since: float) -> dict[str, Any]:
    """Read samples one by one; `since`: the time at which opening began."""
    opened = time.perf_counter()
    taken, each = 0, []
    for number in order(data):
        began = time.perf_counter()
        taken += read(number)
        each.append(time.perf_counter() - began)
    return {
        "bytes": taken,
        "open_ms": round(1e3 * (opened - since), 1),
        "median_ms": round(1e3 * statistics.median(each), 2),
        "seconds": time.perf_counter() - since,
    }


def job_by(contender: str, job: str, server: Server, root: Path) -> dict[str, Any]:
    """Run a job in a process of its own over an empty cache."""
    with tempfile.TemporaryDirectory(prefix="cache-", dir=root) as cache:
        own = {"FOREBAY_CACHE": cache, "XDG_RUNTIME_DIR": cache, "FOREBAY_IDLE": "1"}
        before = server.counts()
        words = [sys.executable, __file__, "play", contender, job, str(root)]
        told = subprocess.run(
            words, env=os.environ | own, stdout=subprocess.PIPE, text=True, check=True
        )
        now = server.counts()
    played: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    moved = {"requests": now[0] - before[0], "origin_bytes": now[1] - before[1]}
    return played | moved | {"moved_per_wanted": round(moved["origin_bytes"] / played["bytes"], 3)}


def measure(arguments: argparse.Namespace) -> None:
    """Run everything, print and write the figures."""
    from forebay import _native
    from forebay._launch import command

    keys = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
    with tempfile.TemporaryDirectory(prefix="projection-", dir=arguments.disk) as folder:
        root = Path(folder).resolve()
        bucket = root / "origin" / "bucket"
        used = sorted(set(JOBS.values()))
        for name in used:
            DATA[name].write(bucket / name)
            write_lance(name, bucket)
        write_mosaic(JOBS["single samples"], bucket)
        with served(str(Path(arguments.origin).resolve()), root / "origin") as server:
            os.environ |= keys | {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": "us-east-1"}
            index = {"FOREBAY_CACHE": str(root / "index"), "XDG_RUNTIME_DIR": str(root)}
            os.environ |= index
            for name in used:
                urls = [f"s3://bucket/{name}/{n:03}.tar" for n in range(DATA[name].shards)]
                words = ["index", *urls, "-o", str(root / f"{name}.json"), "--columns", "json:keep"]
                if _native.main(words, command()) != 0:
                    raise SystemExit("the shards could not be indexed")
            rows: dict[str, Any] = {}
            for round_ in range(ROUNDS):
                for job in JOBS:
                    able = [one for one, jobs in CONTENDERS.items() if job in jobs]
                    for contender in able[round_ % len(able) :] + able[: round_ % len(able)]:
                        played = job_by(contender, job, server, root)
                        rows.setdefault(job, {}).setdefault(contender, []).append(played)
                        print(f"{job:20} {contender:8} {json.dumps(played)}", flush=True)
        versions = {name: importlib.metadata.version(name) for name in RIVALS}
        report = {
            "machine": machine.describe(root),
            "versions": versions,
            "link": {
                key.lower(): os.environ.get(f"FOREBAY_LINK_{key}") for key in ("MBIT", "RTT_MS")
            },
            "rows": rows,
        }
    machine.record(report, "projection-rivals.json")


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["play"]:
        contender, job, root = sys.argv[2:5]
        print(json.dumps(WAYS[contender](job, JOBS[job], Path(root))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--origin", default="target/release/forebay-origin")
    parser.add_argument("--disk", default=".", help="a folder on a disk for data and caches")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
