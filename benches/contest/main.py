"""The rivals of `forebay bench starvation`: one document in, one document out.

    PYTHON main.py < request.json > figures.json

Its rule: what was measured is not lost. Whoever fails is told in the document, which is written
also of a contest that ended early; a copy is kept in the folder for work after each measured run,
for one that is cut off. The standard output holds the document and nothing else; progress and
whatever libraries say go to the standard error. It needs NumPy; each contender has a process and an
interpreter of its own, and who is not installed there is named.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import players
from contest import Contest
from fence import Unfenced, fence
from players import Failed
from request import Request, Wrong
from shards import Unfit

# By which a process asks the kernel for a signal at its parent's end (linux/prctl.h).
PR_SET_PDEATHSIG = 1
# What was measured so far, in the folder for work.
KEPT = "contest.json"


def tell(
    contender: str, number: int, of: int, what: str, run: dict[str, Any] | None = None
) -> None:
    """Say how far it is, and what a run came to: a contest that is cut off has told that much."""
    progress: dict[str, Any] = {"contender": contender, "round": number, "of": of, "what": what}
    if run is not None:
        progress |= {name: run[name] for name in ("samples_per_second", "au_ideal")}
    print(json.dumps({"progress": progress}), file=sys.stderr, flush=True)


def keep(document: dict[str, Any], work: Path) -> None:
    """Keep `document` in the folder for work, where it is whole at any time."""
    work.mkdir(parents=True, exist_ok=True)
    aside = work / f"{KEPT}.part"
    aside.write_text(json.dumps(document))
    aside.rename(work / KEPT)


def limited(limit: int | None, stack: ExitStack) -> Callable[[], None]:
    """Return what a child calls before it begins; raises `Unfenced` for a limit not to be had."""
    return (lambda: None) if limit is None else stack.enter_context(fence(limit))


def figures(contest: Contest) -> dict[str, Any]:
    """Return what `contest` came to so far."""
    request = contest.request
    is_limited = request.memory_bytes is not None
    return {
        "contenders": [contest.figures(one) for one in contest.contenders],
        "failed": contest.failed(),
        "absent": contest.absent,
        "model": request.model,
        "fence": {
            # Everybody's: children have the CPUs of their parent, and so have theirs.
            "cpus": sorted(os.sched_getaffinity(0)),
            "memory_bytes": request.memory_bytes,
            "why_not": None if is_limited else "no limit on memory was asked for (memory_bytes)",
        },
    }


def play(document: dict[str, Any], out: TextIO) -> None:
    """Play what `document` asks for and write what it came to."""
    request = Request.of(document)
    with ExitStack() as stack:
        before = limited(request.memory_bytes, stack)

        def told(
            contender: str, number: int, of: int, what: str, run: dict[str, Any] | None = None
        ) -> None:
            tell(contender, number, of, what, run)
            if run is not None:
                try:
                    keep(figures(contest), contest.work)
                except OSError as error:
                    # What it says is told at the end, too.
                    print(f"contest: no copy of the figures is kept: {error}", file=sys.stderr)

        contest = Contest(request, before, told)
        try:
            contest.run()
        finally:
            json.dump(figures(contest), out)


def main() -> int:
    """Run it."""
    # A polite end of this process ends everything it started, and so does the end of whose it is.
    # Ctrl-C brings both: what comes while it ends changes nothing.
    ending, heard = os.pipe()
    os.set_blocking(heard, False)
    players.ENDING.append(ending)
    signal.set_wakeup_fd(heard, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            play(json.load(sys.stdin), out)
        except (Failed, Unfenced, Unfit, Wrong, json.JSONDecodeError) as error:
            print(f"contest: {error}", file=sys.stderr)
            return 2 if isinstance(error, Wrong | json.JSONDecodeError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
