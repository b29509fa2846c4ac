"""A short torture of a cluster, in the network namespaces that `make churn` uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CLUSTER))

import churn  # noqa: E402
import nodes  # noqa: E402
from network import alone  # noqa: E402

ROOT = CLUSTER.parents[1]
# A dozen strikes.
SECONDS = 30


def trial(*command):
    """Returns the reason why a command fails, if it does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def namespaces():
    """Makes network namespaces, links and token buckets, or skips the test."""
    name = "fb-trial"
    with alone(churn.NODES):
        try:
            why = (
                trial("ip", "netns", "add", name)
                or trial("ip", "-n", name, "link", "add", "fb0", "type", "veth", "peer", "fb1")
                or trial("ip", "link", "add", "fb-bridge", "type", "bridge")
                or trial(
                    *("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "fb0", "root"),
                    *("tbf", "rate", "1mbit", "burst", "10kb", "latency", "1ms"),
                )
            )
        finally:
            trial("ip", "netns", "delete", name)
            trial("ip", "link", "delete", "fb-bridge")
        if why:
            pytest.skip(f"needs namespaces: run as root, with iproute2 ({why})")
        yield


def test_struck_cluster_delivers_each_sample_once(namespaces, tmp_path):
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    origin = target / "release/forebay-origin"
    forebay = Path(sys.executable).parent / "forebay"
    rates = [churn.NODE_MBIT] * churn.NODES
    site = nodes.Site(tmp_path, (str(forebay), str(origin)), churn.SIZE, rates, churn.ORIGIN_MBIT)
    try:
        told = churn.torture(site, SECONDS, seed=1)
    finally:
        site.stop()
    assert told["wrong"] == []
    assert sum(told["epochs"]) > 0
    assert sum(told["strikes"].values()) >= 4
