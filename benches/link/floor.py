"""The least time for a shard over a link: bare TCP connections, without HTTP, checksums and a disk.

    python3 benches/link/floor.py --rtt-ms 20 --mbit 1000

No cold fetch can be faster. Each way begins with one connection. The others connect at its first
byte, for only then is the length known.

- one connection, which sends all;
- several, each with an equal share;
- several that ask for parts, as a cold fetch does.

Needs root, for the link.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from delay_line import FAR, NAMESPACE, Link

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rivals"))

import machine

PORT = 8098
# The number of bytes that are asked for.
HEAD = struct.Struct("!Q")
PIECE = 1 << 20
# A part of a cold fetch.
PART = 4 << 20
# TCP's payload in a packet of 1500 bytes, with time stamps.
PAYLOAD = 1448 / 1500


def serve() -> None:
    """Send as many bytes as are asked for, to any number of clients; never returns."""
    piece = bytes(PIECE)

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while head := client.recv(HEAD.size, socket.MSG_WAITALL):
                (left,) = HEAD.unpack(head)
                while left > 0:
                    client.sendall(piece[: min(left, PIECE)])
                    left -= min(left, PIECE)

    with socket.create_server((FAR, PORT), backlog=128) as listening:
        print("up", flush=True)
        while True:
            client, _ = listening.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer, args=(client,), daemon=True).start()


def connect() -> socket.socket:
    """Return a new connection to the far end."""
    near = socket.create_connection((FAR, PORT))
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near


def take(near: socket.socket, size: int, begun: Callable[[], None]) -> None:
    """Ask for bytes and receive them; `begun` is called at the first."""
    near.sendall(HEAD.pack(size))
    room = bytearray(PIECE)
    left = size
    while left > 0:
        got = near.recv_into(room, min(left, PIECE))
        if got == 0:
            raise SystemExit("the far end ended early")
        if left == size:
            begun()
        left -= got


def shares(size: int, connections: int) -> None:
    """Take an equal share over each connection."""
    spread(connections, [size // connections] * connections)


def parts(size: int, connections: int) -> None:
    """Take parts, one after the other over each connection."""
    spread(connections, [PART] * (size // PART))


def spread(connections: int, sizes: list[int]) -> None:
    """Take pieces of these sizes over several connections."""
    started = threading.Event()
    left = collections.deque(sizes)

    def run(number: int) -> None:
        if number > 0:
            started.wait()
        try:
            with connect() as near, contextlib.suppress(IndexError):
                while True:
                    take(near, left.popleft(), started.set)
        finally:
            # After an error nobody waits for the first byte.
            started.set()

    with ThreadPoolExecutor(connections) as pool:
        # The list raises the error of a connection.
        list(pool.map(run, range(connections)))


WAYS = {"whole": shares, "shares": shares, "parts": parts}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--connections", type=int, nargs="+", default=[6, 12])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    size = arguments.mib << 20
    carries = arguments.mbit * 1e6 / 8 * PAYLOAD
    cases = [("whole", 1), *itertools.product(("shares", "parts"), arguments.connections)]
    seconds: dict[str, list[float]] = {f"{way}, {count}": [] for way, count in cases}
    with Link(arguments.rtt_ms / 1000, arguments.mbit):
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, __file__, "--serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
            assert far.stdout is not None
            if not far.stdout.readline():
                raise SystemExit("the far end did not start")
            try:
                for _ in range(arguments.rounds):
                    for way, count in cases:
                        begin = time.monotonic()
                        WAYS[way](size, count)
                        seconds[f"{way}, {count}"].append(time.monotonic() - begin)
            finally:
                far.terminate()
    of_link = {case: size / carries / statistics.median(all_) for case, all_ in seconds.items()}
    for case, share in of_link.items():
        low, high = min(seconds[case]), max(seconds[case])
        print(f"  {case:12} {share:.3f} of the link  {low:.2f} to {high:.2f} s")
    figures = {
        "machine": machine.describe(Path(".")),
        "mib": arguments.mib,
        "rtt_ms": arguments.rtt_ms,
        "mbit": arguments.mbit,
        "of_link": of_link,
        "seconds": seconds,
    }
    machine.record(figures, "link_floor.json")


if __name__ == "__main__":
    main()
