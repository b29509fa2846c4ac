"""Group of rank processes, told what to do in step.

The processes live as long as the row, so that imports and the making of tensors are in no figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rounds import Figures

PROGRAM = Path(__file__).with_name("rank.py")


class Group:
    """Running ranks."""

    def __init__(self, ranks: list[subprocess.Popen[str]], size: int) -> None:
        self.ranks, self.size = ranks, size

    def do(self, what: str, **order: str) -> Figures:
        """Give all ranks an order; ``{rank}`` in its words is each one's number.

        The time is that from the first one's begin to the last one's end; CPU seconds are the sum.
        """
        for number, rank in enumerate(self.ranks):
            words = {name: word.replace("{rank}", str(number)) for name, word in order.items()}
            self._tell(rank, {"do": what, **words})
        answers = [self._hear(rank) for rank in self.ranks]
        return self._sum(answers)

    def do_one(self, what: str, **order: str) -> Figures:
        """Give the first rank an order."""
        self._tell(self.ranks[0], {"do": what, **order})
        return self._sum([self._hear(self.ranks[0])])

    def _sum(self, answers: list[dict[str, Any]]) -> Figures:
        began = min(answer["began"] for answer in answers)
        seconds = max(answer["ended"] for answer in answers) - began
        moved = self.size * len(answers)
        figures = {"seconds": seconds, "bytes": moved, "rate": moved / seconds}
        figures["cpu"] = sum(answer["cpu"] for answer in answers)
        if "done" in answers[0]:
            figures["done"] = max(answer["done"] for answer in answers) - began
        return figures

    @staticmethod
    def _tell(rank: subprocess.Popen[str], order: dict[str, str]) -> None:
        assert rank.stdin is not None
        rank.stdin.write(json.dumps(order) + "\n")
        rank.stdin.flush()

    @staticmethod
    def _hear(rank: subprocess.Popen[str]) -> dict[str, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise SystemExit("a rank ended; see its messages above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def group(
    environment: dict[str, str], size: int, world: int = 1, *, apart: bool = False
) -> Iterator[Group]:
    """Start `world` ranks with `size` bytes of state each.

    `apart`: they are no group of torch's, as ranks that write files of their own.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as meet:
        command = [sys.executable, "-W", "ignore", str(PROGRAM), "--world", str(world)]
        command += ["--meet", f"{meet}/meet", "--bytes", str(size)]
        command += ["--apart"] if apart else []
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(number)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(world)
        ]
        running = Group(ranks, size)
        try:
            for rank in ranks:
                running._hear(rank)
            yield running
        finally:
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.close()
            for rank in ranks:
                rank.wait()
