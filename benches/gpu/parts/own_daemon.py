"""A daemon of a measurement's own, if Forebay is there: other rows need none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daemons


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Yield an environment whose loaders start a daemon on a new cache; end and remove both."""
    variables = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-") as cache:
        # Machines have a Forebay of a wheel beside a Python that it is not installed in.
        if not shutil.which(daemons.FOREBAY):
            yield variables
            return
        with daemons.private_daemon(variables, Path(cache)):
            yield variables
