"""Daemons an experiment starts and ends: a user's own on a cache, or a node's from its file.

A function's daemon ends when its `with` block is left, on failure and Ctrl-C as well. The user's
own daemon and cache are not touched. The module needs only Python, so that scripts can take it
along.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# A daemon that was told to end finishes its writes first; a disk is given this long for them.
STOP_TIMEOUT_S = 30
KILLED = f"the daemon did not end within {STOP_TIMEOUT_S} s and was killed"
# One that was started opens its tiers first.
START_TIMEOUT_S = 60
# The exit code by which `forebay` says that no daemon is reachable.
NO_DAEMON = 3
# The command installed beside this Python; else, as of a wheel in a folder of its own, on the path.
BESIDE = Path(sys.executable).with_name("forebay")
FOREBAY = BESIDE if BESIDE.exists() else Path(shutil.which("forebay") or BESIDE)


@contextmanager
def private_daemon(
    environment: dict[str, str], cache: Path, forebay: Path = FOREBAY
) -> Iterator[None]:
    """Point `environment` to an embedded daemon of its own on `cache`; end it afterwards."""
    environment.update(FOREBAY_DAEMON="embedded", FOREBAY_CACHE=str(cache))
    try:
        yield
    finally:
        stop_daemon(environment, forebay)


@contextmanager
def node_daemon(
    environment: dict[str, str],
    config: str,
    before: Callable[[], None] | None = None,
    forebay: Path = FOREBAY,
) -> Iterator[None]:
    """Point `environment` to a node's daemon from `config`, which names no socket; end it
    afterwards.

    `before` is called in the daemon's process before it begins.
    """
    runtime = Path(tempfile.mkdtemp(prefix="forebay-run-"))
    socket, file = runtime / "forebayd.sock", runtime / "forebay.toml"
    file.write_text(config.replace("[daemon]", f"[daemon]\nsocket = {str(socket)!r}"))
    environment.update(FOREBAY_DAEMON=f"unix:{socket}")
    daemon = subprocess.Popen([forebay, "daemon", "--config", file], preexec_fn=before)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while status(environment, forebay) is None:
            if daemon.poll() is not None or time.monotonic() > deadline:
                sys.exit("the daemon did not start; see its messages above")
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(KILLED, file=sys.stderr)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(runtime)


def status(environment: dict[str, str], forebay: Path = FOREBAY) -> dict[str, Any] | None:
    """Return the status of the daemon of `environment`; `None` if none runs."""
    asked = subprocess.run(
        [forebay, "status", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    if asked.returncode == NO_DAEMON:
        return None
    asked.check_returncode()
    document: dict[str, Any] = json.loads(asked.stdout)
    return document


def stop_daemon(environment: dict[str, str], forebay: Path = FOREBAY) -> None:
    """End the daemon of `environment`, if one runs, and wait until it has ended."""
    running = status(environment, forebay)
    if running is None:
        return
    handle = os.pidfd_open(running["pid"])
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], STOP_TIMEOUT_S)[0]:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            print(KILLED, file=sys.stderr)
    finally:
        os.close(handle)
