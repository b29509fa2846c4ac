"""Counts the shards' samples by `forebay index`, through a cache that is thrown away.

PYTHON to_forebay.py < {"shards": [...], "target": FOLDER, "forebay": COMMAND}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from daemons import private_daemon

MANIFEST = "manifest.json"


def convert(sources: list[str], target: Path, forebay: Path) -> None:
    """Write the manifest of `sources` into `target`."""
    urls = [Path(source).as_uri() for source in sources]
    environment = dict(os.environ)
    # Elsewhere, or the first epoch would find its shards cached.
    with (
        tempfile.TemporaryDirectory(dir=target) as cache,
        private_daemon(environment, Path(cache), forebay),
    ):
        command: list[str | Path] = [forebay, "index", *urls, "-o", target / MANIFEST]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], Path(asked["target"]), Path(asked["forebay"]))
