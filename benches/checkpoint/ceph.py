"""Ceph's S3 gateway on loopback: the test kit's cluster of one node, with a bucket.

Needs root, FUSE and the packages that `make setup-tests` installs. Half a minute to start.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import BUCKET, Store

SCRIPT = Path(__file__).resolve().parents[2] / "tests/testkit/src/servers/ceph.sh"
PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "radosgw", "ceph-fuse", "curl")
KEY, SECRET, REGION = "AK", "SKSKSKSK", "us-east-1"
# Seconds to start on a busy machine.
PATIENCE = 180
# Seconds between looks for the file that the script makes once all is up.
LOOK = 0.2
# Bytes of the log that are shown if it is not.
LOG_TAIL = 2000


def missing() -> str | None:
    """Return what a cluster lacks here, if anything."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        return "needs root and FUSE"
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"needs {', '.join(lacking)}: run make setup-tests" if lacking else None


@contextmanager
def store(directory: Path) -> Iterator[Store]:
    """Run a cluster whose objects lie in `directory`."""
    folder = Path(tempfile.mkdtemp(prefix="ceph-", dir=directory))
    monitor, gateway = _free_port(), _free_port()
    words = ["bash", str(SCRIPT), str(folder), str(monitor), str(gateway), KEY, SECRET]
    with (folder / "log").open("w") as log:
        cluster = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        _await(cluster, folder)
        endpoint = f"http://127.0.0.1:{gateway}"
        signed = ["--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{KEY}:{SECRET}"]
        made = ["curl", "-sSf", "-X", "PUT", *signed, f"{endpoint}/{BUCKET}"]
        subprocess.run(made, check=True)
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
        yield Store("Ceph RGW", {**keys, "AWS_ENDPOINT_URL": endpoint})
    finally:
        subprocess.run(["umount", "--lazy", folder / "mount"], capture_output=True, check=False)
        cluster.terminate()
        cluster.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await(cluster: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not (folder / "ready").exists():
        if cluster.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"Ceph did not start: {(folder / 'log').read_text()[-LOG_TAIL:]}")
        time.sleep(LOOK)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
