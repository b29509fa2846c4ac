"""Network namespaces with a link each into one bridge, and a token bucket on every link."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# A block of addresses reserved for measuring (RFC 2544).
NETWORK = "198.18.78"
BRIDGE = "fb-bridge"
# Burst of a token bucket: a few of the largest segments.
BURST = 256 * 1024
# Ethernet, IPv4 and TCP with timestamps.
HEADERS = 14 + 20 + 32
# Names of the namespaces: nodes by number, and the store.
NODE, STORE = "fb-node", "fb-origin"


def run(*command: str) -> None:
    """Run it, or exit with its output."""
    subprocess.run(command, check=True)


class Host:
    """A network namespace with one link to the bridge."""

    def __init__(self, name: str, number: int, mbit: int) -> None:
        """Make the namespace and its link."""
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.link = f"{name}-up"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.inside("ip", "link", "set", "lo", "up")
        rate = ["root", "tbf", "rate", f"{mbit}mbit", "burst", str(BURST), "latency", "50ms"]
        run("tc", "qdisc", "add", "dev", self.link, *rate)
        self.inside("tc", "qdisc", "add", "dev", "eth0", *rate)

    def command(self, *command: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.name, *command]

    def inside(self, *command: str) -> None:
        """Run a command in the namespace."""
        run(*self.command(*command))

    def sent(self) -> int:
        """Return the payload bytes that the host sent so far."""
        counts = Path("/sys/class/net") / self.link / "statistics"
        packets = int((counts / "rx_packets").read_text())
        return int((counts / "rx_bytes").read_text()) - HEADERS * packets

    def cut(self) -> None:
        """Cut the link: packets are lost in silence, both ways."""
        run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        """Mend the link."""
        run("ip", "link", "set", self.link, "up")

    def part_from(self, other: Host) -> None:
        """Lose all packets to another host."""
        self.inside("ip", "route", "add", "blackhole", f"{other.address}/32")

    def rejoin(self, other: Host) -> None:
        """Reach another host again."""
        self.inside("ip", "route", "delete", "blackhole", f"{other.address}/32")


def make_bridge() -> None:
    """Make the bridge."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")


@contextlib.contextmanager
def alone(nodes: int) -> Iterator[None]:
    """Hold the names of the namespaces, which a machine has once; others wait."""
    with (Path(tempfile.gettempdir()) / "forebay-namespaces.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean(nodes)
        try:
            yield
        finally:
            clean(nodes)


def clean(nodes: int) -> None:
    """Remove the remains of an earlier run."""
    for name in [f"{NODE}{number}" for number in range(nodes)] + [STORE]:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        # A process that is left keeps its namespace, and so the link.
        subprocess.run(["ip", "link", "delete", f"{name}-up"], capture_output=True, check=False)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
