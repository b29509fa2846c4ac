"""The rivals of `forebay bench starvation`: one document in, one document out.

    PYTHON main.py < request.json > figures.json

Measured figures are not lost. The document names every contender that failed, and it is written
even if the contest ends early. A copy is written to the work folder after each measured run, in
case the contest is killed. Standard output holds the document only; progress and the output of
libraries go to standard error. The contest needs NumPy. Each contender has a process and an
interpreter of its own; one that is not installed there is named.
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

# Asks the kernel for a signal when the parent ends (linux/prctl.h).
PR_SET_PDEATHSIG = 1
# File for the figures so far, in the work folder.
KEPT = "contest.json"


def tell(
    contender: str, number: int, of: int, what: str, run: dict[str, Any] | None = None
) -> None:
    """Report progress and the figures of a run, so that a killed contest has reported that much."""
    progress: dict[str, Any] = {"contender": contender, "round": number, "of": of, "what": what}
    if run is not None:
        progress |= {name: run[name] for name in ("samples_per_second", "au_ideal")}
    print(json.dumps({"progress": progress}), file=sys.stderr, flush=True)


def keep(document: dict[str, Any], work: Path) -> None:
    """Write `document` to the work folder; the file is complete at any time."""
    work.mkdir(parents=True, exist_ok=True)
    aside = work / f"{KEPT}.part"
    aside.write_text(json.dumps(document))
    aside.rename(work / KEPT)


def limited(limit: int | None, stack: ExitStack) -> Callable[[], None]:
    """Return the function a child calls first; raises `Unfenced` if no limit can be set."""
    return (lambda: None) if limit is None else stack.enter_context(fence(limit))


def figures(contest: Contest) -> dict[str, Any]:
    """Return the figures of `contest` so far."""
    request = contest.request
    is_limited = request.memory_bytes is not None
    return {
        "contenders": [contest.figures(one) for one in contest.contenders],
        "failed": contest.failed(),
        "absent": contest.absent,
        "model": request.model,
        "fence": {
            # The same for all: children inherit the CPUs of their parent.
            "cpus": sorted(os.sched_getaffinity(0)),
            "memory_bytes": request.memory_bytes,
            "why_not": None if is_limited else "no memory limit was requested (memory_bytes)",
        },
    }


def play(document: dict[str, Any], out: TextIO) -> None:
    """Play the request in `document` and write the figures."""
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
                    # The final document repeats it.
                    print(f"contest: cannot write a copy of the figures: {error}", file=sys.stderr)

        contest = Contest(request, before, told)
        try:
            contest.run()
        finally:
            json.dump(figures(contest), out)


def main() -> int:
    """Run it."""
    # SIGTERM to this process, and the end of its parent, end everything it started. Ctrl-C brings
    # both: further signals during the shutdown change nothing.
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
