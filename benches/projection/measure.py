r"""Bytes, requests and seconds of jobs that want a part of their data, beside jobs that want all.

    python3 benches/link/delay_line.py --rtt-ms 10 --mbit 1000 -- \
        .venv/bin/python benches/projection/measure.py --origin target/release/forebay-origin

The project's S3 server stands at the far end of a limited link and counts requests and body bytes.
Each job is a process with a cold cache of its own and plays two epochs; the second one is to move
nothing. A filter passes one sample of a hundred. The last rows compare the rate over a warm cache
with a member index and without. The link needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "parts"), str(HERE.parent / "rivals")]
import machine  # noqa: E402
from projection_data import DATA, SEED, Server, served  # noqa: E402

# Rounds over a warm cache, of so many epochs each: an epoch takes a third of a second.
ROUNDS, EPOCHS = 12, 8
BATCH = 8


# Jobs: their data, and what they want of them.
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "clips, 1 % filter": ("clips", {"where": "keep = 1"}),
    "photos, 1 % filter": ("photos", {"where": "keep = 1"}),
    "sorted photos, 1 % filter": ("sorted", {"where": "keep = 1"}),
    "views, one of four": ("views", {"field": "v1"}),
}


def loader(name: str, manifest: str, want: dict[str, Any]) -> Any:
    """Return the loader of a job."""
    import forebay

    data = DATA[name]
    fields = [want["field"]] if "field" in want else list(data.members)
    return forebay.DataLoader(
        [f"s3://bucket/{name}/{shard:03}.tar" for shard in range(data.shards)],
        batch_size=BATCH,
        shuffle=True,
        seed=SEED,
        fields={field: forebay.Bytes(field) for field in fields},
        manifest=manifest,
        where=want.get("where"),
        framework="numpy",
    )


def epoch(made: Any) -> dict[str, float]:
    """Play an epoch; return its samples, bytes and seconds."""
    samples = taken = 0
    since = time.perf_counter()
    for batch in made:
        samples += int(batch["__valid__"].sum())
        rows = (batch[name] for name in batch if not name.startswith("__"))
        taken += sum(len(row) for column in rows for row in column if row is not None)
    return {"samples": samples, "bytes": taken, "seconds": time.perf_counter() - since}


def play(arguments: argparse.Namespace) -> None:
    """Run one job, and wait for a line between its epochs."""
    want = json.loads(arguments.want)
    with loader(arguments.data, arguments.manifest, want) as made:
        for _ in range(arguments.epochs):
            print(json.dumps(epoch(made)), flush=True)
            sys.stdin.readline()


def cold(server: Server, root: Path, name: str, want: dict[str, Any]) -> dict[str, Any]:
    """Return what the two epochs of a job over an empty cache moved."""
    with tempfile.TemporaryDirectory(prefix="cache-", dir=root) as cache:
        own = {"FOREBAY_CACHE": cache, "XDG_RUNTIME_DIR": cache, "FOREBAY_IDLE": "1"}
        command = [sys.executable, __file__, "play", "--data", name, "--epochs", "2"]
        command += ["--manifest", str(root / f"{name}.json"), "--want", json.dumps(want)]
        before = server.counts()
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | own,
        ) as job:
            assert job.stdin is not None
            assert job.stdout is not None
            epochs = []
            for _ in range(2):
                played = json.loads(job.stdout.readline())
                now = server.counts()
                moved = {"requests": now[0] - before[0], "origin_bytes": now[1] - before[1]}
                epochs.append(played | moved)
                before = now
                job.stdin.write("\n")
                job.stdin.flush()
    return {"first": epochs[0], "second": epochs[1]}


def share(part: dict[str, Any], whole: dict[str, Any], key: str) -> float:
    """Return a figure of a part as a share of the whole's, in percent."""
    return round(100 * float(part["first"][key]) / float(whole["first"][key]), 3)


def warm(root: Path) -> dict[str, Any]:
    """Return samples a second over a warm cache with a member index and without."""
    name, data = "photos", DATA["photos"]
    plain = root / "plain" / f"{name}.json"
    plain.parent.mkdir()
    plain.write_text((root / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory(prefix="cache-", dir=root) as cache:
        os.environ |= {"FOREBAY_CACHE": cache, "XDG_RUNTIME_DIR": cache}
        manifests = {"index": str(root / f"{name}.json"), "no_index": str(plain)}
        made = {kind: loader(name, manifest, {}) for kind, manifest in manifests.items()}
        rates: dict[str, list[float]] = {kind: [] for kind in made}
        turns = list(made)
        for round_ in range(ROUNDS + 1):
            # Neither is always the first.
            for kind in reversed(turns) if round_ % 2 else turns:
                seconds = sum(epoch(made[kind])["seconds"] for _ in range(EPOCHS))
                rate = EPOCHS * data.count / seconds
                # The first fills the cache.
                rates[kind] += [round(rate, 1)] if round_ > 0 else []
        for one in made.values():
            one.close()
    medians = {kind: statistics.median(all_) for kind, all_ in rates.items()}
    return {"samples_per_s": rates, "index_per_no_index": medians["index"] / medians["no_index"]}


def measure(arguments: argparse.Namespace) -> None:
    """Run everything, print and write the figures."""
    from forebay import _native
    from forebay._launch import command

    keys = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
    with tempfile.TemporaryDirectory(prefix="projection-", dir=arguments.disk) as name:
        root = Path(name).resolve()
        for of, data in DATA.items():
            data.write(root / "origin" / "bucket" / of)
        program = str(Path(arguments.origin).resolve())
        with served(program, root / "origin") as server:
            os.environ |= keys | {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": "us-east-1"}
            os.environ |= {"FOREBAY_CACHE": str(root / "index"), "XDG_RUNTIME_DIR": str(root)}
            for of, data in DATA.items():
                urls = [f"s3://bucket/{of}/{shard:03}.tar" for shard in range(data.shards)]
                words = ["index", *urls, "-o", str(root / f"{of}.json")]
                if _native.main([*words, "--columns", "json:keep"], command()) != 0:
                    raise SystemExit("the shards could not be indexed")
            wholes = {of: cold(server, root, of, {}) for of in DATA}
            jobs: dict[str, Any] = {}
            for job, (of, want) in JOBS.items():
                part = cold(server, root, of, want)
                shares = {key: share(part, wholes[of], key) for key in ("origin_bytes", "requests")}
                wanted = 100 * part["first"]["bytes"] / wholes[of]["first"]["bytes"]
                jobs[job] = {"wanted_percent": round(wanted, 3), "percent_of_whole": shares, **part}
                print(f"{job:28} wants {wanted:6.2f} %, moved {shares}", flush=True)
            rates = warm(root)
            print(f"rate with an index per without: {rates['index_per_no_index']:.3f}")
        report = {
            "machine": machine.describe(root),
            "link": {
                key.lower(): os.environ.get(f"FOREBAY_LINK_{key}") for key in ("MBIT", "RTT_MS")
            },
            "whole": wholes,
            "jobs": jobs,
            "warm": rates,
        }
    (machine.results() / "projection.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", nargs="?", choices=("measure", "play"), default="measure")
    parser.add_argument("--origin", default="target/release/forebay-origin")
    parser.add_argument("--disk", default=".", help="a folder on a disk for data and caches")
    for name in ("--data", "--manifest", "--want"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    play(arguments) if arguments.verb == "play" else measure(arguments)


if __name__ == "__main__":
    main()
