"""One plain TCP stream over a link: what an upload or a restore over it can reach.

    python plain_tcp.py ADDRESS PORT

serves at the far end. A client sends a letter and a length, then bytes flow up or down.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The far end is a script by itself, which finds no other folder of the benchmark.
    from rounds import Figures

# A letter and a number of bytes.
HEAD = struct.Struct("!cQ")
UP, DOWN = b"U", b"D"
PIECE = 1 << 20


def serve(address: str, port: int) -> None:
    """Answer one client after the other; never returns."""
    with socket.create_server((address, port)) as listening:
        print("up", flush=True)
        while True:
            client, _ = listening.accept()
            with client:
                way, size = HEAD.unpack(_exactly(client, HEAD.size))
                if way == UP:
                    _take(client, size)
                    client.sendall(UP)
                else:
                    _give(client, size)


@contextlib.contextmanager
def server(inside: tuple[str, ...], address: str, port: int) -> Iterator[None]:
    """Run the far end; `inside` is the command that enters its namespace."""
    command = [*inside, sys.executable, __file__, address, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
        assert far.stdout is not None
        try:
            if not far.stdout.readline():
                raise SystemExit("the far end of the plain TCP stream did not start")
            yield
        finally:
            far.terminate()


def move(way: bytes, address: str, port: int, size: int) -> Figures:
    """Move `size` bytes up or down."""
    began = time.monotonic()
    with socket.create_connection((address, port)) as near:
        near.sendall(HEAD.pack(way, size))
        if way == UP:
            _give(near, size)
            _exactly(near, 1)
        else:
            _take(near, size)
    seconds = time.monotonic() - began
    return {"seconds": seconds, "bytes": size, "rate": size / seconds}


def _give(peer: socket.socket, size: int) -> None:
    piece = bytes(PIECE)
    for at in range(0, size, PIECE):
        peer.sendall(piece[: min(PIECE, size - at)])


def _take(peer: socket.socket, size: int) -> None:
    room = bytearray(PIECE)
    while size > 0:
        got = peer.recv_into(room, min(PIECE, size))
        if got == 0:
            raise SystemExit("a plain TCP stream ended early")
        size -= got


def _exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        some = peer.recv(size - len(found))
        if not some:
            raise SystemExit("a plain TCP stream ended early")
        found += some
    return found


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
