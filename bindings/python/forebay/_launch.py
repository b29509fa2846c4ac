"""How the package starts itself as a program: for the embedded daemon and for the command line."""

from __future__ import annotations

import os
import sys


def command() -> list[str]:
    """The command that runs ``forebay``, without arguments.

    It does not count on the console script, which is elsewhere in some installations, nor on the
    working directory, which is another one for a daemon.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.append({home!r}); from forebay._cli import main; main()"
    return [sys.executable, "-c", code]


def daemon() -> list[str]:
    """The command that starts this user's own daemon."""
    return [*command(), "daemon", "--embedded"]
