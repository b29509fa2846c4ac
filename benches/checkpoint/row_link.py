"""Row: an upload and a restore over a link of 1 Gbit/s.

The store lies at the far end of `benches/link`. The link is what one plain TCP stream reaches over
it in the same round: headers of packets are part of a gigabit. The emulation takes CPU of the same
machine. Needs root.
"""

from __future__ import annotations

import os

import plain_tcp
from delay_line import FAR, NAMESPACE, Link
from group import group
from rounds import Figures, Table, take_turns
from settings import Settings
from testbed import node, store
from verdicts import Verdict, rate

MBIT = 1000
# Seconds of a round trip within a region.
ROUND_TRIP = 0.005
PORT = 7000
SHARE = 0.95


def missing() -> str | None:
    """Return the reason for leaving the row out, if there is one."""
    return None if os.geteuid() == 0 else "needs root: it makes a link"


def measure(settings: Settings) -> dict[str, Table]:
    """Measure an upload by one node, and a restore by another one."""
    inside = ("ip", "netns", "exec", NAMESPACE)
    size = settings.size(256 << 20)
    with (
        Link(ROUND_TRIP, MBIT),
        store(settings.programs, inside, FAR) as its,
        plain_tcp.server(inside, FAR, PORT),
        node(settings, its) as here,
        node(settings, its) as there,
        group(here.environment, size) as savers,
        group(there.environment, size) as loaders,
    ):
        last = {"name": ""}

        def upload(number: int) -> Figures:
            its.forget(last["name"])
            last["name"] = f"link/step-{number + 1}"
            place = its.url(last["name"])
            savers.do("save", way="writer", place=place)
            drained = savers.do_one("wait", place=place, level="published")
            return drained | {"rate": size / drained["seconds"]}

        def restore(_: int) -> Figures:
            return loaders.do("load", way="reader", place=its.url(last["name"]))

        # A round restores what it uploaded: their order stays.
        def up_and_down(number: int) -> Figures:
            up, down = upload(number), restore(number)
            return {"up": up["rate"], "down": down["rate"]}

        def plainly(_: int) -> Figures:
            up = plain_tcp.move(plain_tcp.UP, FAR, PORT, size // 2)
            down = plain_tcp.move(plain_tcp.DOWN, FAR, PORT, size // 2)
            return {"up": up["rate"], "down": down["rate"]}

        plays = {"tcp": plainly, "forebay": up_and_down}
        return {"link": take_turns("over 1 Gbit/s", plays, settings)}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    table, row = tables["link"], "link of 1 Gbit/s"
    verdicts = []
    for way, what in (("up", "upload"), ("down", "restore")):
        share = table.ratio(("forebay", way), ("tcp", way))
        verdicts += [
            Verdict(row, f"{what}", table.figure("forebay", way), show=rate),
            Verdict(row, f"{what}, of plain TCP", share, least=SHARE),
        ]
    return verdicts
