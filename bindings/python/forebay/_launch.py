"""Commands that start this package as a program, for the embedded daemon and the command line."""

from __future__ import annotations

import os
import sys

# Found at the import: a relative path means the folder of that moment.
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def command() -> list[str]:
    """Return the command that runs ``forebay``, without arguments.

    It relies neither on the console script, whose place varies, nor on the working directory, which
    a
    daemon changes.
    """
    code = f"import sys; sys.path.append({_HOME!r}); from forebay._cli import main; main()"
    return [sys.executable, "-c", code]


def daemon() -> list[str]:
    """Return the command that starts this user's embedded daemon."""
    return [*command(), "daemon", "--embedded"]
