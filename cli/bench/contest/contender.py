"""The program every contender runs: it reads the task, makes its loader, and plays on request.

All contenders run this very code. They differ in how a loader is made and in nothing that is timed.
The first line of standard input is the task; each line after it asks for one play. Each reply is a
line to the descriptor named by the first argument, which no library knows of.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import accelerator
import processes
import throughput
from touch import Batch, Digest, counter, crc_of, toucher

# A busy contender reports at this interval in seconds: silence means that it hangs.
ALIVE_S = 1.0
PREREAD_BYTES = 16 << 20
# Errors of libraries run to pages; the beginning and the end tell most.
WORDS_MAX = 400


@dataclass(frozen=True)
class Task:
    """Task of a contender."""

    # True if samples become images for a network; otherwise they stay bytes.
    images: bool
    # Extensions of a sample's members; for images the photo's and the label's.
    fields: list[str]
    shards: list[str]
    batch_size: int
    # The swept settings: number of workers and so on.
    configuration: dict[str, Any]
    # Folder of the data set in the contender's own format, if it has one.
    source: str | None = None
    # Library that computes the CRC-32.
    crc: str = "zlib"
    # One of torchvision's models, which a GPU trains in place of an emulated accelerator.
    model: str | None = None
    # Files to read into the page cache first.
    preread: list[str] = field(default_factory=list)


@dataclass
class Loader:
    """A contender's loader: yields one epoch's batches each time that it is iterated."""

    batches: Iterable[Batch]
    # Processes whose CPU time and memory count beside this one's.
    helpers: Callable[[], list[int]] = processes.children
    # Counters only the contender has, read before and after the timed part.
    counts: Callable[[], dict[str, Any]] = dict
    close: Callable[[], None] = lambda: None


# Makes a loader whose epoch plays the shards this many times.
Make = Callable[[Task, int], Loader]


class Replies:
    """The stream of replies."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.spoke = time.monotonic()

    def say(self, **words: Any) -> None:
        """Send one line."""
        print(json.dumps(words), file=self.out, flush=True)
        self.spoke = time.monotonic()

    def alive(self) -> None:
        """Report at most once every `ALIVE_S` that work goes on."""
        if time.monotonic() - self.spoke >= ALIVE_S:
            self.say(alive=True)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Pass batches on, keep none, and report that they come."""

        def passed(batch: Batch) -> Batch:
            self.alive()
            return batch

        return map(passed, batches)


def into_page_cache(files: list[str], replies: Replies) -> None:
    """Read `files` here, so that their pages are charged to this process's control group."""
    for name in files:
        with open(name, "rb", buffering=0) as file:
            while file.read(PREREAD_BYTES):
                replies.alive()


def first_epoch(task: Task, make: Make, replies: Replies) -> dict[str, Any]:
    """Play one epoch as fast as it goes; every byte is read, as in any step."""
    touch, samples = toucher(task.images, crc_of(task.crc)), 0
    begin = time.monotonic()
    loader = make(task, 1)
    first: float | None = None
    for batch in replies.watch(loader.batches):
        first = first or time.monotonic() - begin
        samples += touch(batch).samples
    wall = time.monotonic() - begin
    loader.close()
    return {
        "first_batch_seconds": first,
        "wall_seconds": wall,
        "samples": samples,
        "samples_per_second": samples / wall,
    }


def digest_of(task: Task, make: Make, replies: Replies) -> dict[str, Any]:
    """Count the content of an epoch; the digest takes time, so this epoch is not timed."""
    count, digest = counter(task.images, crc_of(task.crc)), Digest()
    loader = make(task, 1)
    for batch in replies.watch(loader.batches):
        count(batch, digest)
    loader.close()
    return asdict(digest)


class Accelerated:
    """The loader under an accelerator."""

    def __init__(self, task: Task, make: Make, replies: Replies) -> None:
        self.task, self.make, self.replies = task, make, replies
        self.loader: Loader | None = None
        self.compute = toucher(task.images, crc_of(task.crc))
        # Unknown for a real accelerator.
        self.nominal_seconds: float | None = None
        if task.model is not None:
            from model import Model

            self.compute = model = Model(task.model, task.batch_size)
            self.nominal_seconds = model.nominal_seconds()

    def play(self, step_seconds: float, repeats: int, **length: Any) -> dict[str, Any]:
        """Play steps of a `Length` on a loader made for it."""
        self.close()
        loader = self.loader = self.make(self.task, repeats)
        source = self.replies.watch(accelerator.endless(loader.batches))
        begin: dict[str, Any] = {}

        def steady() -> None:
            begin.update(cpu=self.cpu(), counts=loader.counts())

        step = accelerator.Step(step_seconds)
        if self.nominal_seconds is not None:
            step = accelerator.Step(self.nominal_seconds, is_emulated=False)
        run = accelerator.play(
            source, self.compute, step, accelerator.Length(**length), steady=steady
        )
        used = self.cpu() - begin["cpu"]
        return {
            **run.document(),
            "cpu_seconds": used,
            "before": begin["counts"],
            "after": loader.counts(),
        }

    def cpu(self) -> float:
        """CPU seconds of this process and of all its workers."""
        assert self.loader is not None
        return processes.cpu_seconds([os.getpid(), *self.loader.helpers()])

    def close(self) -> None:
        """Release the loader, and with it its workers."""
        if self.loader is not None:
            self.loader.close()
            self.loader = None
            # Some loaders refer to themselves and keep their workers until the garbage collector
            # runs.
            gc.collect()


def obey(make: Make, replies: Replies) -> None:
    """Play what the standard input asks for, until it ends."""
    task = Task(**json.loads(sys.stdin.readline()))
    into_page_cache(task.preread, replies)
    accelerated = Accelerated(task, make, replies)
    for line in sys.stdin:
        play: dict[str, Any] = json.loads(line)
        name = play.pop("play")
        if name == "configure":
            accelerated.close()
            task = replace(task, configuration=play["configuration"])
            accelerated, reply = Accelerated(task, make, replies), {}
        elif name == "first_epoch":
            reply = first_epoch(task, make, replies)
        elif name == "digest":
            reply = digest_of(task, make, replies)
        elif name == "accelerator":
            reply = accelerated.play(**play)
        else:
            reply = throughput.play(task, make(task, 1), **play)
        replies.say(reply=reply)
    accelerated.close()


def words(error: Exception) -> str:
    """Return the first line and the last of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"
    return f"{type(error).__name__}: {said}"[:WORDS_MAX]


def serve(make: Make) -> None:
    """Be a contender's process."""
    line = int(sys.argv[1])
    os.set_inheritable(line, False)
    with os.fdopen(line, "w") as out:
        replies = Replies(out)
        try:
            obey(make, replies)
        except Exception as error:
            # The traceback is for a developer; the contest's document gets the message.
            traceback.print_exc()
            replies.say(failed=words(error))
            sys.exit(1)


def script(name: str) -> Path:
    """Return the script of contender `name`."""
    return Path(__file__).with_name(f"through_{name}.py")
