"""Row: time for which an asynchronous save blocks the trainer.

Both sides use one stager of torch's own, so that its copy costs the same. The time is that of the
call; what the thread behind it needs until the save is durable stands beside it.
"""

from __future__ import annotations

import shutil

from group import group
from rounds import Figures, Table, take_turns
from settings import Settings
from testbed import node, store
from verdicts import Verdict, milliseconds

# DCP's own writer behind the same stager, and what clocks differ by.
BLOCKED = 1.05


def measure(settings: Settings) -> dict[str, Table]:
    """Measure both writers."""
    folder = settings.directory / "plain-async"
    with (
        store(settings.programs) as its,
        node(settings, its) as daemon,
        group(daemon.environment, settings.size(512 << 20)) as ranks,
    ):

        def by_filesystem(_: int) -> Figures:
            try:
                return ranks.do("save_async", way="filesystem", place=str(folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        def by_writer(number: int) -> Figures:
            name = f"async/step-{number + 1}"
            figures = ranks.do("save_async", way="writer", place=its.path(name))
            ranks.do_one("wait", place=its.path(name), level="published")
            its.forget(name)
            return figures

        plays = {"filesystem": by_filesystem, "writer": by_writer}
        return {"async": take_turns("blocked under async_save", plays, settings)}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    table, row = tables["async"], "async_save, 1 rank"
    blocked = table.ratio(("writer", "seconds"), ("filesystem", "seconds"))
    return [
        Verdict(row, "blocked", table.figure("writer", "seconds"), show=milliseconds),
        Verdict(row, "blocked, of FileSystemWriter's", blocked, most=BLOCKED),
        Verdict(row, "until staged", table.figure("writer", "done"), show=milliseconds),
        Verdict(
            row,
            "until synced, FileSystemWriter",
            table.figure("filesystem", "done"),
            show=milliseconds,
        ),
    ]
