"""Draw the chart of docs/RESULTS.md from recorded results: ``docs/pictures/results.svg``.

Every bar is a figure of a file under ``benches/results``; nothing is typed in by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches/results"
OUTPUT = ROOT / "docs/pictures/results.svg"
IMAGES = RESULTS / "2026-11-30-amd-epyc-2-cores/starvation-images.json"
RAW = RESULTS / "2026-11-29-amd-epyc-2-cores/starvation-raw.json"
COLD = RESULTS / "2026-11-22-amd-epyc-2-cores/origin.json"
DISK = RESULTS / "2026-11-21-amd-epyc-2-cores/disk-reserved-pages.json"

OURS, OTHERS = "#1b6ca8", "#b8c4ce"
# Names of contenders, as their projects write them.
NAMES = {
    "forebay": "Forebay, NVMe",
    "forebay-memory": "Forebay, memory tier",
    "dali": "DALI (CPU)",
    "datasets": "HF datasets",
    "lancedb": "LanceDB",
    "litdata": "LitData",
    "mosaic": "Mosaic Streaming",
    "spdl": "SPDL",
    "torch": "torch DataLoader",
    "webdataset": "WebDataset",
}

Bars = list[tuple[str, float]]


def loaders(path: Path) -> Bars:
    """Return the sample rate that each loader of a contest sustained, the highest first."""
    bars = [
        (NAMES[contender["name"]], contender["sustained"]["samples_per_second"])
        for contender in load(path)["contest"]["contenders"]
    ]
    return sorted(bars, key=lambda bar: -bar[1])


def cold_fetch() -> Bars:
    """Return GB/s of a cold shard over HTTP by each client, in medians."""
    rates = load(COLD)["cold"]["http_nginx"]
    names = {"forebay": "Forebay", "rclone": "rclone", "curl": "curl", "aria2c": "aria2"}
    bars = [(shown, median(rates[name]["gb_per_second"])) for name, shown in names.items()]
    return sorted(bars, key=lambda bar: -bar[1])


def disk() -> Bars:
    """Return GB/s of random 112 KiB reads by fio and by the ring, in medians."""
    run = load(DISK)[0]
    names = {"fio": "fio, io_uring", "ring": "Forebay's ring"}
    return [
        (shown, median(part["bytes_per_second"] for part in run[name]) / 1e9)
        for name, shown in names.items()
    ]


def load(path: Path) -> Any:
    """Return the document in a file."""
    return json.loads(path.read_text())


def draw(axes: Axes, bars: Bars, title: str, digits: int) -> None:
    """Draw one panel of horizontal bars, the first on top."""
    labels, values = [name for name, _ in bars], [value for _, value in bars]
    colours = [OURS if "Forebay" in name else OTHERS for name in labels]
    drawn = axes.barh(labels, values, color=colours)
    axes.bar_label(drawn, labels=[f"{value:,.{digits}f}" for value in values], padding=3, size=8)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", size=9, weight="bold")
    axes.set_xlim(0, max(values) * 1.2)
    axes.tick_params(labelsize=8, length=0)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)


def main() -> None:
    """Draw the chart."""
    # The same picture from the same figures: no date, no random identifiers.
    mpl.rcParams.update({"svg.hashsalt": "forebay", "svg.fonttype": "none"})
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": (8, 4)})
    draw(panels[0][0], loaders(IMAGES), "Photos decoded, per second, 2 cores", 0)
    draw(panels[0][1], loaders(RAW), "Raw samples, every byte read, per second", 0)
    draw(panels[1][0], cold_fetch(), "Cold 512 MiB shard over HTTP, GB/s", 2)
    draw(panels[1][1], disk(), "Random 112 KiB reads from the disk, GB/s", 2)
    figure.savefig(OUTPUT, metadata={"Date": None})
    print(f"wrote {OUTPUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
