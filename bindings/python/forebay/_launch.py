"""Commands that start this package as a program, for the embedded daemon and the command line."""

from __future__ import annotations

import os
import sys

# Found at the import: a relative path means the folder of that moment.
_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def command() -> list[str]:
    """Return the command that runs ``forebay``, without arguments.

    It relies neither on the console script, whose place varies, nor on the working directory, which
    a daemon changes and whose files must not hide Python's own. The package is entered without its
    ``__init__``: that imports all a training script has, most of a reader's time to start.
    """
    code = (
        "import sys; sys.path = [folder for folder in sys.path if folder]; "
        f"package = type(sys)('forebay'); package.__path__ = [{_PACKAGE!r}]; "
        "sys.modules['forebay'] = package; from forebay._cli import main; main()"
    )
    return [sys.executable, "-c", code]


def daemon() -> list[str]:
    """Return the command that starts this user's embedded daemon."""
    return [*command(), "daemon", "--embedded"]
