"""Program of one rank: holds its state, and saves or restores it when told to.

One order a line on standard input, one answer a line on standard output, both JSON. Ranks of a
group begin together. Times are those of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import state
import torch.distributed as dist
import ways
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

Order = dict[str, Any]
Answer = dict[str, Any]


def timed(work: Callable[[], None]) -> Answer:
    """Do it, and tell the time and the CPU seconds of all threads."""
    spent, began = time.process_time(), time.monotonic()
    work()
    ended = time.monotonic()
    return {"began": began, "ended": ended, "cpu": time.process_time() - spent}


class Rank:
    """A rank with its tensors."""

    def __init__(self, size: int, rank: int, world: int) -> None:
        self.world = world
        self.tensors = state.make(size, rank)
        self.into: ways.State = {}
        self.stager: Any = None

    def together(self, work: Callable[[], None]) -> Answer:
        """Begin when the other ranks do."""
        if self.world > 1:
            dist.barrier()
        return timed(work)

    def save(self, order: Order) -> Answer:
        """Save, and return when the trainer may go on."""
        way = ways.SAVES[order["way"]]
        return self.together(lambda: way(self.tensors, order["place"]))

    def load(self, order: Order) -> Answer:
        """Restore, and compare what came."""
        if not self.into:
            self.into = state.blank(self.tensors)
        for tensor in self.into.values():
            tensor.fill_(-1.0)
        way = ways.LOADS[order["way"]]
        found: list[ways.State] = []
        answer = self.together(lambda: found.append(way(self.into, order["place"])))
        state.check(found[0], self.tensors)
        return answer

    def save_async(self, order: Order) -> Answer:
        """Save in the background; the time is that in which the trainer is blocked."""
        if self.stager is None:
            # One for all saves, as trainers keep one: it keeps its memory.
            self.stager = DefaultStager(StagingOptions(False, False, False, False))
        futures: list[Any] = []

        def begin() -> None:
            writer = ways.async_writer(order["way"], order["place"])
            saving = state_dict_saver.async_save(
                self.tensors, storage_writer=writer, async_stager=self.stager
            )
            futures.append(saving)

        answer = self.together(begin)
        saving = futures[0]
        getattr(saving, "upload_completion", saving).result()
        answer["done"] = time.monotonic()
        return answer

    def wait(self, order: Order) -> Answer:
        """Wait until what was saved has reached a level."""
        return timed(lambda: ways.wait(order["place"], order["level"]))

    def forget(self, order: Order) -> Answer:
        """Drop cached pages."""
        return timed(lambda: ways.forget_pages(order["place"]))


def main() -> None:
    """Serve orders until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--meet", required=True, help="file by which the ranks find each other")
    parser.add_argument("--bytes", type=int, required=True, help="bytes of this rank's state")
    parser.add_argument("--apart", action="store_true", help="ranks that know nothing of others")
    arguments = parser.parse_args()
    world = 1 if arguments.apart else arguments.world
    if world > 1:
        where = f"file://{arguments.meet}"
        dist.init_process_group("gloo", where, rank=arguments.rank, world_size=world)
    rank = Rank(arguments.bytes, arguments.rank, world)
    does = {
        "save": rank.save,
        "load": rank.load,
        "save_async": rank.save_async,
        "wait": rank.wait,
        "forget": rank.forget,
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(does[order["do"]](order)), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
