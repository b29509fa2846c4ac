"""A contender for tests: it reads tars by Python alone, starts quickly, and fails on request.

The variable `FOREBAY_TEST_FAULT_<script's name>` sets a fault: `raise`, `stop`, `other` (other
samples), or `die N`, which kills the contender's Nth process.
"""

import functools
import os
import signal
import sys
from pathlib import Path

import shards
from contender import Loader, serve

NAME = Path(sys.argv[0]).stem
FAULT, _, AT = os.environ.get(f"FOREBAY_TEST_FAULT_{NAME}", "").partition(" ")
HERE = Path(sys.argv[0]).parent


@functools.cache
def samples_of(shard):
    """Return a shard's samples from memory, because a fast contender shortens the search."""
    return [members for _, members in shards.samples(shard)]


class Batches:
    """A task's batches, with the contender's fault."""

    def __init__(self, task, repeats):
        self.task, self.repeats = task, repeats

    def __iter__(self):
        if FAULT == "raise":
            raise OSError("the photo\nof a cat\nis missing")
        if FAULT == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == "die":
            # The files count the contender's processes.
            (HERE / f"{NAME}-{os.getpid()}").touch()
            if len(list(HERE.glob(f"{NAME}-*"))) >= int(AT):
                os.kill(os.getpid(), signal.SIGKILL)
        samples = []
        for shard in self.task.shards * self.repeats:
            for members in samples_of(shard):
                samples.append([members[name] for name in self.task.fields])
                if len(samples) == self.task.batch_size:
                    yield self.columns(samples)
                    samples = []
        if samples:
            yield self.columns(samples)

    def columns(self, samples):
        if FAULT == "other":
            samples[0][0] = samples[0][0][:-1] + b"\0"
        return [list(column) for column in zip(*samples, strict=True)]


def counts():
    """Return counts as Forebay's loader does: no byte came from the origin."""
    return {"loader": {"bytes": {"origin": 0}}}


if __name__ == "__main__":
    serve(lambda task, repeats: Loader(Batches(task, repeats), counts=counts))
