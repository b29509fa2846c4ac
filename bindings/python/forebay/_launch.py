"""Commands that start this package as a program, for the embedded daemon and the command line."""

from __future__ import annotations

import os
import sys


def command() -> list[str]:
    """Return the command that runs ``forebay``, without arguments.

    It relies neither on the console script, whose place varies, nor on the working directory, which
    a
    daemon changes.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.append({home!r}); from forebay._cli import main; main()"
    return [sys.executable, "-c", code]


def daemon() -> list[str]:
    """Return the command that starts this user's embedded daemon."""
    return [*command(), "daemon", "--embedded"]
