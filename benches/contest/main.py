"""The rivals of `forebay bench starvation`: one document in, one document out.

    PYTHON main.py < request.json > figures.json

Its rule: the standard output holds the document and nothing else; progress and whatever libraries
say go to the standard error. It needs NumPy; each contender has a process and an interpreter of its
own, and who is not installed there is named.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from contest import Contest
from fence import Unfenced, fence
from players import Failed
from request import Request, Wrong
from shards import Unfit

# By which a process asks the kernel for a signal at its parent's end (linux/prctl.h).
PR_SET_PDEATHSIG = 1


def tell(
    contender: str, number: int, of: int, what: str, run: dict[str, Any] | None = None
) -> None:
    """Say how far it is, and what a run came to: a contest that is cut off has told that much."""
    progress: dict[str, Any] = {"contender": contender, "round": number, "of": of, "what": what}
    if run is not None:
        progress |= {name: run[name] for name in ("samples_per_second", "au_ideal")}
    print(json.dumps({"progress": progress}), file=sys.stderr, flush=True)


def limited(limit: int | None, stack: ExitStack) -> tuple[Callable[[], None], str | None]:
    """Return what a child calls before it begins, and why it has no limit on memory."""
    if limit is None:
        return (lambda: None), "no limit on memory was asked for (memory_bytes)"
    try:
        return stack.enter_context(fence(limit)), None
    except Unfenced as error:
        return (lambda: None), str(error)


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """Play what `document` asks for."""
    request = Request.of(document)
    with ExitStack() as stack:
        before, why_not = limited(request.memory_bytes, stack)
        contest = Contest(request, before, tell)
        contenders = contest.run()
    return {
        "contenders": contenders,
        "absent": contest.absent,
        "model": request.model,
        "fence": {
            # Everybody's: children have the CPUs of their parent.
            "cpus": sorted(os.sched_getaffinity(0)),
            "memory_bytes": None if why_not else request.memory_bytes,
            "why_not": why_not,
        },
    }


def main() -> int:
    """Run it."""
    # A polite end of this process ends everything it started, and so does the end of whose it is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            document = figures(json.load(sys.stdin))
        except (Failed, Unfit, Wrong, json.JSONDecodeError) as error:
            print(f"contest: {error}", file=sys.stderr)
            return 2 if isinstance(error, Wrong | json.JSONDecodeError) else 1
        json.dump(document, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
