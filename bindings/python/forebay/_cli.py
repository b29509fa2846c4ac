"""The console scripts ``forebay`` and ``forebayd``: the native command line in this process."""

from __future__ import annotations

import os
import signal
import sys

from forebay._launch import command

# Known to type checkers. The import takes half of the time in which Python starts.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Used if the kernel does not report a process's limit of descriptors.
_DESCRIPTORS = 65536


def main() -> NoReturn:
    """Run ``forebay`` with this process's arguments and exit with its code."""
    _run(sys.argv[1:])


def daemon() -> NoReturn:
    """Run ``forebay daemon`` with this process's arguments and exit with its code."""
    _run(["daemon", *sys.argv[1:]])


def _run(arguments: list[str]) -> NoReturn:
    is_embedded = arguments[:1] == ["daemon"] and "--embedded" in arguments
    if is_embedded or arguments[:1] == ["reader"]:
        # Descriptors inherited from the starting process (sockets, device files, locks) are closed,
        # so that they do not outlive that process.
        os.closerange(3, _descriptors())
    # A Ctrl-C for the trainer is not for this daemon. The leader of a group (a shell's job) stays
    # in it.
    if is_embedded and os.getpgrp() != os.getpid():
        os.setsid()
    from forebay import _native

    # Python turns Ctrl-C into an exception, which native code would not see.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.main(arguments, command())
    sys.stdout.flush()
    sys.exit(code)


def _descriptors() -> int:
    try:
        return os.sysconf("SC_OPEN_MAX")
    except (OSError, ValueError):
        return _DESCRIPTORS
