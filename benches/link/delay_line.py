"""A link with a round trip and a rate, between this machine's network and a namespace of its own.

Packets are delayed, not connections: TCP's handshake, slow start and losses are the
kernel's own at both ends, as over a real distance. Two TUN devices stand for the link's ends; what
is written into one comes out of the other after half a round trip. The kernel hands over segments
of up to 64 KiB before they are cut (GSO, as network cards take them), so that a gigabit is some
thousand reads a second. The rate is set by `tc tbf` on both ends. Needs root.

    python3 benches/link/delay_line.py --rtt-ms 20 --mbit 1000 -- COMMAND…

runs COMMAND with FOREBAY_LINK_NAMESPACE and FOREBAY_LINK_ADDRESS set: a server started in that
namespace on that address is at the link's far end.
"""

import argparse
import collections
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time

# linux/if_tun.h
TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNSETVNETHDRSZ = 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04

# The largest segment and the header that describes it.
SEGMENT = 65536 + 64

# Addresses of the ends: a block reserved for measuring (RFC 2544).
NEAR, FAR = "198.18.77.1", "198.18.77.2"
NAMESPACE = "forebay-far"

# Bytes on their way at most: a round trip's worth at the rate, and as much again.
QUEUE_ROUND_TRIPS = 2

# Burst of tbf: a few of the largest segments.
BURST = 256 * 1024


def run(*command: str) -> None:
    """Run it, or exit with its output."""
    subprocess.run(command, check=True)


def make_end(name: str) -> int:
    """A TUN device that takes large segments, as a descriptor."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(end, TUNSETVNETHDRSZ, struct.pack("i", 10))
    fcntl.ioctl(end, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return end


def forward(source: int, sink: int, delay: float, queue: int) -> None:
    """Move segments from one end to the other, each after `delay` seconds; never returns."""
    waiting: collections.deque[tuple[float, bytes]] = collections.deque()
    held = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([source], [], [], timeout)
        now = time.monotonic()
        while readable:
            try:
                segment = os.read(source, SEGMENT)
            except BlockingIOError:
                break
            # A router whose queue is full drops what comes.
            if held + len(segment) <= queue:
                held += len(segment)
                waiting.append((now + delay, segment))
        while waiting and waiting[0][0] <= now:
            _, segment = waiting.popleft()
            held -= len(segment)
            # A receiver without room loses it, as on any link.
            with contextlib.suppress(BlockingIOError):
                os.write(sink, segment)


class Link:
    """The link, for as long as the block lasts."""

    def __init__(self, rtt: float, mbit: int) -> None:
        self.rtt, self.mbit = rtt, mbit
        self.forwarders: list[int] = []

    def __enter__(self) -> "Link":
        self.remove()
        near, far = make_end("fb-near"), make_end("fb-far")
        run("ip", "netns", "add", NAMESPACE)
        run("ip", "link", "set", "fb-far", "netns", NAMESPACE)
        inside = ["ip", "netns", "exec", NAMESPACE]
        for prefix, name, address in (([], "fb-near", NEAR), (inside, "fb-far", FAR)):
            run(*prefix, "ip", "address", "add", f"{address}/30", "dev", name)
            run(*prefix, "ip", "link", "set", name, "txqueuelen", "1000", "up")
            rate = ["rate", f"{self.mbit}mbit", "burst", str(BURST), "latency", "50ms"]
            run(*prefix, "tc", "qdisc", "add", "dev", name, "root", "tbf", *rate)
        run(*inside, "ip", "link", "set", "lo", "up")
        queue = int(QUEUE_ROUND_TRIPS * self.rtt * self.mbit * 1e6 / 8) + BURST
        for source, sink in ((near, far), (far, near)):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                try:
                    forward(source, sink, self.rtt / 2, queue)
                finally:
                    os._exit(1)
            self.forwarders.append(child)
        os.close(near)
        os.close(far)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.forwarders:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.remove()

    @staticmethod
    def remove() -> None:
        """Remove the remains of an earlier run."""
        subprocess.run(["ip", "netns", "delete", NAMESPACE], capture_output=True, check=False)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    with Link(arguments.rtt_ms / 1000, arguments.mbit):
        environment = dict(
            os.environ,
            FOREBAY_LINK_NAMESPACE=NAMESPACE,
            FOREBAY_LINK_ADDRESS=FAR,
            FOREBAY_LINK_RTT_MS=str(arguments.rtt_ms),
            FOREBAY_LINK_MBIT=str(arguments.mbit),
        )
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
