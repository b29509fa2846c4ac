"""Fixtures that tests of several examples share."""

import shlex

import pytest

from forebay._launch import command


@pytest.fixture(scope="session")
def forebay(tmp_path_factory):
    """The command `forebay` of this very package, alone in a folder for a `PATH`."""
    program = tmp_path_factory.mktemp("bin") / "forebay"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    program.chmod(0o755)
    return program
