"""Samples that are slow: batches behind them go on, and the report names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

import forebay

# Seconds in which the other batch must have come.
PATIENCE = 60.0

FIFO = "FOREBAY_TEST_FIFO"


def first_waits_for_seventh(text: str) -> str:
    """Let the map of a sample of batch 0 end only once one of batch 6 was mapped."""
    if text.startswith("text 0 "):
        # Blocks until the other end is opened.
        with open(os.environ[FIFO]) as fifo:
            return fifo.read()
    if text.startswith("text 24 "):
        with open(os.environ[FIFO], "w") as fifo:
            fifo.write(text)
    return text


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_go_on_behind_a_slow_sample(make, tmp_path, monkeypatch, kind):
    monkeypatch.setenv(FIFO, str(tmp_path / "fifo"))
    os.mkfifo(tmp_path / "fifo")
    # Nobody waits for ever if the other batch is never begun.
    unblock = threading.Timer(PATIENCE, lambda: os.open(tmp_path / "fifo", os.O_RDWR))
    unblock.daemon = True
    unblock.start()
    fields = {"text": forebay.Text("txt", map=first_waits_for_seventh)}
    options = {"fields": fields, "workers": 2, "worker_type": kind, "prefetch": 6}
    batches = list(make(**options))
    unblock.cancel()
    assert batches[0]["text"][0] == "text 24 é"
    keys = [key for batch in batches for key in batch["__key__"]]
    assert keys == [f"s{number:05}" for number in range(60)]


def slow_map(number: int) -> int:
    """Take long for one sample."""
    if number == 33:
        threading.Event().wait(2.0)
    return number


def slow_select(sample: dict[str, object]) -> bool:
    """Take long for another one."""
    if sample["__key__"] == "s00007":
        threading.Event().wait(1.0)
    return True


@pytest.mark.parametrize("workers", [0, 2])
def test_slowest_samples_are_named(make, shards, workers):
    fields = {"label": forebay.Int("cls", map=slow_map), "image": forebay.Image("png")}
    loader = make(fields=fields, select=slow_select, transform=dict, workers=workers)
    for _ in range(2):
        assert sum(len(batch["__key__"]) for batch in loader) == 60
    slowest = loader.stats()["slowest"]
    assert len(slowest) == 16
    seconds = [slow["seconds"] for slow in slowest]
    assert seconds == sorted(seconds, reverse=True)
    first, second = slowest[:2]
    assert (first["key"], first["stage"], first["field"]) == ("s00033", "map", "label")
    assert (second["key"], second["stage"], second["field"]) == ("s00007", "select", None)
    assert first["url"].endswith(shards[3])
    names = [(slow["key"], slow["stage"], slow["field"]) for slow in slowest]
    assert len(set(names)) == len(names)


def test_daemon_names_slow_samples_of_user_code(make):
    loader = make(fields={"label": forebay.Int("cls", map=slow_map)}, workers=2, job="slow job")
    for _ in range(2):
        assert sum(len(batch["__key__"]) for batch in loader) == 60
    command = [sys.executable, "-c", "from forebay._cli import main; main()", "status", "--json"]

    def slowest():
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (job,) = (job for job in json.loads(done.stdout)["jobs"] if job["name"] == "slow job")
        return [(slow["key"], slow["stage"], slow["field"]) for slow in job["slowest"][:1]]

    # Each look starts a process, while the loader reports once a second.
    assert any(slowest() == [("s00033", "map", "label")] for _ in range(20))


def test_slowest_decodes_are_named(make):
    loader = make(fields={"image": forebay.Image("png")})
    assert sum(len(batch["__key__"]) for batch in loader) == 60
    slowest = loader.stats()["slowest"]
    assert {slow["stage"] for slow in slowest} == {"decode"}
    assert {slow["field"] for slow in slowest} == {"image"}
    assert all(slow["seconds"] > 0 for slow in slowest)
    # They outlive the session, as all counts do.
    loader.close()
    assert loader.stats()["slowest"] == slowest
