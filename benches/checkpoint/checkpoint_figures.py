r"""Figures of checkpoints: saves, uploads and restores beside the disk, torch and the S3 connector.

    .venv/bin/python benches/checkpoint/checkpoint_figures.py --directory /mnt/nvme
    .venv/bin/python benches/checkpoint/checkpoint_figures.py --quick --only staged restore

Each row is a file `row_*.py`. Contenders take turns within one run; see `rounds.py`. Run nothing
else meanwhile: the document tells how many cores others kept busy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [
    str(ROOT / folder) for folder in ("benches/rivals", "benches/link", "cli/bench/contest")
]
import daemons  # noqa: E402
import machine  # noqa: E402
import row_async  # noqa: E402
import row_connector  # noqa: E402
import row_dlio  # noqa: E402
import row_link  # noqa: E402
import row_restore  # noqa: E402
import row_staged  # noqa: E402
import row_training  # noqa: E402
from rounds import Spread, Table  # noqa: E402
from settings import Programs, Settings  # noqa: E402
from verdicts import Verdict, table  # noqa: E402

ROWS: dict[str, ModuleType] = {
    "staged": row_staged,
    "async": row_async,
    "connector": row_connector,
    "link": row_link,
    "training": row_training,
    "restore": row_restore,
    "dlio": row_dlio,
}
# `--quick` shows within two minutes that all rows work. Its figures are coarse.
QUICK_ROUNDS, QUICK_SCALE = 1, 0.125
# Bytes of the disk that a run takes at its full size.
ROOM = 10 << 30


def row(name: str, settings: Settings) -> tuple[dict[str, object], list[Verdict]]:
    """Measure a row; returns its part of the document, and what is judged."""
    module = ROWS[name]
    lacking = module.missing() if hasattr(module, "missing") else None
    if lacking:
        print(f"{name}: left out, {lacking}", file=sys.stderr)
        return {"left out": lacking}, []
    began = time.monotonic()
    tables: dict[str, Table] = module.measure(settings)
    document = {
        "seconds": round(time.monotonic() - began, 1),
        "cores of others": _noise(tables)._asdict(),
        "rounds": {name: each.runs for name, each in tables.items()},
    }
    return document, module.judge(tables)


def _noise(tables: dict[str, Table]) -> Spread:
    """Return the spread of the cores that others kept busy."""
    runs = [run for each in tables.values() for runs in each.runs.values() for run in runs]
    return Spread.of([run["others_cores"] for run in runs])


def settings_of(arguments: argparse.Namespace, directory: Path) -> Settings:
    """Return the settings of a run."""
    environment = {**os.environ, "FOREBAY_LOG": "warn"}
    # The daemons that the rows start inherit this process's.
    os.environ["FOREBAY_LOG"] = "warn"
    return Settings(
        Programs(arguments.forebay.absolute(), arguments.origin.resolve()),
        directory,
        environment,
        arguments.rounds or (QUICK_ROUNDS if arguments.quick else 7),
        arguments.scale * (QUICK_SCALE if arguments.quick else 1),
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", type=Path, default=daemons.FOREBAY)
    origin = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/forebay-origin"
    parser.add_argument("--origin", type=Path, default=origin, help="the test kit's S3 server")
    parser.add_argument(
        "--directory", type=Path, default=ROOT, help="a folder on the disk to measure"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each row [default: 7]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    parser.add_argument("--quick", action="store_true", help="one round of an eighth of the size")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS), metavar="ROW")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write the figures."""
    arguments = parse()
    if shutil.which("fio") is None:
        raise SystemExit("fio is missing: apt-get install fio")
    if not arguments.origin.exists():
        raise SystemExit(f"{arguments.origin} is missing: run make setup")
    free = shutil.disk_usage(arguments.directory).free
    if free < ROOM * arguments.scale:
        raise SystemExit(f"{arguments.directory} has {free >> 30} GiB free, and a run takes 10")
    target = machine.results() / ("checkpoint-quick.json" if arguments.quick else "checkpoint.json")
    document: dict[str, object] = json.loads(target.read_text()) if target.exists() else {}
    document["machine"] = machine.describe(arguments.directory)
    document["fio"] = subprocess.check_output(["fio", "--version"], text=True).strip()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=arguments.directory) as folder:
        settings = settings_of(arguments, Path(folder).resolve())
        for name in arguments.only:
            part, judged = row(name, settings)
            verdicts += judged
            part |= {"scale": settings.scale, "of": settings.rounds}
            document[name] = part | {"figures": [verdict.document() for verdict in judged]}
            # What is measured is kept if a later row fails.
            target.write_text(json.dumps(document, indent=1) + "\n")
    print(table(verdicts))
    print(f"written to {target}")


if __name__ == "__main__":
    main()
