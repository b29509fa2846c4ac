r"""Ten minutes in which nodes die, stop, leave and join, links break, bits flip and objects change.

    sudo .venv/bin/python benches/cluster/churn.py --forebay .venv/bin/forebay \
        --origin target/release/forebay-origin --seconds 600 --seed 1

Jobs play epochs on all nodes meanwhile. A model knows every version of every sample that the store
ever had. Each ended epoch has every sample once, with the bytes of one of these versions, and one
version for a shard, unless its own daemon ended meanwhile: the rest is a run of its own. A job may
end with an error only if an object changed under it, or if its own node was struck. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from network import alone
from nodes import Cluster, Job, Site, Size

NODES = 4
NODE_MBIT, ORIGIN_MBIT = 1000, 400
SIZE = Size(shards=48, samples=40, sample=40_000)
# Seconds between two strikes, and for which one lasts.
BETWEEN, LASTING = (1.0, 5.0), (1.0, 8.0)
# Node on which a job plays that no strike hits: its jobs must succeed.
SPARED = 0
# Errors of a job whose object changed, and of one whose daemon was struck: it may be gone.
CHANGED = {"Unavailable"}
GONE = {"Unavailable", "Closed", "NotFound"}


class Struck:
    """Strikes on the nodes, and their ends."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        """Begin without one."""
        self.cluster, self.dice = cluster, dice
        self.site = cluster.site
        self.ends: list[tuple[float, int | None, Callable[[], None]]] = []
        self.counts: Counter[str] = Counter()
        self.versions = [0] * self.site.size.shards
        self.replaced_at = 0.0
        # Times at which each node was last struck, and at which its daemon last ended.
        self.hit = [0.0] * NODES
        self.ended = [0.0] * NODES

    def busy(self) -> set[int]:
        """Return the nodes under a strike."""
        return {node for _, node, _ in self.ends if node is not None}

    def end(self, *, everything: bool = False) -> None:
        """End the strikes whose time is over."""
        now = time.monotonic()
        over = [strike for strike in self.ends if everything or strike[0] <= now]
        self.ends = [strike for strike in self.ends if strike not in over]
        for _, node, mend in over:
            mend()
            if node is not None:
                self.hit[node] = time.monotonic()

    def strike(self) -> None:
        """Strike at random."""
        free = [node for node in range(NODES) if node not in self.busy() | {SPARED}]
        # Two of four nodes go on at any time.
        if len(free) < 2:
            return
        node = self.dice.choice(free)
        kind = self.dice.choice([self.kill, self.stop, self.leave, self.cut, self.flip])
        if self.dice.random() < 0.15:
            self.replace()
            return
        self.counts[kind.__name__] += 1
        self.hit[node] = time.monotonic()
        mend = kind(node)
        if mend:
            until = time.monotonic() + self.dice.uniform(*LASTING)
            self.ends.append((until, node, mend))

    def restart(self, node: int) -> None:
        """Start a daemon that ended."""
        self.cluster.daemons[node].wait()
        self.cluster.start(node)
        self.cluster.wait_up([node])

    def kill(self, node: int) -> Callable[[], None]:
        """Kill a node."""
        self.ended[node] = time.monotonic()
        self.cluster.signal(node, signal.SIGKILL)
        return lambda: self.restart(node)

    def stop(self, node: int) -> Callable[[], None]:
        """Stop a node without a word."""
        self.cluster.signal(node, signal.SIGSTOP)
        return lambda: self.cluster.signal(node, signal.SIGCONT)

    def leave(self, node: int) -> Callable[[], None]:
        """Let a node leave in order."""
        self.ended[node] = time.monotonic()
        self.cluster.signal(node, signal.SIGTERM)
        return lambda: self.restart(node)

    def cut(self, node: int) -> Callable[[], None]:
        """Cut the link of a node."""
        host = self.site.nodes[node]
        host.cut()
        return host.mend

    def flip(self, node: int) -> None:
        """Flip a bit in a copy on a node's disk."""
        shards = self.cluster.home(node) / "cache" / "shards"
        copies = [path for path in shards.glob("*.tar") if path.stat().st_size > 0]
        if not copies:
            return
        path = self.dice.choice(copies)
        at = self.dice.randrange(path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            if byte:
                file.seek(at)
                file.write(bytes([byte[0] ^ 1 << self.dice.randrange(8)]))

    def replace(self) -> None:
        """Put another version of an object into the store."""
        shard = self.dice.randrange(self.site.size.shards)
        self.versions[shard] += 1
        self.site.replace(shard, self.versions[shard])
        self.counts["replace"] += 1
        self.replaced_at = time.monotonic()


class Player:
    """Epoch after epoch of a job on one node, each compared with the model."""

    def __init__(self, cluster: Cluster, node: int, dice: random.Random) -> None:
        """Begin without an epoch."""
        self.cluster, self.node, self.dice = cluster, node, dice
        self.record = cluster.folder / f"record{node}"
        self.epochs, self.failed = 0, 0
        self.process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start an epoch."""
        self.record.unlink(missing_ok=True)
        self.since = time.monotonic()
        seed = self.dice.randrange(1 << 30)
        self.process = self.cluster.play(Job(self.node, 0, 1, seed), self.record)

    def check(self, struck: Struck) -> list[str]:
        """Compare an epoch that ended, or start the next one; returns what is wrong."""
        if self.process is None:
            # Nobody starts a job on a node that is down.
            if self.node not in struck.busy():
                self.begin()
            return []
        if self.process.poll() is None:
            return []
        told = self.process.communicate()[0].strip()
        wrong = []
        if self.process.returncode == 0:
            # The rest of an epoch that another daemon takes over is a run of its own.
            wrong = self.compare(is_one_run=struck.ended[self.node] < self.since)
            self.epochs += 1
        else:
            self.failed += 1
            ended = json.loads(told) if told.startswith("{") else {"error": "none", "text": told}
            # Identities count for a minute, and a daemon that was struck takes a moment.
            allowed = CHANGED if struck.replaced_at > self.since - 60 else set()
            if self.node in struck.busy() or struck.hit[self.node] > self.since - 30:
                allowed = allowed | GONE
            if ended["error"] not in allowed:
                wrong = [f"node{self.node}: {ended}"]
        self.process = None
        return wrong

    def compare(self, *, is_one_run: bool) -> list[str]:
        """Compare the samples of an epoch with the model."""
        known = self.cluster.site.versions
        lines = [line.split() for line in self.record.read_text().splitlines()]
        seen = Counter(key for key, _ in lines)
        wrong = [f"{key} came {count} times" for key, count in seen.items() if count != 1]
        wrong += [f"{key} is missing" for key in known if key not in seen]
        versions: dict[str, set[int]] = {}
        for key, crc in lines:
            version = known[key].get(int(crc))
            if version is None:
                wrong.append(f"{key} has wrong bytes")
            else:
                versions.setdefault(key.split("-")[0], set()).add(version)
        mixed = {shard: found for shard, found in versions.items() if len(found) > 1 and is_one_run}
        wrong += [f"shard {shard} has versions {found}" for shard, found in mixed.items()]
        return [f"node{self.node}: {what}" for what in wrong]


def torture(site: Site, seconds: int, seed: int) -> dict[str, object]:
    """Strike for so long; returns the counts, and all that was wrong."""
    dice = random.Random(seed)
    # A node holds half of the data: copies come and go.
    cluster = Cluster(site, shared=True, capacity=site.bytes // 2)
    wrong: list[str] = []
    try:
        struck = Struck(cluster, dice)
        players = [Player(cluster, node, dice) for node in range(NODES)]
        until = time.monotonic() + seconds
        next_strike = time.monotonic()
        while time.monotonic() < until and not wrong:
            struck.end()
            if time.monotonic() >= next_strike:
                struck.strike()
                next_strike = time.monotonic() + dice.uniform(*BETWEEN)
            for player in players:
                wrong += player.check(struck)
            time.sleep(0.1)
        struck.end(everything=True)
        for playing in [player.process for player in players if player.process]:
            playing.kill()
            playing.communicate()
        return {
            "seed": seed,
            "seconds": seconds,
            "strikes": dict(struck.counts),
            "epochs": [player.epochs for player in players],
            "ended by a strike": [player.failed for player in players],
            "wrong": wrong[:20],
        }
    finally:
        cluster.stop()


def main() -> None:
    """Strike, print the counts, and fail if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forebay", default="forebay", help="the command line to strike")
    parser.add_argument("--origin", required=True, help="the test kit's server, forebay-origin")
    parser.add_argument("--directory", default=".", help="a disk for caches and shards")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="a file for the counts as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run as root: network namespaces are made")
    folder = tempfile.TemporaryDirectory(prefix="churn-", dir=arguments.directory)
    with alone(NODES), folder as name:
        binaries = (arguments.forebay, arguments.origin)
        site = Site(Path(name).resolve(), binaries, SIZE, [NODE_MBIT] * NODES, ORIGIN_MBIT)
        try:
            told = torture(site, arguments.seconds, arguments.seed)
        finally:
            site.stop()
    print(json.dumps(told, indent=1))
    if arguments.report:
        arguments.report.write_text(json.dumps(told, indent=1) + "\n")
    if told["wrong"]:
        raise SystemExit("samples were wrong, or lost")


if __name__ == "__main__":
    main()
