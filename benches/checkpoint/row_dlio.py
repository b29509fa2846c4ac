"""Row: the shape of DLIO's model of 8 billion parameters, at 1/32: eight processes, 105 GiB / 32.

Each process writes a file of its own, then reads it, as MLPerf Storage's checkpointing does. No
page cache is in the way: both sides use O_DIRECT.
"""

from __future__ import annotations

import shutil

import fio
from group import group
from rounds import Figures, Table, take_turns
from settings import Settings
from testbed import node, store
from verdicts import Verdict, rate

# Bytes and processes of the model, and the part of it that fits a small machine.
BYTES, RANKS, PART = 105 << 30, 8, 32
OF_DISK = 0.90


def measure(settings: Settings) -> dict[str, Table]:
    """Measure writes, then reads."""
    size = settings.size(BYTES // PART // RANKS)
    disk = settings.directory / "fio-dlio"
    with (
        store(settings.programs) as its,
        node(settings, its) as daemon,
        group(daemon.environment, size, RANKS, apart=True) as ranks,
    ):
        place = its.path("dlio/rank-{rank}.pt")

        def write(_: int) -> Figures:
            figures = ranks.do("save", way="file", place=place)
            # The next round replaces these files, which then have left the node.
            ranks.do("wait", place=place, level="uploaded")
            return figures

        plays = {"fio": lambda _: fio.write(disk, size, RANKS), "file": write}
        written = take_turns("DLIO's 8B shape, write", plays, settings)
        try:
            fio.prepare(disk, size, RANKS)
            plays = {
                "fio": lambda _: fio.read(disk, size, RANKS),
                "file": lambda _: ranks.do("load", way="file", place=place),
            }
            read = take_turns("DLIO's 8B shape, read", plays, settings)
        finally:
            shutil.rmtree(disk, ignore_errors=True)
    return {"write": written, "read": read}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    verdicts = []
    for what, table in tables.items():
        row = f"DLIO's 8B shape, {what}"
        of_disk = table.ratio(("file", "rate"), ("fio", "rate"))
        verdicts += [
            Verdict(row, "fio, 8 jobs", table.figure("fio", "rate"), show=rate),
            Verdict(row, "8 ranks, of fio", of_disk, OF_DISK),
        ]
    return verdicts
