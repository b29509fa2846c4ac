"""Row: s3torchconnector's writer for DCP against Forebay's, on one store.

The connector's save returns once the checkpoint is in the store; Forebay's once it is durable on
the node. Both times are told for both: until the trainer goes on, and until it is published.
"""

from __future__ import annotations

from importlib.util import find_spec

from group import group
from rounds import Figures, Table, take_turns
from settings import Settings
from testbed import node, store
from verdicts import Verdict, milliseconds

WAITS, PUBLISHED = 0.25, 1.1

# The store keeps both checkpoints in memory for a moment.
BYTES = 256 << 20


def missing() -> str | None:
    """Return the reason for leaving the row out, if there is one."""
    if find_spec("s3torchconnector") is None:
        return "needs s3torchconnector: pip install -r benches/checkpoint/requirements.txt"
    return None


def measure(settings: Settings) -> dict[str, Table]:
    """Measure both writers."""
    with (
        store(settings.programs) as its,
        node(settings, its) as daemon,
        group(daemon.environment, settings.size(BYTES)) as ranks,
    ):

        def by_connector(number: int) -> Figures:
            name = f"connector/step-{number + 1}"
            figures = ranks.do("save", way="connector", place=its.url(name))
            its.forget(name)
            return figures | {"published": figures["seconds"]}

        def by_writer(number: int) -> Figures:
            name = f"beside-connector/step-{number + 1}"
            figures = ranks.do("save", way="writer", place=its.url(name))
            drained = ranks.do_one("wait", place=its.url(name), level="published")
            its.forget(name)
            return figures | {"published": figures["seconds"] + drained["seconds"]}

        plays = {"connector": by_connector, "writer": by_writer}
        return {its.name: take_turns(f"connector, {its.name}", plays, settings)}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    [(store_name, table)] = tables.items()
    row = f"S3 connector, {store_name}"
    waits = table.ratio(("writer", "seconds"), ("connector", "seconds"))
    published = table.ratio(("writer", "published"), ("connector", "published"))
    return [
        Verdict(row, "connector's save", table.figure("connector", "seconds"), show=milliseconds),
        Verdict(row, "trainer waits, of the connector's", waits, most=WAITS),
        Verdict(row, "published, of the connector's", published, most=PUBLISHED),
    ]
