"""Row: a synchronous save until it is durable on the node.

The trainer waits for this. Beside it: fio writing as many bytes to the same disk, ``torch.save``
with an fsync, and DCP's own writer. CPU seconds are those of ranks and daemon together, up to
`staged`; the drain's are the daemon's from then until the checkpoint is published.
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

# Shares of fio's write, by the number of ranks.
OF_DISK = {"one rank": 0.95, "two ranks": 0.90}
# Times the rate of plain torch.
OF_TORCH, OF_FILESYSTEM = 2.0, 2.5
# CPU seconds per GB.
CPU_STAGED, CPU_DRAIN = 0.30, 0.20


def measure(settings: Settings) -> dict[str, Table]:
    """Measure one rank, and two that save at once."""
    tables = {}
    with store(settings.programs) as its, node(settings, its) as daemon:
        size = settings.size(1 << 30)
        with group(daemon.environment, size) as ranks:
            plays = contenders(settings, (ranks, daemon, its), ("bytes", "file", "writer"))
            tables["one rank"] = take_turns("staged, one rank", plays, settings)
        size = settings.size(512 << 20)
        with group(daemon.environment, size, 2) as ranks:
            plays = contenders(settings, (ranks, daemon, its), ("writer",))
            tables["two ranks"] = take_turns("staged, two ranks", plays, settings)
    return tables


def contenders(
    settings: Settings, parts: tuple[Group, Node, Store], ways: tuple[str, ...]
) -> dict[str, Play]:
    """Return fio, plain torch and Forebay's ways."""
    ranks = parts[0]
    folder = settings.directory

    def plain(way: str) -> Play:
        return lambda _: save_plainly(ranks, way, folder / f"plain-{way}")

    def through(way: str) -> Play:
        return lambda number: save_through(parts, way, number)

    plays: dict[str, Play] = {
        "fio": lambda _: fio.write(folder / "fio", ranks.size, len(ranks.ranks)),
        "torch": plain("torch"),
        "filesystem": plain("filesystem"),
    }
    return plays | {way: through(way) for way in ways}


def save_plainly(ranks: Group, way: str, place: Path) -> Figures:
    """Save to the disk without Forebay."""
    place.mkdir()
    try:
        name = "rank-{rank}.pt" if way == "torch" else "step"
        return ranks.do("save", way=way, place=f"{place}/{name}")
    finally:
        shutil.rmtree(place)


def save_through(parts: tuple[Group, Node, Store], way: str, number: int) -> Figures:
    """Save through the daemon, and wait until it has brought all to the store.

    A checkpoint goes to the S3 store, a file of its own to memory: one drain is enough.
    """
    ranks, daemon, its = parts
    # A file of its own keeps its name, so that its predecessor goes.
    name = f"{way}-{len(ranks.ranks)}/step-{number + 1}" if way == "writer" else f"{way}.pt"
    place = its.url(name) if way == "writer" else its.path(name)
    before = daemon.cpu()
    figures = ranks.do("save", way=way, place=place)
    staged = daemon.cpu()
    figures["cpu_of_ranks"] = figures["cpu"]
    figures["cpu"] += staged - before
    drained = ranks.do_one("wait", place=place, level="published")
    figures["drain_cpu"] = daemon.cpu() - staged
    figures["drain_seconds"] = drained["seconds"]
    gigabytes = figures["bytes"] / 1e9
    figures["cpu_per_gb"] = figures["cpu"] / gigabytes
    figures["drain_cpu_per_gb"] = figures["drain_cpu"] / gigabytes
    if way == "writer":
        its.forget(name)
    return figures


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    return [verdict for name, table in tables.items() for verdict in _judge(name, table)]


def _judge(name: str, table: Table) -> list[Verdict]:
    row = f"staged, {name}"
    verdicts = [Verdict(row, "fio", table.figure("fio", "rate"), show=rate)]
    ways = [way for way in ("bytes", "file", "writer") if way in table.runs]
    for way in ways:
        # Formats without a checksum of their own are the ones that a disk can be compared with.
        least = OF_DISK[name] if way == ways[0] else None
        verdicts.append(
            Verdict(row, f"{way}, of fio", table.ratio((way, "rate"), ("fio", "rate")), least)
        )
    for way, other, least in (("file", "torch", OF_TORCH), ("writer", "filesystem", OF_FILESYSTEM)):
        if way in ways:
            times = table.ratio((way, "rate"), (other, "rate"))
            verdicts.append(Verdict(row, f"{way}, of {other}", times, least))
    for way in ways:
        most = CPU_STAGED if way == ways[0] else None
        spent = table.figure(way, "cpu_per_gb")
        verdicts.append(Verdict(row, f"{way}, CPU s/GB until staged", spent, most=most))
    drained = table.figure("writer", "drain_cpu_per_gb")
    return [*verdicts, Verdict(row, "drain, CPU s/GB", drained, most=CPU_DRAIN)]
