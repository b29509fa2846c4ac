"""Row: a restore from this node's disk.

Beside it: fio reading as many bytes by O_DIRECT, and DCP's own reader, whose files the kernel has
forgotten before each round. What comes is compared with what was saved, outside of the time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import fio
from group import Group, group
from rounds import Figures, Play, Table, take_turns
from settings import Settings
from testbed import Node, Store, node, store
from verdicts import Verdict, rate

# Ways to restore, and those in which it was saved.
WAYS = {"bytes": "bytes", "file": "file", "reader": "writer", "reader2": "writer"}
OF_DISK, OF_FILESYSTEM = 0.95, 1.5


def measure(settings: Settings) -> dict[str, Table]:
    """Measure one rank that restores what it saved."""
    plain, disk = settings.directory / "plain-restore", settings.directory / "fio-restore"
    with (
        store(settings.programs) as its,
        node(settings, its) as daemon,
        group(daemon.environment, settings.size(1 << 30)) as ranks,
    ):
        try:
            fio.prepare(disk, ranks.size)
            ranks.do("save", way="filesystem", place=str(plain))
            for way in sorted(set(WAYS.values())):
                place = its.path(f"restore/{way}")
                ranks.do("save", way=way, place=place)
                ranks.do("wait", place=place, level="published")
            plays = contenders((ranks, daemon, its), plain, disk)
            return {"restore": take_turns("restore", plays, settings)}
        finally:
            shutil.rmtree(plain, ignore_errors=True)
            shutil.rmtree(disk, ignore_errors=True)


def contenders(parts: tuple[Group, Node, Store], plain: Path, disk: Path) -> dict[str, Play]:
    """Return fio, DCP's own reader and Forebay's ways."""
    ranks, daemon, its = parts

    def by_filesystem(_: int) -> Figures:
        ranks.do("forget", place=str(plain))
        return ranks.do("load", way="filesystem", place=str(plain))

    def through(way: str) -> Play:
        def load(_: int) -> Figures:
            before = daemon.cpu()
            figures = ranks.do("load", way=way, place=its.path(f"restore/{WAYS[way]}"))
            cpu = figures["cpu"] + daemon.cpu() - before
            return figures | {"cpu_per_gb": cpu / (figures["bytes"] / 1e9)}

        return load

    plays: dict[str, Play] = {
        "fio": lambda _: fio.read(disk, ranks.size),
        "filesystem": by_filesystem,
    }
    return plays | {way: through(way) for way in WAYS}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    table, row = tables["restore"], "restore, this node's disk"
    verdicts = [Verdict(row, "fio", table.figure("fio", "rate"), show=rate)]
    for way, least in (("bytes", OF_DISK), ("file", None), ("reader", None), ("reader2", None)):
        of_disk = table.ratio((way, "rate"), ("fio", "rate"))
        verdicts.append(Verdict(row, f"{way}, of fio", of_disk, least))
    for way, bound in (("reader", OF_FILESYSTEM), ("reader2", None)):
        of_torch = table.ratio((way, "rate"), ("filesystem", "rate"))
        verdicts.append(Verdict(row, f"{way}, of FileSystemReader", of_torch, bound))
    cpu = table.figure("reader", "cpu_per_gb")
    verdicts.append(Verdict(row, "reader, CPU s/GB", cpu))
    return verdicts
