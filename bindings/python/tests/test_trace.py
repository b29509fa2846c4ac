"""Traces: `FOREBAY_TRACE` has each loader write what its batches went through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import write_shard
from forebay import DataLoader

SAMPLES, BATCH = 24, 4


def test_each_loader_writes_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loaders of one process have a file each; a loader goes on with its own in each epoch."""
    samples = [(f"{number:04d}", {"bin": bytes(100)}) for number in range(SAMPLES)]
    shard = write_shard(tmp_path / "0.tar", samples)
    monkeypatch.setenv("FOREBAY_TRACE", str(tmp_path / "out.json"))
    with (
        DataLoader(shard, batch_size=BATCH, job="one") as one,
        DataLoader(shard, batch_size=BATCH, job="two") as two,
    ):
        for _ in range(2):
            assert sum(1 for _ in one) == SAMPLES // BATCH
        assert sum(1 for _ in two) == SAMPLES // BATCH
        waited = one.stats()["wait"]["total_seconds"]
    for name, job, batches in (
        ("out.json", "one", 2 * SAMPLES // BATCH),
        ("out-1.json", "two", SAMPLES // BATCH),
    ):
        document = json.loads((tmp_path / name).read_text())
        assert document["otherData"]["job"] == job
        assert document["otherData"]["left_out"] == 0
        slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
        counts = {cat: sum(1 for s in slices if s["cat"] == cat) for cat in ("wait", "decode")}
        assert counts == {"wait": batches, "decode": batches}
        total = sum(s["dur"] for s in slices if s["cat"] == "wait") / 1e6
        assert job == "two" or total == pytest.approx(waited, abs=1e-4)
