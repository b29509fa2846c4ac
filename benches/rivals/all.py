"""Runs the measurements of `make bench`, each with its report and its document under
benches/results.

There is one folder per day and machine, so that only comparable figures are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import client
import daemons
import machine
import measure
import stage

BENCHES = Path(__file__).resolve().parent.parent
# Cold and warm.
EPOCHS = 2
# The photos make five batches of 400, of which some are ready before the first step has ended: they
# are played so often within an epoch.
COPIES = 16


@contextmanager
def repeated(folder: Path) -> Iterator[Path]:
    """Yield a folder that has the shards of `folder` several times, as links to the same files."""
    with tempfile.TemporaryDirectory(dir=stage.DATA) as name:
        bucket = Path(name, stage.BUCKET)
        bucket.mkdir()
        for number, shard in enumerate(sorted((folder / stage.BUCKET).glob("*.tar")) * COPIES):
            os.link(shard, bucket / f"train-{number:06d}.tar")
        yield Path(name)


def starvation(folder: Path, out: Path) -> None:
    """Let an emulated accelerator train from the S3 server, cold and warm."""
    urls = stage.shard_urls(folder)
    environment = dict(os.environ)
    with stage.s3_server(folder) as reach:
        environment.update(reach)
        manifest = stage.index(urls, folder, environment)
        command: list[str | Path] = [daemons.FOREBAY, "bench", "starvation", urls, "--json"]
        command += ["--manifest", manifest, "--window", "4", "--epochs", str(EPOCHS)]
        with stage.private_cache() as cache, daemons.private_daemon(environment, cache):
            text = subprocess.check_output(command, env=environment, text=True)
    # The report has a machine of its own, which knows nothing of the disk.
    document = {**json.loads(text), "machine": machine.describe(stage.RUN)}
    target = out / "starvation.json"
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nstarvation, {document['profile']}")
    for epoch in document["epochs"]:
        print(
            f"  epoch {epoch['epoch']}  {epoch['steps']} steps  AU_ideal {epoch['au_ideal']:.1%}"
            f"  {epoch['samples_per_second']:,.0f} samples/s"
            f"  CPU {epoch['cpu_ms_per_sample']:.2f} ms/sample"
            f"  first batch {epoch['first_batch_seconds']:.3f} s"
        )
    print(f"  written to {target}")


def engines(rounds: int, out: Path) -> None:
    """Compare the disk engines with fio."""
    print("\ndisk engines")
    target = out / "disk.json"
    command: list[str | Path] = ["cargo", "bench", "--locked", "--workspace"]
    command += ["--bench", "disk", "--", "--directory", stage.RUN]
    command += ["--rounds", str(rounds), "--out", target]
    subprocess.run(command, cwd=BENCHES, check=True)
    document = {"machine": machine.describe(stage.RUN), "records": json.loads(target.read_text())}
    target.write_text(json.dumps(document, indent=1) + "\n")


def origins(rounds: int, out: Path) -> None:
    """Compare fetches with those of curl, aria2c and rclone, near and over a link."""
    print("\norigins")
    target = out / "origin.json"
    target.unlink(missing_ok=True)
    command: list[str | Path] = ["cargo", "bench", "--locked", "--workspace"]
    command += ["--bench", "origin", "--", "--directory", stage.RUN]
    command += ["--rounds", str(rounds), "--json", target]
    near = ["cold", "clients", "ranks", "tail"]
    subprocess.run([*command, *near], cwd=BENCHES, check=True)
    if os.geteuid() == 0:
        line = [sys.executable, "link/delay_line.py", "--"]
        for far in (["--mib", "1024", "link", "first"], ["--mib", "64", "batch"]):
            subprocess.run([*line, *command, *far], cwd=BENCHES, check=True)
    else:
        print("  not measured over a link, which only root can make")
    figures = json.loads(target.read_text())
    document = {"machine": machine.describe(stage.RUN), **figures}
    target.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    out = machine.results()
    with repeated(stage.shards(measure.PHOTOS)) as folder:
        starvation(folder, out)
    engines(arguments.rounds, out)
    origins(arguments.rounds, out)
    sys.argv = [sys.argv[0], "--rounds", str(arguments.rounds), "--out", str(out)]
    measure.main()
    client.main()


if __name__ == "__main__":
    main()
