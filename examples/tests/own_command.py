"""The command `forebay` of the package under test, for scripts that find it by `PATH`."""

import shlex

from forebay._launch import command


def write(folder):
    """Write the program into `folder`, which holds nothing else; return its path."""
    program = folder / "forebay"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    program.chmod(0o755)
    return program
