r"""Cost of a slow store to the jobs of another one.

    .venv/bin/python benches/fairness/measure.py --forebay .venv/bin/forebay

One daemon, and by turns a cold epoch over the shards of a good store alone, and beside a job over
more shards than there are fills of a store that sends 256 bytes a second. The figure is the ratio
of the rates of a turn: the median over the turns, and the quartiles. Both stores are this script's
own, on loopback.
"""

from __future__ import annotations

import argparse
import http.server
import io
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "rivals"))
import machine  # noqa: E402

SHARDS, SAMPLES, SAMPLE = 16, 256, 110_000
# More shards than the daemon fills at once.
SLOW_SHARDS = 12
# Bytes that the slow store sends, and the seconds between them.
DRIP, EVERY = 64, 0.25


class Store(http.server.ThreadingHTTPServer):
    """A store of one tar under every name."""

    daemon_threads = True

    def __init__(self, tar: bytes, *, slow: bool) -> None:
        """Serve `tar` on a free port."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.tar, self.slow = tar, slow
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def address(self) -> str:
        """URL of the store."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def url(self, folder: str, shards: int) -> str:
        """URL of the shards in a folder."""
        return f"{self.address()}/{folder}/{{0..{shards - 1}}}.tar"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers HEAD and ranged GET."""

    protocol_version = "HTTP/1.1"
    server: Store

    def do_HEAD(self) -> None:
        """Answer with the length."""
        self.begin(200, len(self.server.tar))

    def do_GET(self) -> None:
        """Answer with a range, all at once or drop by drop."""
        tar = self.server.tar
        first, last = 0, len(tar) - 1
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked:
            ends = asked.split("-")
            first, last = int(ends[0]), min(int(ends[1] or last), last)
        body = memoryview(tar)[first : last + 1]
        self.begin(206 if asked else 200, len(body), f"bytes {first}-{last}/{len(tar)}")
        try:
            if not self.server.slow:
                self.wfile.write(body)
                return
            for at in range(0, len(body), DRIP):
                self.wfile.write(body[at : at + DRIP])
                time.sleep(EVERY)
        except OSError:
            # The daemon gave the reply up.
            self.close_connection = True

    def begin(self, status: int, length: int, content_range: str | None = None) -> None:
        """Send the head."""
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", '"1"')
        self.send_header("Accept-Ranges", "bytes")
        if status == 206 and content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def make() -> bytes:
    """Make a tar of samples as large as photos."""
    dice, made = random.Random(7), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in range(SAMPLES):
            member = tarfile.TarInfo(f"{sample:05d}.bin")
            member.size = SAMPLE
            tar.addfile(member, io.BytesIO(dice.randbytes(SAMPLE)))
    return made.getvalue()


# One cold epoch; prints samples a second. The benchmark command would wait until the node rests.
PLAY = """
import sys, time, forebay
url, daemon = sys.argv[1:]
loader = forebay.DataLoader(url, fields={"raw": forebay.Bytes("bin")}, daemon=daemon)
since = time.monotonic()
samples = sum(len(batch["raw"]) for batch in loader)
print(samples / (time.monotonic() - since))
"""


def command(folder: Path, url: str) -> list[str]:
    """One cold epoch of a job."""
    return [sys.executable, "-c", PLAY, url, f"unix:{folder}/d.sock"]


def rate(folder: Path, url: str) -> float:
    """Samples a second of a cold epoch."""
    ended = subprocess.run(command(folder, url), check=True, stdout=subprocess.PIPE)
    return float(ended.stdout)


def main() -> None:
    """Take turns, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to measure")
    parser.add_argument("--directory", default=".", help="a disk for the cache")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    tar = make()
    good, slow = Store(tar, slow=False), Store(tar, slow=True)
    alone: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fairness-", dir=arguments.directory) as name:
        folder = Path(name).resolve()
        (folder / "forebay.toml").write_text(
            f"[daemon]\nsocket = '{folder}/d.sock'\nmemory = '1GiB'\n"
            f"[[tier]]\nname = 'nvme'\npath = '{folder}/cache'\ncapacity = '4GiB'\n"
            + "".join(f"[[source]]\nmatch = '{store.address()}/'\n" for store in (good, slow))
        )
        daemon = subprocess.Popen(
            [arguments.forebay, "daemon", "--config", f"{folder}/forebay.toml"],
            env={**os.environ, "FOREBAY_LOG": "warn"},
        )
        try:
            until = time.monotonic() + 60
            while not (folder / "d.sock").exists() and time.monotonic() < until:
                time.sleep(0.1)
            for turn in range(arguments.rounds):
                url = good.url(f"alone-{turn}", SHARDS)
                alone.append(rate(folder, url))
                other = subprocess.Popen(
                    command(folder, slow.url(f"slow-{turn}", SLOW_SHARDS)),
                    stdout=subprocess.DEVNULL,
                )
                # Its shards take every turn before the good store's job comes.
                time.sleep(1)
                url = good.url(f"beside-{turn}", SHARDS)
                beside.append(rate(folder, url))
                other.terminate()
                other.wait()
        finally:
            daemon.terminate()
            daemon.wait()
    each = [100 * one / other for one, other in zip(beside, alone, strict=True)]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive")
    print(f"alone {statistics.median(alone):.0f} samples/s, beside a slow store")
    print(f"{statistics.median(beside):.0f}: {median:.1f} % ({low:.1f} to {high:.1f})")
    report = {"machine": machine.describe(Path(arguments.directory)), "rounds": arguments.rounds}
    machine.record(report | {"alone": alone, "beside": beside}, "fairness.json")


if __name__ == "__main__":
    main()
