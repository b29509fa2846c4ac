"""Measures how many accelerators each loader feeds: the tables of docs/RESULTS.md.

    make contest                 five rounds of a minute each, some four hours
    make contest ROUNDS=7

The figures are those of `forebay bench starvation --rivals all --find-most`. This script prepares
the set-up: pinned loaders in an environment of their own, photos, and a cache of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import daemons
import machine
import roster
import stage

HERE = Path(__file__).resolve().parent
ENVIRONMENT = stage.ROOT / ".tools" / "rivals"
REQUIREMENTS = HERE / "requirements.txt"
# Loaders that cannot be installed beside the others.
APART = {"datasets": HERE / "requirements-datasets.txt"}
PHOTOS = 1600
# Both of MLPerf's ResNet-50 profiles have batches of 400, so samples a second over either one's are
# how many of it are fed.
PROFILE = "resnet50-a100"
NOMINAL = {"A100s": 400 / 0.435, "H100s": 400 / 0.224}
# Memory limit of a side, page cache included: more than any of them needs, and the same for all.
MEMORY = "14GB"
ALL = "all"


@dataclass(frozen=True)
class Work:
    """A kind of work: the options of `forebay bench starvation`, and the maker of its shards."""

    options: list[str]
    shards: Callable[[int], Path]


WORK = {
    "images": Work([], stage.shards),
    "images-indexed": Work([], stage.indexed_shards),
    "raw": Work(["--raw"], stage.shards),
}


def interpreter(environment: Path, wanted: Path) -> Path:
    """Return the Python that has the loaders of `wanted`, created unless an earlier run left it."""
    python, stamp = environment / "bin" / "python", environment / ".stamp"
    if stamp.is_file() and stamp.read_text() == wanted.read_text():
        return python
    print(f"installing the loaders of {wanted.name} into {environment} (some GB)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    own = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    # Torch, NumPy and forebay itself are those of the environment that runs this.
    Path(own, "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
    stamp.write_text(wanted.read_text())
    return python


def check_loaders(python: Path, rivals: list[str]) -> None:
    """Have each loader deliver what is in shards, at every setting, before hours go into it."""
    needed = " ".join(rivals)
    tests = HERE.parents[1] / "cli/bench/contest/tests/test_contenders.py"
    # Forebay is that of the environment that runs this; theirs has no command of it.
    path = f"{Path(daemons.FOREBAY).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FOREBAY_TEST_LOADERS": needed}
    checked = subprocess.run(
        [python, "-m", "pytest", "-q", "-k", " or ".join(rivals), tests],
        env=environment,
        cwd=stage.ROOT,
        check=False,
    )
    if checked.returncode != 0:
        raise SystemExit(
            "a loader named above does not work here: repair it, or name the others with --rivals"
        )


@dataclass
class Pythons:
    """The interpreters: one of all loaders, and those of loaders that have their own."""

    most: Path
    apart: dict[str, Path]

    def check(self, rivals: list[str]) -> None:
        """Check each loader where it is."""
        wanted = list(roster.RULES) if ALL in rivals else rivals
        by_python: dict[Path, list[str]] = {}
        for kind in wanted:
            by_python.setdefault(self.apart.get(kind, self.most), []).append(kind)
        for python, kinds in by_python.items():
            check_loaders(python, kinds)

    def options(self, rivals: list[str]) -> list[str | Path]:
        """Return the arguments that name them."""
        apart = {kind: own for kind, own in self.apart.items() if ALL in rivals or kind in rivals}
        named = [["--rival-python", f"{kind}={own}"] for kind, own in apart.items()]
        return ["--python", self.most, *itertools.chain.from_iterable(named)]


def play(
    work: str, pythons: Pythons, rounds: int, seconds: float, rivals: list[str], out: Path
) -> None:
    """Let Forebay and `rivals` do one kind of work."""
    folder = WORK[work].shards(PHOTOS)
    urls = [f"{stage.BUCKET}/{shard.name}" for shard in sorted(folder.glob("*/*.tar"))]
    name = "-".join(["starvation", work, *(rival for rival in rivals if rival != ALL)])
    page = out / f"{name}.html"
    command: list[str | Path] = [daemons.FOREBAY, "bench", "starvation", *urls, *WORK[work].options]
    command += [
        "--profile",
        PROFILE,
        "--rivals",
        ",".join(rivals),
        "--find-most",
        *pythons.options(rivals),
    ]
    command += ["--rounds", str(rounds), "--seconds", str(seconds), "--memory", MEMORY]
    command += ["--work", stage.RUN / "contest", "--json", "--html", page]
    environment = dict(os.environ)
    with stage.private_cache() as cache, daemons.private_daemon(environment, cache):
        played = subprocess.run(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, check=False
        )
    text = played.stdout
    if not text or not page.exists():
        raise SystemExit(f"{work}: forebay exited with {played.returncode} and wrote no report")
    told = page.read_text()
    # No path of this machine is in what is published.
    own = [(str(python), "python") for python in (*pythons.apart.values(), pythons.most)]
    for path, instead in (*own, (f"{folder}/", "")):
        text, told = text.replace(path, instead), told.replace(path, instead)
    page.write_text(told)
    document = {**json.loads(text), "made_on": machine.describe(stage.RUN)}
    target = out / f"{name}.json"
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), f"\n  written to {target} and {page.name}\n")
    if played.returncode != 0:
        raise SystemExit(f"{work}: exit code {played.returncode}: the table is incomplete")


def table(document: dict[str, object]) -> str:
    """Return the table as docs/RESULTS.md has it."""
    heads = ["loader", "its best setting", "bytes from", "samples/s", "AU", *NOMINAL]
    heads.append("CPU ms a sample")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    contest = document["contest"]
    assert isinstance(contest, dict)
    for one in contest["contenders"]:
        held = one["sustained"]
        rate, is_held = held["samples_per_second"], held["rate_over_nominal"] is not None
        fed = [
            f"{rate / nominal:.2f}" if is_held else "not confirmed" for nominal in NOMINAL.values()
        ]
        span = f"{rate:,.0f} ({held['lowest']:,.0f} to {held['highest']:,.0f})"
        # The checksum's library is the same for all.
        chosen = {name: value for name, value in one["configuration"].items() if name != "crc"}
        named = [
            value if isinstance(value, str) else f"{value} {name}" for name, value in chosen.items()
        ]
        cpu = statistics.median(run["cpu_seconds"] / run["samples"] for run in one["rounds"])
        cells = [f"{one['name']} {one['version']}", ", ".join(named) or "defaults", one["storage"]]
        cells += [span, f"{held['au']:.0%}", *fed, f"{cpu * 1e3:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run (default: 60)")
    parser.add_argument("--rivals", nargs="+", default=[ALL], help="other loaders (default: all)")
    parser.add_argument("--work", choices=sorted(WORK), action="append", help="(default: all)")
    arguments = parser.parse_args()
    apart = {
        kind: interpreter(Path(f"{ENVIRONMENT}-{kind}"), own)
        for kind, own in APART.items()
        if not {ALL, kind}.isdisjoint(arguments.rivals)
    }
    pythons = Pythons(interpreter(ENVIRONMENT, REQUIREMENTS), apart)
    pythons.check(arguments.rivals)
    out = machine.results()
    for work in arguments.work or sorted(WORK):
        play(work, pythons, arguments.rounds, arguments.seconds, arguments.rivals, out)


if __name__ == "__main__":
    main()
