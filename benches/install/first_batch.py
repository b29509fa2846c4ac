"""Times a new user: an empty machine, `pip install`, the README's ten lines, the first batch.

    PYTHONPATH=deploy/tests python benches/install/first_batch.py WHEEL --rounds 3

Each round has a fresh copy of the base of Debian 12 (`make setup-packages`), without a compiler,
Rust or torch. pip takes NumPy from the registry of this machine. It needs root, and deploy/tests on
the path, whose machine it is.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bare_machine import Machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches/rivals"))

import machine  # noqa: E402

# Shards that take the place of those in the README, and photos in them.
PHOTOS = 256
SHARDS = "/data/train-000000.tar"
README = ROOT / "README.md"

# Stands for the user's training: it ends the program at its first batch, and says what came.
STEP = """
def train_step(images, labels):
    print(f"{type(images).__module__} {images.shape} {labels.shape}")
    raise SystemExit
"""


def ten_lines() -> str:
    """Return the README's own program on the shards that are here, up to its first batch."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    program = found[1].replace("s3://bucket/train-{000000..001281}.tar", SHARDS)
    assert SHARDS in program
    return STEP + program


def connect(machine: Machine) -> dict[str, str]:
    """Give the machine this one's network; return the variables that pip goes by."""
    for file in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(file).exists():
            shutil.copy(file, machine.root / file.lstrip("/"))
    words = ("PIP_", "HTTP", "HTTPS", "NO_PROXY", "SSL_CERT")
    return {name: value for name, value in os.environ.items() if name.upper().startswith(words)}


def timed(machine: Machine, script: str, environment: dict[str, str]) -> tuple[float, str]:
    """Return the seconds that a script takes, and what it prints."""
    begin = time.monotonic()
    told = machine.run(script, environment).stdout
    return time.monotonic() - begin, told


def play(base: Path, wheel: Path, numpy: str) -> dict[str, Any]:
    """Return the figures of one round."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-install-"))
    try:
        bare = Machine(base, folder / "machine")
        environment = connect(bare)
        there = bare.put(wheel, "/wheels")
        (bare.root / "ten_lines.py").write_text(ten_lines())
        figures: dict[str, Any] = {}
        figures["venv_s"], _ = timed(bare, "python3 -m venv /env", environment)
        install = f"/env/bin/python -m pip install --quiet {there} '{numpy}'"
        figures["install_s"], _ = timed(bare, install, environment)
        # The data are there before anybody trains; this time is not counted.
        make = f"/env/bin/forebay demo --shards-only /data --photos {PHOTOS}"
        figures["data_s"], _ = timed(bare, make, {})
        figures["first_batch_s"], told = timed(bare, "/env/bin/python /ten_lines.py", {})
        figures["batch"] = told.strip()
        figures["total_s"] = sum(figures[key] for key in ("venv_s", "install_s", "first_batch_s"))
        figures["demo_s"], _ = timed(bare, "/env/bin/forebay demo", {})
        return figures
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def facts(wheel: Path) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **machine.describe(ROOT),
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--base", type=Path, default=ROOT / ".tools/debian")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--numpy", default="numpy>=2.1", help="what pip is asked for beside it")
    parser.add_argument("--note", help="word about the machine, such as other load")
    parser.add_argument("--output", type=Path, help="where to write the figures as well")
    arguments = parser.parse_args()
    rounds = [
        play(arguments.base, arguments.wheel, arguments.numpy) for _ in range(arguments.rounds)
    ]
    figures = [key for key in rounds[0] if key.endswith("_s")]
    medians = {key: statistics.median(one[key] for one in rounds) for key in figures}
    document = {**facts(arguments.wheel), "note": arguments.note}
    document |= {"medians": medians, "rounds": rounds}
    text = json.dumps(document, indent=1)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
