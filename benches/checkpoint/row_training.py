"""Row: an emulated trainer and its loader, while uploads drain and without.

The trainer takes warm batches from the node's disk by `forebay bench starvation`, at the rate of
an H100 that trains ResNet-50 on photos. Meanwhile the daemon uploads a checkpoint at 1 Gbit/s from
the same disk. The store runs on the same cores, which is part of what is measured.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import photo_sized
from group import group
from rounds import Figures, Spread, Table, take_turns
from settings import Settings
from testbed import Node, node, store
from verdicts import Verdict, percent, points

# A batch of samples as large as photos every 36 ms: 1,786 samples a second.
BATCH, STEP = 64, 0.0358
# Each epoch takes 2.3 s.
EPOCHS = 3
# An upload of 1.25 GiB takes 10.7 s, longer than the epochs and the start of their process.
BYTES, BANDWIDTH = 1280 << 20, "1Gbit/s"
POINTS, STEPS = 0.02, 1.03


def measure(settings: Settings) -> dict[str, Table]:
    """Measure the trainer by turns."""
    shards = settings.directory / "training-shards"
    try:
        shards.mkdir()
        photo_sized.make(shards)
        rule = f"upload_bandwidth = '{BANDWIDTH}'"
        # The uploads must outlast the epochs: this row keeps its size.
        with (
            store(settings.programs) as its,
            node(settings, its, rule) as daemon,
            group(daemon.environment, BYTES) as ranks,
        ):

            def alone(_: int) -> Figures:
                return train(settings, daemon, shards)

            def beside(number: int) -> Figures:
                name = f"training/step-{number + 1}"
                ranks.do("save", way="writer", place=its.url(name))
                figures = train(settings, daemon, shards)
                left = ranks.do_one("wait", place=its.url(name), level="published")
                its.forget(name)
                return figures | {"drained_for": left["seconds"]}

            plays = {"alone": alone, "beside": beside}
            return {"training": take_turns("training", plays, settings)}
    finally:
        shutil.rmtree(shards, ignore_errors=True)


def train(settings: Settings, daemon: Node, shards: Path) -> Figures:
    """Play some epochs; returns utilisation and seconds of a step over all of them."""
    command: list[str | Path] = [settings.programs.forebay, "bench", "starvation"]
    command += [photo_sized.urls(shards), "--raw", "--json", "--profile", "custom"]
    command += ["--batch-size", str(BATCH), "--step", str(STEP), "--epochs", str(EPOCHS)]
    text = subprocess.check_output(command, env=daemon.environment, text=True)
    epochs = json.loads(text)["epochs"]
    steps = sum(epoch["steps"] for epoch in epochs)
    wall = sum(epoch["wall_seconds"] for epoch in epochs)
    return {"au": steps * STEP / wall, "step": wall / steps}


def judge(tables: dict[str, Table]) -> list[Verdict]:
    """Compare with the bounds."""
    table, row = tables["training"], "training while uploads drain"
    pairs = zip(table.each("alone", "au"), table.each("beside", "au"), strict=True)
    lost = Spread.of([one - other for one, other in pairs])
    longer = table.ratio(("beside", "step"), ("alone", "step"))
    return [
        Verdict(row, "AU_ideal without uploads", table.figure("alone", "au"), show=percent),
        Verdict(row, "AU lost", lost, most=POINTS, show=points),
        Verdict(row, "step, of that without", longer, most=STEPS, show="{:.3f}".format),
    ]
